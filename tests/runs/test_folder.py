from datetime import datetime

import pytest
from fakeprefix.errors import RunError
from fakeprefix.runs import folder as runs

pytestmark = pytest.mark.usefixtures("clean_environment")


def begin(results, name, identity="id", forced=False):
    runs.begin(results, name, identity, {"a": 1}, forced=forced)
    return results / name


def test_the_name_has_date_time_host_and_the_given_name():
    name = runs.new_name("deep", "Node-7.cluster.example", datetime(2026, 1, 2, 3, 4, 5))
    assert name == "2026-01-02_030405_node-7_deep"


def test_choosing_a_run_creates_nothing(tmp_path):
    assert runs.choose(tmp_path / "results", "id", "", "x", "h", may_start=False) == runs.PREVIEW
    assert runs.choose(tmp_path / "results", "id", "", "x", "h", may_start=True) != runs.PREVIEW
    assert list(tmp_path.iterdir()) == []


def test_the_same_identity_continues_and_another_starts_a_run(tmp_path):
    begin(tmp_path, "one", "first")
    assert runs.choose(tmp_path, "first", "", "x", "h", may_start=True) == "one"
    assert runs.choose(tmp_path, "second", "", "x", "h", may_start=True) != "one"
    assert runs.choose(tmp_path, "first", "new", "x", "h", may_start=True) != "one"
    assert (tmp_path / "current").readlink().name == "one"


def test_a_requested_run_must_exist(tmp_path):
    begin(tmp_path, "one")
    assert runs.choose(tmp_path, "other", "one", "x", "h", may_start=True) == "one"
    with pytest.raises(RunError, match="no such run folder"):
        runs.choose(tmp_path, "other", "two", "x", "h", may_start=True)


def test_jobs_take_the_name_from_the_main_process(tmp_path, monkeypatch):
    monkeypatch.setenv(runs.ENVIRONMENT_KEY, "given")
    assert runs.choose(tmp_path, "id", "", "x", "h", may_start=False) == "given"


def test_the_identity_depends_on_the_experiment_and_not_on_its_name():
    one = runs.identity_of({"run": "", "run_name": "a", "plan": {"w": 1}}, "series", "code")
    assert one == runs.identity_of({"run": "new", "run_name": "b", "plan": {"w": 1}}, "series", "code")
    assert one != runs.identity_of({"run": "", "run_name": "a", "plan": {"w": 2}}, "series", "code")
    assert one != runs.identity_of({"run": "", "run_name": "a", "plan": {"w": 1}}, "other", "code")


def test_a_sealed_run_is_only_written_to_when_forced_and_the_seal_breaks_visibly(tmp_path):
    folder = begin(tmp_path, "one")
    (folder / "report.html").write_text("x")
    runs.seal(folder)
    assert runs.verify(folder) == []
    with pytest.raises(RunError, match="is sealed"):
        begin(tmp_path, "one")
    assert runs.is_sealed(folder)
    begin(tmp_path, "one", forced=True)
    assert not runs.is_sealed(folder)
    assert len(runs.seal(folder)["broken_seals"]) == 1


def test_verify_names_what_was_changed_removed_and_added(tmp_path):
    folder = begin(tmp_path, "one")
    for name in ("a", "b"):
        (folder / name).write_text(name)
    runs.seal(folder)
    (folder / "a").write_text("other")
    (folder / "b").unlink()
    (folder / "c").write_text("c")
    assert runs.verify(folder) == ["changed: a", "missing: b", "extra: c"]
    with pytest.raises(RunError, match="not sealed"):
        runs.verify(tmp_path / "nothing")


def test_rows_of_an_earlier_attempt_are_moved_and_never_overwritten(tmp_path):
    raw = tmp_path / "raw" / "baseline"
    moved = []
    for content in ("first", "second"):
        raw.mkdir(parents=True, exist_ok=True)
        (raw / ".1.kept.jsonl").write_text(content)
        moved.append(runs.supersede(tmp_path, raw / ".1.kept.jsonl"))
    assert [path.read_text() for path in moved] == ["first", "second"]
    assert moved[0].parent == tmp_path / "raw" / "superseded" / "baseline"
    assert runs.supersede(tmp_path, raw / ".1.kept.jsonl") is None
