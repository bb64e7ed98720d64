import re
from types import SimpleNamespace

import numpy as np
import pytest
from fakeprefix.errors import ModelError
from fakeprefix.model.gguf_file import facts_of_files, facts_of_preset
from fakeprefix.model.presets import PRESETS, preset_named, takes_images, variant
from fakeprefix.model.shapes import HybridShape, TensorSpec
from fakeprefix.model.synthetic import (
    padded,
    read_tokenizer,
    tensor_data,
    with_vision_marks,
    write_model,
    write_projector,
)
from fakeprefix.model.tensor_types import n_bytes, stored_as
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.gguf"
    writer = GGUFWriter(path, "qwen2")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{i}" for i in range(64)])
    writer.add_token_types([1] * 64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def written(vocabulary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_model("tiny-hybrid", {}, 1, vocabulary, folder / "model.gguf")
    write_projector("tiny-hybrid", {}, 1, folder / "mmproj.gguf")
    return folder


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    spec = TensorSpec("blk.0.attn_qkv.weight", (64, 32), "matrix")
    kind = GGMLQuantizationType.Q8_0
    assert np.array_equal(tensor_data(spec, 1, kind), tensor_data(spec, 1, kind))
    assert not np.array_equal(tensor_data(spec, 1, kind), tensor_data(spec, 2, kind))


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.F16])
def test_a_matrix_is_the_same_however_few_of_its_rows_are_in_memory_at_once(kind, monkeypatch):
    spec = TensorSpec("experts", (64, 5, 3), "matrix")
    whole = tensor_data(spec, 1, kind)
    monkeypatch.setattr("fakeprefix.model.synthetic.FLOATS_AT_ONCE", 128)
    assert np.array_equal(tensor_data(spec, 1, kind), whole)
    assert dequantize(whole, kind).std() == pytest.approx(64**-0.5, rel=0.1)
    assert whole.shape[:2] == (3, 5)


def test_no_tensor_is_f64_and_only_matrices_are_quantized(written):
    for tensor in GGUFReader(written / "model.gguf").tensors:
        assert tensor.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0)
        if len(tensor.shape) == 1:
            assert tensor.tensor_type == GGMLQuantizationType.F32


def test_decays_are_negative_and_everything_is_finite():
    for kind in ("decay", "time_step", "norm", "zero", "router", "convolution"):
        data = tensor_data(TensorSpec("x", (64, 4), kind), 1, GGMLQuantizationType.Q8_0)
        assert data.dtype == np.float32
        assert np.isfinite(data).all()
        assert kind != "decay" or (data < 0).all()


def test_a_matrix_whose_rows_do_not_fill_blocks_is_f16():
    assert stored_as(TensorSpec("x", (33, 4), "matrix"), GGMLQuantizationType.Q8_0) == GGMLQuantizationType.F16


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("tiny-")])
def test_facts_of_the_written_files_equal_those_of_the_preset(name, vocabulary, tmp_path):
    mmproj = tmp_path / "mmproj.gguf" if takes_images(name) else None
    write_model(name, {"n_layer": 4}, 1, vocabulary, tmp_path / "model.gguf")
    if mmproj:
        write_projector(name, {"n_layer": 4}, 1, mmproj)
    read = facts_of_files(tmp_path / "model.gguf", mmproj).as_dict()
    preset = facts_of_preset(name, {"n_layer": 4}, n_vocab=64).as_dict()
    # a file has a header, and norms and convolutions in F32, beside its weights
    assert preset.pop("weight_bytes") == pytest.approx(read.pop("weight_bytes"), rel=0.05)
    assert read == preset


def test_every_fourth_layer_is_attention():
    text = PRESETS["tiny-hybrid"].text
    assert [text.is_recurrent(layer) for layer in range(4)] == [True, True, True, False]
    assert facts_of_preset("tiny-hybrid").n_attention_layers == text.n_layer // 4


def test_the_marks_around_images_become_special_tokens_where_there_is_room():
    def tokenizer(n):
        kind = (GGUFValueType.ARRAY, GGUFValueType.STRING)
        return {
            "tokenizer.ggml.tokens": ([f"[PAD{i}]" for i in range(n)], *kind),
            "tokenizer.ggml.token_type": ([4] * n, *kind),
        }

    marked = with_vision_marks(tokenizer(151_936))
    assert marked["tokenizer.ggml.tokens"][0][151_652] == "<|vision_start|>"
    assert marked["tokenizer.ggml.token_type"][0][151_653] == 3
    assert with_vision_marks(tokenizer(64)) == tokenizer(64)


def test_unknown_presets_and_vocabularies_are_refused(tmp_path):
    with pytest.raises(ModelError, match="tiny-hybrid"):
        preset_named("huge")
    with pytest.raises(ModelError, match=r"tiny-attention has no dimension 'n_layers'; did you mean 'n_layer'\?"):
        preset_named("tiny-attention", {"n_layers": 3})
    with pytest.raises(ModelError, match=r"model\.shape\.n_layer: 0 is not positive"):
        preset_named("tiny-hybrid", {"n_layer": 0})
    with pytest.raises(ModelError, match="9 experts are used, there are 8"):
        preset_named("tiny-hybrid", {"n_expert_used": 9})
    with pytest.raises(ModelError, match="tiny-recurrent takes no images"):
        write_projector("tiny-recurrent", {}, 1, tmp_path / "mmproj.gguf")
    (tmp_path / "x.gguf").write_text("not a model")
    with pytest.raises(ModelError):
        read_tokenizer(tmp_path / "x.gguf")


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q2_K, GGMLQuantizationType.Q4_K])
def test_random_blocks_are_weights_with_mean_zero_and_unit_gain(kind):
    spec = TensorSpec("blk.0.ffn_gate_exps.weight", (1024, 64, 3), "matrix")
    data = tensor_data(spec, 1, kind)
    assert data.dtype == np.uint8
    assert data.nbytes == n_bytes(spec, kind)
    assert np.array_equal(data, tensor_data(spec, 1, kind))
    assert not np.array_equal(data, tensor_data(spec, 2, kind))
    weights = dequantize(data, kind)
    assert weights.shape == (3, 64, 1024)
    assert abs(weights.mean()) * 32 < 0.02
    assert weights.std() * 32 == pytest.approx(1, rel=0.02)


def test_the_large_preset_has_the_published_dimensions_and_size():
    facts = facts_of_preset("holo3-35b-a3b")
    assert (facts.n_attention_layers, facts.n_recurrent_layers, facts.n_embd) == (10, 30, 2048)
    assert facts.kv_elements_per_cell == 10 * 2 * 2 * 256
    assert 10.5 < facts.weight_bytes / 2**30 < 13
    assert 18 < facts_of_preset("holo3-35b-a3b-q4").weight_bytes / 2**30 < 21
    # "35B-A3B"
    elements = sum(tensor.n_elements for tensor in PRESETS["holo3-35b-a3b"].text.tensors(248_320))
    assert 34e9 < elements < 36e9
    assert 2.5e9 < facts.active_parameters < 3.5e9


def test_a_disk_without_room_is_refused_before_anything_is_written(vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**30))
    with pytest.raises(ModelError, match=r"holo3-35b-a3b needs .* GiB .* there are 1\.0 GiB"):
        write_model("holo3-35b-a3b", {}, 1, vocabulary, tmp_path / "model.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_vocabulary_is_padded_with_unused_tokens_as_published_ones_are():
    kind = (GGUFValueType.ARRAY, GGUFValueType.STRING)
    n = 151_936
    tokenizer = {
        "tokenizer.ggml.tokens": ([f"t{i}" for i in range(n)], *kind),
        "tokenizer.ggml.token_type": ([1] * n, GGUFValueType.ARRAY, GGUFValueType.INT32),
    }
    more = padded(tokenizer, 248_320)
    tokens, kinds = (more[f"tokenizer.ggml.{key}"][0] for key in ("tokens", "token_type"))
    assert len(tokens) == len(kinds) == len(set(tokens)) == 248_320
    assert tokens[:n] == tokenizer["tokenizer.ggml.tokens"][0]
    assert set(kinds[n:]) == {5}
    assert padded(tokenizer, n) is tokenizer


def test_a_memory_that_cannot_even_hold_the_weights_is_refused_before_anything_is_written(
    vocabulary, tmp_path, monkeypatch
):
    monkeypatch.setattr("fakeprefix.model.synthetic.available_memory", lambda: 8 * 2**30)
    with pytest.raises(ModelError, match=r"needs 1\d\.\d GiB \(weights .*recurrent .*this machine has 8\.0 GiB"):
        write_model("holo3-35b-a3b", {}, 1, vocabulary, tmp_path / "model.gguf")
    assert list(tmp_path.iterdir()) == []


def test_other_dimensions_make_another_model_with_a_name_of_its_own():
    text = preset_named("tiny-hybrid", {"n_layer": 12, "n_expert": 16}).text
    assert (text.n_layer, text.n_expert, text.n_embd) == (12, 16, 512)
    assert variant({}) == ""
    assert re.fullmatch(r"\+[0-9a-f]{8}", variant({"n_layer": 12}))
    assert (
        variant({"n_layer": 12, "n_expert": 16}) == variant({"n_expert": 16, "n_layer": 12}) != variant({"n_layer": 12})
    )


def test_without_experts_it_is_the_dense_architecture():
    dense = HybridShape(4, 64, 2, 1, 64, 64, 1, 2, n_ff=128)
    names = {tensor.name for tensor in dense.tensors(64)}
    assert dense.architecture == "qwen35"
    assert "blk.0.ffn_up.weight" in names
    assert not any("exps" in name for name in names)
    assert "expert_count" not in dense.metadata()
