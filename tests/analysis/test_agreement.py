import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pandas as pd
import pytest
from fakeprefix.analysis.agreement import Settings, analyse, write_analysis
from fakeprefix.analysis.drift import probe_drift
from fakeprefix.analysis.verdict import agreement, verdict
from fakeprefix.errors import MeasureError
from fakeprefix.measure.records import join_records
from fakeprefix.planning.steps import PlanRules, plan_file, read_planned
from fakeprefix.report.page import decode_statement, policy_statement
from fakeprefix.report.plots import draw_all
from fakeprefix.storage import write_json
from fakeprefix.trace.steps import Step, write_steps
from sealed_run import cost_ms, record

CONFIG = {
    "confidence": 0.95,
    "bootstrap": 300,
    "seed": 1,
    "agreement_margin": 0.1,
    "max_drift": 0.2,
    "equivalence_margin": 0.02,
}
PLAN = {"n_steps": 6, "n_rejected": 0, "n_unmeasurable": 0, "n_measured": 4, "n_ctx": 4096}


@pytest.fixture
def run(tmp_path):
    """A run without noise: 6 steps in 2 buckets, 4 of them measured, whole prompts 10 times as slow."""
    steps = [Step("t", i, 300 + 300 * i, 100 + 10 * (i % 3), decode_s=1.0, exec_s=0.5) for i in range(6)]
    write_steps(tmp_path / "steps.parquet", steps)
    rules = PlanRules("reject", 100_000, 1024, 2)
    plan_file(tmp_path / "steps.parquet", rules, tmp_path / "plan.parquet", tmp_path / "rejected.parquet")
    planned = read_planned(tmp_path / "plan.parquet")
    rows, calls = [], [{"purpose": "naive", "results": [{"n_prompt": 512, "n_depth": 0, "samples_ns": [512e6, 512e6]}]}]
    chunks = []
    for item in planned:
        if item.status != "measured":
            continue
        step, bucket = item.step, item.bucket
        cost = cost_ms(step.prefix_tokens, step.new_tokens)
        for repetition in range(3):
            rows.append(record("fake_prefix", step, bucket, repetition, cost))
            rows.append(record("baseline", step, bucket, repetition, 10 * cost))
            rows.append(record("probe", step, bucket, repetition, 50.0, job=f"fake_prefix/{bucket}", task_id="(probe)"))
        result = {"n_prompt": step.new_tokens, "n_depth": step.prefix_tokens, "samples_ns": [cost * 1e6] * 3}
        calls.append({"purpose": "matched", "results": [result]})
        chunks.append({"task_id": "t", "policy": "keep_all", "step": step.step, "chunks": [step.new_tokens]})
    write_json(tmp_path / "rate.json", {"steps": chunks, "calls": calls})
    return tmp_path, rows


NOTHING_SKIPPED = {"skipped_by_task": {}, "skipped_of_no_task": 0}


def analysed(run, rows=None, config=CONFIG, imported=NOTHING_SKIPPED, plan=PLAN):
    folder, good = run
    (folder / "rows.jsonl").write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows or good))
    join_records([folder / "rows.jsonl"], folder / "measurements.parquet")
    settings = Settings(config, "tile", plan, "hybrid", imported, 512)
    return analyse(
        folder / "measurements.parquet",
        folder / "plan.parquet",
        folder / "rejected.parquet",
        [folder / "rate.json"],
        [],
        settings,
    )


def test_without_noise_the_speedup_is_exact_and_the_verdict_is_trusted(run):
    found = analysed(run)
    assert found.buckets.speedup.tolist() == pytest.approx([10, 10])
    assert found.buckets.measured_over_estimate.tolist() == pytest.approx([1, 1])
    assert found.summary["verdict"] == "trusted"


def test_steps_that_were_not_measured_come_from_the_fit_and_say_so(run):
    found = analysed(run)
    assert sorted(set(found.replay.source)) == ["fitted", "measured"]
    for row in found.replay.itertuples():
        expected = cost_ms(row.L, row.only_new_tokens) / 1e3
        assert row.measured_opt_prefill_s == pytest.approx(expected, rel=0.02)
        assert row.ci_low_s <= row.measured_opt_prefill_s * 1.0001
        assert row.ci_high_s >= row.measured_opt_prefill_s * 0.9999


def test_a_task_is_the_sum_of_its_steps(run):
    (task,) = analysed(run).tasks.itertuples()
    assert task.complete
    assert task.opt_wall_s == pytest.approx(task.opt_prefill_s + 6 * 1.5)


def test_error_rows_are_counted_and_never_used(run):
    _, rows = run
    bad = [
        replace(row, status="error", error="cache_n: expected 300, got 0", prompt_ms=1e6) if i == 0 else row
        for i, row in enumerate(rows)
    ]
    found = analysed(run, bad)
    assert found.summary["verdict"] == "not registered"
    assert found.summary["error_rows"] == 1
    assert found.buckets.speedup.tolist() == pytest.approx([10, 10])


def test_a_slow_measurement_disagrees_with_the_estimate(run):
    _, rows = run
    slow = [replace(row, prompt_ms=2 * row.prompt_ms) if row.arm == "fake_prefix" else row for row in rows]
    found = analysed(run, slow)
    assert found.summary["verdict"] == "disagrees with the estimate"
    assert found.buckets.measured_over_estimate.tolist() == pytest.approx([2, 2])


def test_drift_between_jobs_withholds_the_verdict(run):
    _, rows = run
    slow = [replace(row, prompt_ms=80.0, job="baseline/2") for row in rows if row.arm == "probe" and row.bucket == 2]
    found = analysed(run, [*rows, *slow])
    assert found.summary["verdict"] == "no verdict: the machine drifted"
    assert found.summary["drift"]["between_jobs"] > 0.2


def test_without_probes_there_is_no_drift_figure():
    empty = pd.DataFrame({"arm": [], "status": [], "prompt_ms": [], "job": []})
    assert probe_drift(empty)["between_jobs"] is None


def test_the_order_of_reasons():
    faithful, biased = {"exceeds": False}, {"exceeds": True}
    assert verdict(False, "drift", biased, ["agrees"]) == "not registered"
    assert verdict(True, "drift", biased, ["agrees"]).startswith("no verdict")
    assert verdict(True, None, biased, ["agrees"]).startswith("not faithful")
    assert verdict(True, None, faithful, ["agrees", "agrees"]) == "trusted"
    assert verdict(True, None, faithful, ["agrees", "undecided"]).startswith("undecided")
    assert verdict(True, None, faithful, ["undecided", "disagrees"]).startswith("disagrees")
    assert verdict(True, None, faithful, []).startswith("valid; no estimate")


@pytest.mark.parametrize(
    ("ratio", "low", "high", "expected"),
    [
        (1.05, 1.0, 1.2, "agrees"),
        (0.95, 0.5, 2.0, "agrees"),
        (1.2, 1.05, 1.3, "undecided"),
        (0.8, 0.7, 0.95, "undecided"),
        (1.2, 1.15, 1.3, "disagrees"),
        (None, None, None, "missing"),
    ],
)
def test_a_bucket_disagrees_only_with_all_of_its_interval(ratio, low, high, expected):
    names = ("measured_over_estimate", "measured_over_estimate_low", "measured_over_estimate_high")
    row = SimpleNamespace(n_compared=1, **dict(zip(names, (ratio, low, high), strict=True)))
    assert agreement(row, 0.1) == expected


def test_beyond_the_longest_real_prefix_nothing_is_compared_and_the_verdict_rests_on_the_others(run):
    folder, rows = run
    up_to = 700
    within = [row for row in rows if row.arm in ("fake_prefix", "probe") or row.prefix_tokens <= up_to]
    rate = json.loads((folder / "rate.json").read_text())
    kept = {row.step for row in within if row.arm == "baseline"}
    rate["steps"] = [step for step in rate["steps"] if step["step"] in kept]
    write_json(folder / "rate.json", rate)
    found = analysed(run, within, plan=PLAN | {"real_prefix_up_to": up_to})
    assert found.summary["verdict"] == "trusted"
    assert found.summary["agreement_by_bucket"] == {"1": "agrees", "2": "not compared"}
    assert found.buckets.n_compared.tolist() == [1, 0]
    assert found.buckets.speedup.tolist()[0] == pytest.approx(10)
    assert pd.isna(found.buckets.speedup.tolist()[1])
    assert (found.replay.source != "missing").all()
    # without such a bound on purpose something is missing
    with pytest.raises(MeasureError, match="the benchmark has no rate"):
        analysed(run, within)


def test_decode_is_reported_beside_prefill_and_carried_to_the_replay(run):
    folder, rows = run
    decoded = [
        replace(row, decode_n=4, decode_ms=4 * (10 + (row.prefix_tokens + row.new_tokens) / 1000))
        if row.arm in ("fake_prefix", "baseline")
        else row
        for row in rows
    ]
    rate = json.loads((folder / "rate.json").read_text())
    for depth in {row.prefix_tokens + row.new_tokens for row in rows if row.arm == "baseline"}:
        samples = [int(4e6 * (10 + depth / 1000) / 1.25)] * 3
        result = {"n_prompt": 0, "n_gen": 4, "n_depth": depth, "samples_ns": samples}
        rate["calls"].append({"purpose": "decode", "results": [result]})
    write_json(folder / "rate.json", rate)
    found = analysed(run, decoded)
    assert found.summary["decoded_per_repetition"] == 4
    assert found.buckets.decode_over_estimate.tolist() == pytest.approx([1.25, 1.25])
    assert found.buckets.decode_over_baseline.tolist() == pytest.approx([1, 1])
    first = found.steps.iloc[0]
    depth = first.prefix_tokens + first.new_tokens
    assert first.fake_prefix_decode_token_ms == pytest.approx(10 + depth / 1000)
    # steps that were not measured lie on the line through those that were
    expected = [(10 + (row.L + row.only_new_tokens) / 1000) / 1e3 for row in found.replay.itertuples()]
    assert found.replay.decode_token_s.tolist() == pytest.approx(expected)
    assert set(found.replay.decode_source) == {"measured", "fitted"}
    assert "Decode, which the verdict is not about, was 1.25 times the estimate, 1.00 times that behind" in (
        decode_statement(found.summary)
    )
    without = analysed(run)
    assert without.replay.decode_token_s.isna().all()
    assert set(without.replay.decode_source) == {"missing"}
    assert decode_statement(without.summary) == ""


def test_a_run_with_one_arm_only_still_has_its_tables(run):
    _, rows = run
    found = analysed(run, [row for row in rows if row.arm != "baseline"])
    assert "speedup" not in found.buckets or found.buckets.speedup.isna().all()
    assert found.summary["verdict"] == "trusted"


def test_everything_is_written_and_the_plots_are_drawn(run, tmp_path):
    found = analysed(run)
    write_analysis(found, tmp_path / "out")
    draw_all(found, tmp_path / "out" / "analysis")
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")}
    assert {"analysis/agreement.parquet", "analysis/agreement.csv", "analysis/tasks.parquet", "replay.parquet"} <= names
    assert {"replay.jsonl", "summary.json", "analysis/prefill_against_depth.svg"} <= names
    lines = [json.loads(line) for line in (tmp_path / "out" / "replay.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    assert pd.read_parquet(tmp_path / "out" / "replay.parquet").L.tolist() == [line["L"] for line in lines]


def test_text_and_screenshots_are_reported_apart_and_encoding_on_neither_side(run):
    folder, rows = run
    planned = pd.read_parquet(folder / "plan.parquet")
    shown = (planned.status == "measured") & (planned.step == planned.step[planned.status == "measured"].max())
    planned.loc[shown, "image_tokens"] = 50
    planned.to_parquet(folder / "plan.parquet")
    step = int(planned.step[shown].iloc[0])
    seen = [
        replace(row, prompt_ms=row.prompt_ms + 40, image_encode_ms=40.0)
        if row.step == step and row.arm != "probe"
        else row
        for row in rows
    ]
    found = analysed((folder, rows), seen)
    kinds = found.kinds.set_index("kind")
    assert sorted(kinds.index) == ["text only", "with a screenshot"]
    assert kinds.measured_over_estimate.tolist() == pytest.approx([1, 1])
    assert kinds.image_encode_ms["with a screenshot"] == 40
    assert kinds.image_encode_ms["text only"] == 0


def test_without_fabricated_rows_a_restored_prefix_is_held_against_the_estimate(run):
    _, rows = run
    restored = [
        replace(row, arm="state_restore", fill=None, install_bytes=77) if row.arm == "fake_prefix" else row
        for row in rows
    ]
    found = analysed(run, restored)
    assert found.summary["arm"] == "state_restore"
    assert found.buckets.measured_over_estimate.tolist() == pytest.approx([1, 1])
    assert set(found.replay.source) == {"measured", "fitted"}
    assert set(found.steps.restore_bytes) == {77}


def test_turns_count_for_fidelity_only(run):
    _, rows = run
    turn = replace(rows[0], job="fidelity/300", task_id="(fidelity)", step=0, prompt_ms=1e5)
    found = analysed(run, [*rows, turn])
    assert found.buckets.measured_over_estimate.tolist() == pytest.approx([1, 1])
    assert found.summary["verdict"] == "trusted"


def test_a_task_without_recorded_times_has_its_prefill_and_no_wall_time(run):
    folder, rows = run
    planned = pd.read_parquet(folder / "plan.parquet").assign(decode_s=None)
    planned.decode_s = planned.decode_s.astype(float)
    planned.to_parquet(folder / "plan.parquet")
    (task,) = analysed((folder, rows)).tasks.itertuples()
    assert task.complete
    assert task.opt_prefill_s > 0
    assert pd.isna(task.opt_wall_s)
    assert task.reason == "decode_s not recorded, so there is no wall time"


def test_a_task_with_a_refused_step_is_incomplete_and_not_summed(run):
    folder, rows = run
    refused = {"task_id": "t", "policy": "keep_all", "step": 9, "position": 4, "reason": "r", "remedy": "m"}
    pd.DataFrame([refused]).to_parquet(folder / "rejected.parquet")
    (task,) = analysed((folder, rows)).tasks.itertuples()
    assert (task.complete, task.steps, task.reason) == (False, 7, "1 steps refused")
    assert pd.isna(task.opt_prefill_s)


def test_policies_of_one_task_are_compared_with_and_without_a_cache(run):
    folder, rows = run
    planned = pd.read_parquet(folder / "plan.parquet")
    # the agent that forgets prefills more with a cache, and has shorter prompts without one
    other = planned.assign(policy="keep_last_1", status="sampled_out", prefix_tokens=300, new_tokens=200)
    pd.concat([planned, other], ignore_index=True).to_parquet(folder / "plan.parquet")
    found = analysed((folder, rows))
    (entry,) = found.summary["policies"]
    assert set(entry["policies"]) == {"keep_all", "keep_last_1"}
    assert (entry["with_cache"]["winner"], entry["without_cache"]["winner"]) == ("keep_all", "keep_last_1")
    statement = policy_statement(entry)
    assert "With a perfect cache keep all costs less" in statement
    assert "Without a cache keep last 1 costs less from L = " in statement
    assert len(found.replay) == 12
    assert found.tasks.policy.tolist() == ["keep_all", "keep_last_1"]


def test_without_the_benchmark_nothing_is_claimed_about_an_estimate(run):
    folder, _ = run
    write_json(folder / "rate.json", {"steps": [], "calls": []})
    found = analysed(run)
    assert found.summary["verdict"] == "valid; no estimate to compare with"
    assert found.buckets.speedup.tolist() == pytest.approx([10, 10])


def test_outside_of_the_measured_range_the_replay_says_so(run):
    folder, rows = run
    planned = pd.read_parquet(folder / "plan.parquet")
    far = planned.iloc[[-1]].assign(step=99, prefix_tokens=90_000, status="sampled_out")
    pd.concat([planned, far], ignore_index=True).to_parquet(folder / "plan.parquet")
    replay = analysed((folder, rows)).replay
    assert replay.source.iloc[-1] == "extrapolated"
    assert replay.ci_low_s.iloc[-1] <= replay.measured_opt_prefill_s.iloc[-1] <= replay.ci_high_s.iloc[-1]


def test_steps_that_are_the_same_for_all_policies_have_no_leader(run):
    folder, rows = run
    planned = pd.read_parquet(folder / "plan.parquet")
    other = planned.assign(policy="keep_last_1")
    other.loc[other.step == 5, "new_tokens"] += 500
    pd.concat([planned, other], ignore_index=True).to_parquet(folder / "plan.parquet")
    noisy = [replace(row, policy="keep_last_1", prompt_ms=0.9 * row.prompt_ms) for row in rows if row.step < 5]
    rate = json.loads((folder / "rate.json").read_text())
    rate["steps"] += [step | {"policy": "keep_last_1"} for step in rate["steps"]]
    write_json(folder / "rate.json", rate)
    (entry,) = analysed((folder, rows), [*rows, *[row for row in noisy if row.arm == "fake_prefix"]]).summary[
        "policies"
    ]
    assert [(change["policy"], change["step"]) for change in entry["with_cache"]["changes"]] == [("keep_all", 5)]


@pytest.mark.parametrize(
    "imported",
    [{"skipped_by_task": {"t": 2}, "skipped_of_no_task": 0}, {"skipped_by_task": {}, "skipped_of_no_task": 2}],
)
def test_a_task_of_which_records_were_skipped_is_incomplete(run, imported):
    (task,) = analysed(run, imported=imported).tasks.itertuples()
    assert (task.complete, task.reason) == (False, "2 records skipped by the import")


def test_without_a_fit_a_measured_step_has_its_median_within_its_interval(run):
    folder, rows = run
    planned = pd.read_parquet(folder / "plan.parquet").iloc[:1]
    planned.to_parquet(folder / "plan.parquet")
    mine = [row for row in rows if row.step == 0]
    times = iter([100.0, 110.0, 200.0])
    spread = [replace(row, prompt_ms=next(times)) if row.arm == "fake_prefix" else row for row in mine]
    (row,) = analysed((folder, rows), spread).replay.itertuples()
    assert row.measured_opt_prefill_s == pytest.approx(0.110)
    assert (row.ci_low_s, row.ci_high_s) == pytest.approx((0.1, 0.2))


def test_a_recorded_time_of_zero_has_no_ratio(run):
    folder, rows = run
    planned = pd.read_parquet(folder / "plan.parquet").assign(recorded_wall_s=0.0)
    planned.to_parquet(folder / "plan.parquet")
    found = analysed((folder, rows))
    assert found.tasks.opt_over_recorded.isna().all()
    json.dumps(found.summary, allow_nan=False)
