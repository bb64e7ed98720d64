import re
from typing import get_args

import pytest
import yaml
from conftest import ROOT
from fakeprefix.arms import ARMS, FILLS
from fakeprefix.errors import ConfigError
from fakeprefix.model.presets import PRESETS
from fakeprefix.settings import Measure, require_files, resolve
from fakeprefix.settings.reference import MANUAL_FILE, SCHEMA_FILE, json_schema, keys, manual, write
from fakeprefix.settings.sections import ArmName, Fill, Preset, TraceFormat
from fakeprefix.trace.importing import FORMATS
from pydantic import ValidationError


def test_the_shipped_configuration_is_valid_and_spells_out_nothing_but_defaults():
    shipped = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    assert resolve(shipped) == resolve({})


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_overlay_is_valid(path):
    assert resolve(yaml.safe_load(path.read_text()))


def test_every_setting_has_a_description_and_every_level_of_the_schema_is_closed():
    assert [key.name for key in keys() if not key.description] == []
    schema = json_schema()
    assert schema["additionalProperties"] is False
    for section in schema["$defs"].values():
        assert section["additionalProperties"] is False
        assert section["description"]


def test_schema_and_manual_in_the_repository_are_those_of_the_types(tmp_path):
    write(tmp_path)
    for file in (SCHEMA_FILE, MANUAL_FILE):
        assert (ROOT / file).read_text() == (tmp_path / file).read_text(), (
            "run: python -m fakeprefix.settings.reference"
        )


def test_the_manual_has_every_key_with_its_unit():
    documented = set(re.findall(r"^\| `([a-z0-9_.]+)` \|", manual(), flags=re.MULTILINE))
    assert documented == {key.name for key in keys()}
    assert "| `measure.timeout_s` | `7200.0` | seconds |" in manual()


def test_words_that_settings_know_are_those_of_the_tables_they_stand_for():
    assert get_args(ArmName) == tuple(ARMS)
    assert get_args(Fill) == FILLS
    assert set(get_args(Preset)) == set(PRESETS)
    assert set(get_args(TraceFormat)) == {"auto", *FORMATS}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"measure": {"repetition": {}}}, "measure.repetition is not a key; did you mean 'repetitions'?"),
        ({"modell": {}}, "modell is not a key; did you mean 'model'?"),
        ({"zzz": 1}, "zzz is not a key; known are"),
        ({"measure": {"fill": "warm"}}, "measure.fill = 'warm'"),
        ({"plan": {"bucket_width": 1000}}, "bucket_width = 1000: is not a multiple of 256"),
        ({"plan": {"bucket_width": "many"}}, "plan.bucket_width = 'many'"),
        ({"model": {"kind": "gguf"}}, "model.path is empty"),
        ({"trace": {"source": "file"}}, "trace.path is empty"),
        ({"engine": {"source": {"kind": "path"}}}, "engine.source.path is empty"),
        ({"engine": {"run": {"n_batch": 64, "n_ubatch": 128}}}, "n_ubatch = 128 is more than n_batch = 64"),
        ({"measure": {"arms": ["baseline", "baseline"]}}, "measure.arms"),
        (
            {"measure": {"fidelity": {"max_rounds": 10, "min_rounds": 20}}},
            "max_rounds = 10 is less than min_rounds = 20",
        ),
        ({"measure": {"fidelity": {"fills": ["zero"]}}}, "measure.fidelity.fills lacks 'tile'"),
        ({"run": "../elsewhere"}, "run = '../elsewhere'"),
        ({"engine": {"run": {"n_gpu_layers": 10}}}, "n_gpu_layers = 10 needs engine.build.backend: cuda or vulkan"),
        ({"engine": {"build": {"backend": "cuda"}, "run": {"n_gpu_layers": 0}}}, "keeps no layer on the GPU"),
        ({"engine": {"build": {"backend": "metal"}}}, "engine.build.backend = 'metal'"),
        ({"model": {"shape": {"n_layer": "many"}}}, "model.shape.n_layer = 'many'"),
        (
            {"plan": {"real_prefix_up_to": 4096}, "measure": {"arms": ["baseline"]}},
            "fake_prefix, which is not in measure.arms",
        ),
        ({"measure": {"real_prefix_up_to": 4096}}, "measure.real_prefix_up_to is now plan.real_prefix_up_to"),
        ({"measure": {"timeout_s": "5 min"}}, "measure.timeout_s = '5 min': must be a number, in seconds"),
        ({"plan": {"bucket_width": True}}, "plan.bucket_width = True: must be a whole number, in tokens"),
        ({"engine": "cpu"}, "engine = 'cpu': must be a set of keys and values"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_key_and_a_remedy(config, message):
    with pytest.raises(ConfigError) as error:
        resolve(config)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_strings_of_the_command_line_are_read_as_what_the_schema_wants():
    config = resolve(
        {"trace": {"grid": {"prefix_tokens": "[1, 10]"}}, "plan": {"bucket_width": "512"}, "run_name": "7"}
    )
    assert config.trace.grid.prefix_tokens == (1, 10)
    assert config.plan.bucket_width == 512
    assert config.run_name == "7"


def test_a_list_of_strings_where_numbers_are_wanted_is_read_or_refused():
    assert resolve({"trace": {"grid": {"new_tokens": ["1", "2"]}}}).trace.grid.new_tokens == (1, 2)
    with pytest.raises(ConfigError):
        resolve({"trace": {"grid": {"new_tokens": ["one"]}}})


def test_resolving_changes_nothing_in_what_it_was_given():
    given = {"plan": {}}
    resolve(given)
    assert given == {"plan": {}}


@pytest.mark.parametrize(("backend", "layers"), [("cpu", 0), ("cuda", 999), ("vulkan", 999)])
def test_a_gpu_gets_all_layers_unless_told_otherwise(backend, layers):
    assert resolve({"engine": {"build": {"backend": backend}}}).engine.run.n_gpu_layers == layers


def test_files_that_are_not_there_are_named_with_their_key(tmp_path):
    model = tmp_path / "model.gguf"
    model.touch()
    mine = {"model": {"kind": "gguf", "path": str(model)}, "trace": {"source": "file", "path": str(tmp_path)}}
    require_files(resolve(mine))
    mine["model"]["mmproj"] = "/data/gone.gguf"
    with pytest.raises(ConfigError, match=r"model\.mmproj = '/data/gone\.gguf': there is no such file; fill in"):
        require_files(resolve(mine))
    shipped = yaml.safe_load((ROOT / "config" / "holo3.yaml").read_text())
    with pytest.raises(ConfigError, match=r"model\.path = .*there is no such file"):
        require_files(resolve(shipped))


def test_settings_cannot_be_changed_and_go_through_params_unharmed():
    measure = resolve({}).measure
    with pytest.raises(ValidationError, match="frozen"):
        measure.fill = "zero"
    assert Measure.of_params(measure.as_params()) == measure


def test_a_word_that_yaml_takes_for_a_truth_value_stays_a_word():
    assert resolve({"engine": {"run": {"flash_attn": "on"}}}).engine.run.flash_attn == "on"
