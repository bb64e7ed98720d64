from datetime import datetime

import pytest
import yaml
from fakeprefix.errors import RunError
from fakeprefix.runs import folder as runs
from fakeprefix.runs.identity import identity_of
from fakeprefix.runs.superseded import supersede
from fakeprefix.storage import read_json

pytestmark = pytest.mark.usefixtures("clean_environment")


CONFIG = {"run": "", "run_name": "x", "plan": {"w": 1, "list": [1, 2]}, "analysis": {"margin": 0.1}}


def identity(plan=1, margin=0.1, code="code"):
    config = CONFIG | {"plan": {"w": plan, "list": [1, 2]}, "analysis": {"margin": margin}}
    return identity_of(config, "series", {}, code, "analysis code")


def begin(results, name, which=None, forced=False, packs=False):
    runs.begin(results, name, which or identity(), CONFIG, forced=forced, packs=packs)
    return results / name


def choose(results, which=None, requested="", may_start=True):
    reserved = results.parent / "reserved"
    return runs.choose(results, which or identity(), requested, "x", "h", may_start=may_start, reserved=reserved)


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def sealed(results):
    folder = begin(results, "one")
    for name in ("a", "b"):
        (folder / name).write_text(name)
    runs.seal(folder)
    return folder


def test_the_name_has_date_time_host_and_the_given_name():
    name = runs.new_name("deep", "Node-7.cluster.example", datetime(2026, 1, 2, 3, 4, 5))
    assert name == "2026-01-02_030405_node-7_deep"


def test_choosing_a_run_creates_nothing_among_the_results(results):
    assert choose(results, may_start=False) == runs.PREVIEW
    assert choose(results) != runs.PREVIEW
    assert not results.exists()


def test_two_names_given_in_the_same_second_are_two(results, monkeypatch):
    monkeypatch.setattr(runs, "new_name", lambda *_: "name")
    # neither has begun when the second one is given its name
    names = [choose(results), choose(results, identity(plan=2))]
    assert names == ["name", "name-2"]
    folders = [begin(results, names[0]), begin(results, names[1], identity(plan=2))]
    assert all((folder / "pipeline" / "identity.json").is_file() for folder in folders)
    assert choose(results) == "name"
    assert choose(results, identity(plan=2)) == "name-2"


def test_the_name_of_a_run_that_is_there_is_not_given_again(results, monkeypatch):
    begin(results, "name")
    monkeypatch.setattr(runs, "new_name", lambda *_: "name")
    assert choose(results, requested="new") == "name-2"


def test_a_folder_that_is_no_run_is_not_taken_over(results):
    (results / "name").mkdir(parents=True)
    (results / "name" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="no run folder"):
        begin(results, "name")
    assert [path.name for path in (results / "name").iterdir()] == ["notes.txt"]


def test_the_same_identity_continues_and_another_starts_a_run(results):
    begin(results, "one")
    assert choose(results) == "one"
    assert choose(results, identity(plan=2)) != "one"
    assert choose(results, identity(code="other")) != "one"
    assert choose(results, requested="new") != "one"
    assert (results / "current").readlink().name == "one"


def test_a_requested_run_must_exist(results):
    begin(results, "one")
    assert choose(results, requested="one") == "one"
    with pytest.raises(RunError, match="no such run folder"):
        choose(results, requested="two")


def test_a_requested_run_of_another_measurement_is_refused_with_the_keys(results):
    folder = begin(results, "one")
    before = sorted(results.rglob("*"))
    with pytest.raises(RunError, match=r"differs in: code that measures, plan\.w;"):
        choose(results, identity(plan=2, code="other"), requested="one")
    # an older run has its settings only
    (folder / "pipeline" / "identity.json").unlink()
    before.remove(folder / "pipeline" / "identity.json")
    with pytest.raises(RunError, match=r"differs in: plan\.w;"):
        choose(results, identity(plan=2, code="other"), requested="one")
    assert choose(results, identity(code="other"), requested="one") == "one"
    assert sorted(results.rglob("*")) == before


def test_an_older_run_is_not_what_a_later_call_continues(results):
    folder = begin(results, "one")
    (folder / "pipeline" / "identity.json").unlink()
    begin(results, "one", identity(code="other"))
    assert choose(results, identity(code="other")) != "one"


def test_jobs_take_the_name_from_the_main_process(results, monkeypatch):
    monkeypatch.setenv(runs.ENVIRONMENT_KEY, "given")
    assert choose(results, may_start=False) == "given"


def test_a_sealed_run_is_only_written_to_when_forced_and_the_seal_breaks_visibly(results, sealed):
    assert runs.verify(sealed) == []
    with pytest.raises(RunError, match="is sealed"):
        begin(results, "one")
    begin(results, "one", packs=True)
    assert runs.is_sealed(sealed)
    begin(results, "one", forced=True)
    assert not runs.is_sealed(sealed)
    assert len(runs.seal(sealed)["broken_seals"]) == 1


@pytest.mark.parametrize("packs", [False, True])
def test_another_analysis_goes_on_in_the_same_run_and_the_seal_breaks_visibly(packs, results, sealed):
    assert choose(results, identity(margin=0.2)) == "one"
    changed = CONFIG | {"analysis": {"margin": 0.2}}
    runs.begin(results, "one", identity(margin=0.2), changed, forced=False, packs=packs)
    assert not runs.is_sealed(sealed)
    assert yaml.safe_load((sealed / "pipeline" / "config.yaml").read_text())["analysis"] == {"margin": 0.2}
    assert read_json(sealed / "pipeline" / "identity.json")["analysis"]["analysis.margin"] == 0.2
    (broken,) = runs.seal(sealed)["broken_seals"]
    assert broken["analysed_otherwise"] == ["analysis.margin"]
    assert broken["differences"] == []
    assert choose(results) == "one"


def test_a_damaged_run_is_refused_with_what_differs_and_what_to_do(results, sealed):
    runs.require_undamaged(results, "one", ["--cores", "2"])
    (sealed / "a").write_text("x")
    (sealed / "b").unlink()
    with pytest.raises(RunError, match=r"changed: a; missing: b\); restore it .*run=new, .*-R RULE") as refused:
        runs.require_undamaged(results, "one", ["--cores", "2", "-n"])
    assert "\n" not in str(refused.value)
    for arguments in (["-R", "report"], ["-Rreport"], ["--forcerun=report"], ["--forceall"], ["--unlock"]):
        runs.require_undamaged(results, "one", arguments)


def test_what_is_new_or_not_sealed_or_only_added_to_is_not_damaged(results, sealed, monkeypatch):
    (sealed / "notes.txt").write_text("mine")
    runs.require_undamaged(results, "one", [])
    begin(results, "two")
    runs.require_undamaged(results, "two", [])
    runs.require_undamaged(results, "three", [])
    (sealed / "a").unlink()
    # a job of a run that breaks its seal
    monkeypatch.setenv(runs.ENVIRONMENT_KEY, "one")
    runs.require_undamaged(results, "one", [])


def test_a_rule_that_is_rerun_does_not_hide_what_else_was_damaged(results, sealed):
    (sealed / "a").write_text("x")
    begin(results, "one", forced=True)
    assert runs.seal(sealed)["broken_seals"][0]["differences"] == ["changed: a"]


def test_verify_names_what_was_changed_removed_and_added(sealed, tmp_path):
    (sealed / "a").write_text("other")
    (sealed / "b").unlink()
    (sealed / "c").write_text("c")
    assert runs.verify(sealed) == ["changed: a", "missing: b", "extra: c"]
    with pytest.raises(RunError, match="not sealed"):
        runs.verify(tmp_path / "nothing")


def test_rows_of_an_earlier_attempt_are_moved_and_never_overwritten(tmp_path):
    raw = tmp_path / "raw" / "baseline"
    moved = []
    for content in ("first", "second"):
        raw.mkdir(parents=True, exist_ok=True)
        (raw / ".1.kept.jsonl").write_text(content)
        moved.append(supersede(tmp_path, raw / ".1.kept.jsonl"))
    assert [path.read_text() for path in moved] == ["first", "second"]
    assert moved[0].parent == tmp_path / "raw" / "superseded" / "baseline"
    assert supersede(tmp_path, raw / ".1.kept.jsonl") is None
