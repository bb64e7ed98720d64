"""Models whose memory cannot hold a fabricated prefix, or that only embed: a defined answer each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from conftest import engine_folder, required
from fakeprefix.engine.smoke import smoke_test
from fakeprefix.errors import EngineError, RequestRefused
from fakeprefix.model.presets import MICRO_SHAPES
from fakeprefix.model.shapes import TensorSpec
from fakeprefix.model.synthetic import read_tokenizer, write_text_model
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.process import running_server
from gguf import GGMLQuantizationType

pytestmark = pytest.mark.engine

SETTINGS = EngineSettings(2, 256, 256, "on", "f16", "f16", 1024)


@dataclass(frozen=True)
class SlidingShape:
    """The smallest ``gemma3``: its attention layers alternate between a window and everything."""

    n_layer: int = 6
    n_embd: int = 64
    head_dim: int = 64
    n_ff: int = 64
    architecture: str = "gemma3"

    def metadata(self) -> dict[str, Any]:
        return {
            "block_count": self.n_layer,
            "context_length": 8192,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": 1,
            "attention.head_count_kv": 1,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.sliding_window": 128,
            "rope.freq_base": 1e6,
        }

    def tensors(self, n_vocab: int) -> Iterator[TensorSpec]:
        embd, head, ff = self.n_embd, self.head_dim, self.n_ff
        yield TensorSpec("token_embd.weight", (embd, n_vocab), "matrix")
        yield TensorSpec("output_norm.weight", (embd,), "norm")
        for layer in range(self.n_layer):
            for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
                yield TensorSpec(f"blk.{layer}.{name}.weight", (embd,), "norm")
            for name in ("attn_q_norm", "attn_k_norm"):
                yield TensorSpec(f"blk.{layer}.{name}.weight", (head,), "norm")
            for name in ("attn_q", "attn_k", "attn_v"):
                yield TensorSpec(f"blk.{layer}.{name}.weight", (embd, head), "matrix")
            yield TensorSpec(f"blk.{layer}.attn_output.weight", (head, embd), "matrix")
            for name in ("ffn_gate", "ffn_up"):
                yield TensorSpec(f"blk.{layer}.{name}.weight", (embd, ff), "matrix")
            yield TensorSpec(f"blk.{layer}.ffn_down.weight", (ff, embd), "matrix")


@pytest.fixture(scope="module")
def tokenizer():
    return read_tokenizer(required(engine_folder() / "source" / "models" / "ggml-vocab-qwen35.gguf"))


@pytest.fixture(scope="module")
def sliding(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("sliding") / "model.gguf"
    write_text_model(SlidingShape(), "sliding", 1, tokenizer, path, GGMLQuantizationType.F16)
    return path


def test_a_sliding_window_is_refused_with_the_reason(fast_server, sliding, tmp_path):
    with running_server(fast_server, SETTINGS, sliding, None, tmp_path / "log") as server:
        props = server.client.props()
        assert "does not support it" in props["fake_prefix_unsupported"]
        with pytest.raises(RequestRefused, match="a prefix cannot be fabricated") as refusal:
            server.client.post("/completion", {"prompt": list(range(100, 400)), "n_fake_cached": 200, "n_predict": 1})
        assert refusal.value.status == 400
        answer = server.client.post("/completion", {"prompt": list(range(100, 400)), "n_predict": 1})
        assert answer["timings"]["prompt_n"] == 300


def test_a_sliding_window_can_still_be_saved_and_restored(fast_server, sliding, tmp_path):
    with running_server(fast_server, SETTINGS, sliding, None, tmp_path / "log") as server:
        post, tokens = server.client.post, list(range(100, 500))
        plain = {"n_predict": 1, "cache_prompt": False, "id_slot": 0}
        post("/completion", plain | {"prompt": tokens[:300], "prefix_state": {"save": "a"}})
        restored = post("/completion", plain | {"prompt": tokens, "prefix_state": {"restore": "a"}})["timings"]
        assert (restored["cache_n"], restored["prompt_n"], restored["prefix_source"]) == (300, 100, "restored")


def test_the_smoke_request_refuses_such_a_model_before_any_timing(fast_server, sliding, tmp_path):
    with pytest.raises(EngineError, match="a prefix cannot be fabricated"):
        smoke_test(fast_server, SETTINGS, sliding, None, None, "tile", "cpu", tmp_path / "out.json", tmp_path / "log")
    assert not (tmp_path / "out.json").exists()


def test_a_server_for_embeddings_refuses_the_field(fast_server, tokenizer, tmp_path):
    model = tmp_path / "model.gguf"
    write_text_model(MICRO_SHAPES["attention"], "embedding", 1, tokenizer, model, GGMLQuantizationType.F16)
    extra = ["--embeddings", "--pooling", "last"]
    with running_server(fast_server, SETTINGS, model, None, tmp_path / "log", extra_arguments=extra) as server:
        assert len(server.client.post("/embeddings", {"content": "word"})) == 1
        with pytest.raises(RequestRefused, match="is not supported by") as refusal:
            server.client.post("/embeddings", {"content": "word", "n_fake_cached": 1})
        assert refusal.value.status == 400


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_pure_memories_take_a_prefix_end_to_end(fast_server, tokenizer, tmp_path, kind):
    model = tmp_path / "model.gguf"
    write_text_model(MICRO_SHAPES[kind], kind, 1, tokenizer, model, GGMLQuantizationType.F16)
    smoke_test(fast_server, SETTINGS, model, None, None, "tile", "cpu", tmp_path / "out.json", tmp_path / "log")
    assert (tmp_path / "out.json").is_file()
