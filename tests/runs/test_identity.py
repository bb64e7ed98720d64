"""What continues a run, what analyses it anew, and what starts another."""

import os

import pytest
from conftest import WORKFLOW
from fakeprefix.runs import identity as identities
from fakeprefix.runs.identity import content_digests, differing_keys, flattened, identity_of
from fakeprefix.storage import sha256_file

CONFIG = {"run": "", "run_name": "a", "node_type": "", "plan": {"w": 1}, "analysis": {"margin": 0.1}}


def identity(config=CONFIG, series="s", contents=None, measuring="m", analysis="a"):
    return identity_of(config, series, contents or {}, measuring, analysis)


@pytest.mark.parametrize(
    "other",
    [
        identity(CONFIG | {"run": "new"}),
        identity(CONFIG | {"run_name": "b"}),
        identity(CONFIG | {"analysis": {"margin": 0.2}}),
        identity(analysis="other"),
    ],
)
def test_names_and_analysis_do_not_change_what_is_measured(other):
    assert other.name == identity().name


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (identity(CONFIG | {"plan": {"w": 2}}), "plan.w"),
        (identity(CONFIG | {"node_type": "big"}), "node_type"),
        (identity(series="other"), "patch series"),
        (identity(contents={"t.jsonl": "00"}), "content of t.jsonl"),
        (identity(measuring="other"), "code that measures"),
    ],
)
def test_what_changes_a_raw_row_changes_the_measurement_by_its_key(other, key):
    assert other.name != identity().name
    assert differing_keys(identity().measurement, other.measurement) == [key]
    assert other.analysis == identity().analysis


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (identity(CONFIG | {"analysis": {"margin": 0.2}}), "analysis.margin"),
        (identity(analysis="other"), "code of analysis and report"),
    ],
)
def test_what_changes_the_analysis_is_named_by_its_key(other, key):
    assert differing_keys(identity().analysis, other.analysis) == [key]


def test_settings_are_flattened_as_a_file_gives_them_back():
    assert flattened({"a": {"b": {"c": (1, 2)}, "d": {}}, "e": 1}, ["a"]) == {"a.b.c": [1, 2], "a.d": {}}


def test_a_key_without_a_value_differs_from_none():
    assert differing_keys({"a": None}, {}) == ["a"]


def test_a_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    file, cache = tmp_path / "model.gguf", tmp_path / "digests.json"
    file.write_text("one")
    first = content_digests([file, tmp_path / "missing"], cache)
    assert first == {str(file): sha256_file(file)}
    monkeypatch.setattr(identities, "sha256_file", lambda _: pytest.fail("read again"))
    assert content_digests([file], cache) == first
    monkeypatch.undo()
    # the same size, at another time
    file.write_text("two")
    os.utime(file, ns=(1, 1))
    assert content_digests([file], cache) == {str(file): sha256_file(file)} != first


def test_a_cache_that_cannot_be_read_or_written_is_no_error(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_text("one")
    (tmp_path / "digests.json").write_text("{")
    assert content_digests([file], tmp_path / "digests.json") == {str(file): sha256_file(file)}
    assert content_digests([file], file / "digests.json") == {str(file): sha256_file(file)}


@pytest.mark.parametrize("rules", ["host", "engine", "model", "trace", "measure"])
def test_no_rule_before_the_analysis_depends_on_its_settings_or_code(rules):
    text = (WORKFLOW / "rules" / f"{rules}.smk").read_text()
    assert 'CONFIG["analysis"]' not in text
    assert 'code("analysis")' not in text
    # the whole configuration would have it too
    assert "=CONFIG," not in text
