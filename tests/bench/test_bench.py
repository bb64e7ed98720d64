import json

import pytest
from fakeprefix.bench.__main__ import main
from fakeprefix.bench.planning import plan_million
from fakeprefix.bench.table import describe


def test_planning_is_measured_in_a_process_of_its_own():
    found = plan_million(5000)
    assert found["steps"] == 5000
    assert found["wall_s"] > 0
    assert 2**24 < found["peak_bytes"] < 2**31


def test_the_table_says_what_each_figure_is_and_its_aim():
    text = describe({"planning": {"steps": 1000, "wall_s": 1.25, "peak_bytes": 2**30}})
    assert text == "Planning 1,000 steps: 1.2 s, 1.00 GiB at most (aim: 20 s, 2 GiB).\n"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.9, 1.1, "yes"), (0.7, 0.8, "no"), (1.25, 1.3, "no"), (0.8, 1.0, "not shown"), (1.0, 1.3, "not shown")],
)
def test_answers_are_the_same_only_if_the_whole_interval_lies_within_the_margin(low, high, verdict):
    ratio = {"answer_ratio": (low + high) / 2, "answer_ratio_low": low, "answer_ratio_high": high}
    floor = {"noise_floor": 1.0, "noise_floor_low": 1.0, "noise_floor_high": 1.0}
    row = describe({"answers": [{"depth": 1024, "rounds": 7, **ratio, **floor}]}).splitlines()[-1]
    assert [cell.strip() for cell in row.split("|")][-2] == verdict


@pytest.mark.engine
def test_all_parts_run_on_the_real_engine_and_are_written(fast_server, tmp_path):
    arguments = ["--output", str(tmp_path), "--depths", "512", "1024", "--repetitions", "2", "--rounds", "2"]
    assert main([*arguments, "--attention-rounds", "2", "--answers-budget-s", "0", "--steps", "2000"]) == 0
    found = json.loads((tmp_path / "bench.json").read_text())
    assert [row["depth"] for row in found["sweep"]["rows"]] == [512, 1024]
    assert all(len(row["our_ms"]) == 2 for row in found["sweep"]["rows"])
    assert [(row["depth"], row["rounds"]) for row in found["answers"]] == [(512, 2), (1024, 2)]
    for row in found["answers"]:
        assert [len(samples) for block in row["blocks"] for samples in block.values()] == [2] * 6
        assert row["blocks"][0]["after_ms"] == row["blocks"][1]["before_ms"]
    assert len(found["installs"]) == 2 * 3
    assert {row["content"] for row in found["attention"]} >= {"random", "zero", "16 numbers", "V zero"}
    assert 0 < found["overhead"]["share_outside_server"] < 1
    text = (tmp_path / "bench.md").read_text()
    for word in ("Depth sweep", "zero", "not spent in the server", "Planning 2,000 steps", "nearly equal"):
        assert word in text
