import pandas as pd
import pytest
from fakeprefix.analysis.diagnosis import count, diagnose
from fakeprefix.analysis.drift import drift_problem, probe_drift
from fakeprefix.analysis.fit import fit_cost
from fakeprefix.analysis.statistics import Bootstrap

BOOTSTRAP = Bootstrap(0.95, 200, 1)


def rows(**changes):
    frame = pd.DataFrame({"prefix_tokens": [1000, 2000, 4000, 8000], "new_tokens": [100, 200, 100, 200]})
    frame = frame.assign(cache_n=frame.prefix_tokens, prompt_n=frame.new_tokens, n_kv=frame.prefix_tokens + 256)
    frame = frame.assign(seq_pos_max_attn=frame.prefix_tokens - 1, seq_pos_max_recr=frame.prefix_tokens - 1)
    return frame.assign(**changes)


def model(slope):
    frame = rows()
    cost = 5 + 0.5 * frame.new_tokens + slope * frame.new_tokens * (frame.prefix_tokens + frame.new_tokens / 2)
    return fit_cost(frame.prefix_tokens, frame.new_tokens, 0 * frame.new_tokens, cost, 512, BOOTSTRAP)


def finding(frame, slope=1e-4, ratios=(1.0, 1.0)):
    counters = count(frame, model(slope), "hybrid")
    return diagnose(counters, dict(enumerate(ratios, start=1)), 0.1, "hybrid")


def test_with_right_counters_and_times_neither_mismatch_applies():
    found = finding(rows())
    assert found["finding"] == "neither"
    assert found["counters"]["cache_n"] == found["counters"]["rows"] == 4
    assert found["counters"]["slope_ms"] == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cache_n": [0, 2000, 4000, 8000]}, "re-prefilled"),
        ({"prompt_n": [1100, 200, 100, 200]}, "re-prefilled"),
        ({"n_kv": [256, 256, 256, 256]}, "keys not read"),
        ({"seq_pos_max_attn": [99, 1999, 3999, 7999]}, "keys not read"),
        ({"seq_pos_max_recr": [-1, 1999, 3999, 7999]}, "keys not read"),
    ],
)
def test_a_wrong_counter_names_the_mismatch(changes, expected):
    found = finding(rows(**changes))
    assert found["finding"] == expected
    assert "of 4 rows" in found["reason"]


def test_a_row_without_an_answer_is_no_sign_of_a_mismatch():
    found = finding(rows(cache_n=[None, 2000, 4000, 8000]))
    assert (found["finding"], found["counters"]["rows"]) == ("neither", 3)


def test_a_memory_that_does_not_tell_its_columns_is_not_accused():
    counters = count(rows(n_kv=0, seq_pos_max_attn=-1, seq_pos_max_recr=-1), model(1e-4), "other")
    assert diagnose(counters, {1: 1.0}, 0.1, "other")["finding"] == "neither"


def test_without_an_estimate_none_is_claimed_to_agree():
    found = diagnose(count(rows(), model(1e-4), "hybrid"), {1: None}, 0.1, "hybrid")
    assert found["finding"] == "neither"
    assert "no estimate to compare the time with" in found["reason"]


def test_fast_and_independent_of_the_prefix_means_that_keys_were_not_read():
    assert finding(rows(), slope=0.0, ratios=(0.5, 1.0))["finding"] == "keys not read"


def test_out_of_the_margin_with_right_counters_is_unclear_and_says_where():
    found = finding(rows(), ratios=(1.0, 1.5))
    assert (found["finding"], found["slow"]) == ("unclear", [2])
    assert "bucket 2" in found["reason"]


def probes(**jobs):
    return pd.DataFrame(
        [
            {
                "arm": "probe",
                "status": "ok",
                "bucket": int(job[-1]),
                "job": job.replace("_", "/"),
                "started_at": "",
                "order": order,
                "prompt_ms": time,
            }
            for job, times in jobs.items()
            for order, time in enumerate(times)
        ]
    )


def test_drift_within_a_job_is_a_trend_and_not_noise_or_one_disturbed_probe():
    steady = probe_drift(probes(baseline_1=[100, 100, 180, 100, 100, 101], fake_1=[100, 130, 100]))
    assert steady["within_jobs"] == 0
    assert drift_problem(steady, 0.1) is None
    rising = probe_drift(probes(baseline_1=[100, 105, 110, 120, 125, 130], fake_1=[115, 115, 115]))
    assert rising["within_jobs"] == pytest.approx(20 / 115)
    assert "within baseline/1" in drift_problem(rising, 0.1)


def test_drift_between_jobs_is_between_those_that_are_compared():
    buckets = probes(baseline_1=[100] * 3, fake_1=[105] * 3, baseline_2=[150] * 3, fake_2=[150] * 3)
    turns = probes(fidelity_4=[300] * 3).assign(job="fidelity/1024", bucket=0)
    drift = probe_drift(pd.concat([buckets, turns]))
    assert drift["between_jobs"] == pytest.approx(5 / 150)
    assert "between jobs" in drift_problem(drift, 0.01)
