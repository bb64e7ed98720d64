import pandas as pd
import pytest
from fakeprefix.errors import RunError
from fakeprefix.report.comparison import write_comparison
from fakeprefix.storage import read_json
from sealed_run import sealed_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    return {
        "first": sealed_run(results, "first"),
        "second": sealed_run(results, "second"),
        "slow": sealed_run(results, "slow", slower=2.0),
        "other machine": sealed_run(results, "other-machine", slower=2.0, host="g"),
        "shorter": sealed_run(results, "shorter", n_steps=5),
        "two repetitions": sealed_run(results, "two-repetitions", repetitions=2),
    }


def compared(runs, tmp_path, *names):
    lines = write_comparison([runs[name] for name in names], tmp_path / "out")
    return lines, pd.read_parquet(tmp_path / "out" / "compare.parquet")


def test_equal_runs_have_equal_times_and_nothing_speaks_against_it(runs, tmp_path):
    lines, table = compared(runs, tmp_path, "first", "second")
    assert lines == []
    sums = table[table.level == "sum"].set_index("arm")
    assert sorted(sums.index) == ["baseline", "fake_prefix"]
    assert sums.ratio.tolist() == pytest.approx([1, 1], abs=0.01)
    assert (sums.ratio_low <= sums.ratio).all() and (sums.ratio <= sums.ratio_high).all()
    assert sums.steps.tolist() == [4, 4]
    assert sums.n.tolist() == [5, 5]
    assert "No comparability problem found" in (tmp_path / "out" / "compare.html").read_text()


def test_a_machine_that_was_slower_that_day_is_noticed_by_its_probe(runs, tmp_path):
    lines, table = compared(runs, tmp_path, "first", "slow")
    assert len(lines) == 1
    assert "its probe took" in lines[0]
    assert table.ratio.tolist() == pytest.approx([2] * len(table), rel=0.02)


def test_another_machine_is_highlighted_and_not_called_unfair(runs, tmp_path):
    lines, _ = compared(runs, tmp_path, "first", "other machine")
    assert lines == []
    found = read_json(tmp_path / "out" / "compare.json")["differences"]
    assert {"section": "host", "name": "cpu.model", "values": ["processor of h", "processor of g"]} in found
    page = (tmp_path / "out" / "compare.html").read_text()
    assert '<td class="differs">processor of g</td>' in page


def test_steps_that_only_one_run_has_and_few_repetitions_are_said(runs, tmp_path):
    lines, table = compared(runs, tmp_path, "first", "shorter", "two repetitions")
    assert any("2 steps were measured by one of them only" in line for line in lines)
    assert any("two-repetitions and first: fewer than 3 repetitions" in line for line in lines)
    assert (table[(table.run == "shorter") & (table.level == "sum")].steps == 3).all()


def test_other_models_engines_and_fills_are_warned_of(runs, tmp_path, monkeypatch):
    from fakeprefix.report import comparison as compare

    original = compare._facts

    def facts(folder):
        found = original(folder)
        if folder.name == "second":
            found["model"]["sha256"] = "cd"
            found["engine"] |= {"settled.n_ubatch": "256", "flags.GGML_NATIVE": "OFF"}
            found["config"]["measure.fill"] = "zero"
        return found

    monkeypatch.setattr(compare, "_facts", facts)
    lines, _ = compared(runs, tmp_path, "first", "second")
    for words in ("the models differ", "other n_ubatch", "built otherwise (GGML_NATIVE)", "another fill"):
        assert any(words in line for line in lines), words


def test_what_cannot_be_compared_is_one_line_and_writes_nothing(runs, tmp_path):
    with pytest.raises(RunError, match="at least two"):
        write_comparison([runs["first"]], tmp_path / "out")
    with pytest.raises(RunError, match="is not sealed"):
        write_comparison([runs["first"], tmp_path], tmp_path / "out")
    with pytest.raises(RunError, match="twice"):
        write_comparison([runs["first"], runs["first"]], tmp_path / "out")
    assert not (tmp_path / "out").exists()
