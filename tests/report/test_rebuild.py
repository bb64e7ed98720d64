import pytest
from fakeprefix.errors import RunError
from fakeprefix.report.rebuild import rebuild
from fakeprefix.runs.archive import pack, restore
from fakeprefix.runs.folder import verify
from fakeprefix.storage import read_json
from sealed_run import sealed_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return sealed_run(tmp_path_factory.mktemp("results"), "2026-01-01_000000_h_small", drawn=True)


def test_a_restored_run_gives_the_same_tables_plots_and_report_once_more(run, tmp_path):
    pack(run, tmp_path / "a.tar.zst")
    back = restore(tmp_path / "a.tar.zst", tmp_path / "results")
    found = rebuild(back, tmp_path / "rebuilt" / back.name)
    assert found["other"] == []
    assert {"report.html", "summary.json", "replay.parquet", "analysis/waterfall.svg"} <= set(found["same"])
    again = tmp_path / "rebuilt" / back.name
    assert (again / "report.html").read_bytes() == (run / "report.html").read_bytes()
    assert read_json(again / "rebuilt.json") == found
    assert verify(back) == []
    assert [path.name for path in (tmp_path / "rebuilt").iterdir()] == [back.name]


def test_another_way_of_analysing_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr("fakeprefix.analysis.verdict.AGREES", "agrees indeed")
    found = rebuild(run, tmp_path / "again")
    assert "summary.json" in found["other"]
    assert "measurements.parquet" not in found["same"] + found["other"]


def test_what_cannot_be_rebuilt_is_one_line_and_leaves_nothing(run, tmp_path):
    with pytest.raises(RunError, match="is not sealed"):
        rebuild(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "there").mkdir()
    with pytest.raises(RunError, match="exists already"):
        rebuild(run, tmp_path / "there")
    changed = sealed_run(tmp_path, "changed")
    (changed / "summary.json").write_text("{}")
    with pytest.raises(RunError, match=r"changed: summary\.json"):
        rebuild(changed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_of_an_older_version_is_refused_and_leaves_nothing(run, tmp_path, monkeypatch):
    def missing(folder):
        raise FileNotFoundError(2, "No such file", "trace/import.json")

    monkeypatch.setattr("fakeprefix.report.rebuild.analyse_folder", missing)
    with pytest.raises(RunError, match="cannot be rebuilt by this version"):
        rebuild(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
