import pytest
from fakeprefix.errors import ModelError
from fakeprefix.model.gguf_file import facts_of_files, facts_of_preset
from fakeprefix.model.memory import memory_need, refuse_if_too_large
from fakeprefix.model.needs import prefill_seconds
from gguf import GGUFWriter


def write_gguf(path, architecture, **metadata):
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        name = key.replace("__", ".")
        writer.add_string(name, value) if isinstance(value, str) else writer.add_uint32(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def llama(path, n_embd=64):
    return write_gguf(
        path,
        "llama",
        llama__block_count=2,
        llama__embedding_length=n_embd,
        llama__context_length=4096,
        llama__attention__head_count=4,
        llama__attention__head_count_kv=2,
    )


def clip(path, width):
    return write_gguf(path, "clip", clip__vision__projection_dim=width, clip__vision__patch_size=16)


def test_a_plain_attention_model_has_kv_cells_in_all_layers(tmp_path):
    facts = facts_of_files(llama(tmp_path / "m.gguf"), None)
    assert (facts.n_attention_layers, facts.n_recurrent_layers, facts.recurrent_bytes) == (2, 0, 0)
    assert facts.kv_elements_per_cell == 2 * 2 * 2 * 16
    assert facts.image is None


def test_files_that_cannot_be_used_are_refused_with_the_key(tmp_path):
    with pytest.raises(ModelError, match=r"model\.path: .*no such file"):
        facts_of_files(tmp_path / "gone.gguf", None)
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        facts_of_files(tmp_path / "text.gguf", None)
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00")
    with pytest.raises(ModelError, match="damaged"):
        facts_of_files(tmp_path / "cut.gguf", None)
    with pytest.raises(ModelError, match="architecture 'strange' is not supported"):
        facts_of_files(write_gguf(tmp_path / "s.gguf", "strange"), None)


def test_a_projector_of_another_width_or_kind_is_refused(tmp_path):
    model = llama(tmp_path / "m.gguf", 64)
    assert facts_of_files(model, clip(tmp_path / "p.gguf", 64)).image.patch == 16
    with pytest.raises(ModelError, match="width 32, the model's is 64"):
        facts_of_files(model, clip(tmp_path / "q.gguf", 32))
    with pytest.raises(ModelError, match="not a projector"):
        facts_of_files(model, model)


def test_a_later_part_of_a_split_model_is_refused_and_a_missing_one_is_named(tmp_path):
    with pytest.raises(ModelError, match="part 2 of 3; name the first part"):
        facts_of_files(tmp_path / "m-00002-of-00003.gguf", None)
    llama(tmp_path / "m-00001-of-00002.gguf")
    with pytest.raises(ModelError, match=r"m-00002-of-00002\.gguf is missing"):
        facts_of_files(tmp_path / "m-00001-of-00002.gguf", None)


def test_memory_counts_kv_cells_of_attention_layers_only():
    facts = facts_of_preset("tiny-hybrid")
    short, long = (memory_need(facts, n, 512, "f16", "f16") for n in (1024, 2048))
    assert short.kv_cells == 1024 * 2 * 2 * 2 * 64 * 2
    assert long.kv_cells == 2 * short.kv_cells
    assert short.recurrent == long.recurrent == facts.recurrent_bytes
    with pytest.raises(ModelError, match="cache_type_k"):
        memory_need(facts, 1024, 512, "q9", "f16")
    refuse_if_too_large(short, 2**40)
    with pytest.raises(ModelError, match="this machine has"):
        refuse_if_too_large(short, 2**20)


def test_the_time_estimate_grows_with_depth():
    facts = facts_of_preset("tiny-hybrid")
    assert prefill_seconds(facts, 16_384, 128, 2) > prefill_seconds(facts, 1024, 128, 2) > 0
