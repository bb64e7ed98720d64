import numpy as np
import pytest
from fakeprefix.errors import ModelError
from fakeprefix.model.gguf_file import facts_of_files, facts_of_preset
from fakeprefix.model.shapes import PRESETS, TensorSpec, preset_named
from fakeprefix.model.synthetic import (
    read_tokenizer,
    tensor_data,
    tensor_type,
    with_vision_marks,
    write_model,
)
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter


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
    write_model("tiny-hybrid", 1, vocabulary, folder / "model.gguf", folder / "mmproj.gguf")
    return folder


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    spec = TensorSpec("blk.0.attn_qkv.weight", (64, 32), "matrix")
    kind = GGMLQuantizationType.Q8_0
    assert np.array_equal(tensor_data(spec, 1, kind), tensor_data(spec, 1, kind))
    assert not np.array_equal(tensor_data(spec, 1, kind), tensor_data(spec, 2, kind))


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
    assert tensor_type(TensorSpec("x", (33, 4), "matrix"), GGMLQuantizationType.Q8_0) == GGMLQuantizationType.F16


def test_facts_of_the_written_files_equal_those_of_the_preset(written):
    read = facts_of_files(written / "model.gguf", written / "mmproj.gguf").as_dict()
    preset = facts_of_preset("tiny-hybrid", n_vocab=64).as_dict()
    # a file has a header, and norms and convolutions in F32, beside its weights
    assert preset.pop("weight_bytes") == pytest.approx(read.pop("weight_bytes"), rel=0.05)
    assert read == preset


def test_every_fourth_layer_is_attention():
    text = PRESETS["tiny-hybrid"].text
    assert [text.is_recurrent(layer) for layer in range(4)] == [True, True, True, False]
    assert text.n_attention_layers == text.n_layer // 4


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
    (tmp_path / "x.gguf").write_text("not a model")
    with pytest.raises(ModelError):
        read_tokenizer(tmp_path / "x.gguf")
