import json

import numpy as np
import pandas as pd
import pytest
from fakeprefix.analysis.fidelity import compare, compare_logits, judge, summarize, tost_p
from fakeprefix.analysis.statistics import Bootstrap
from fakeprefix.report.page import logits_statement

BOOTSTRAP = Bootstrap(0.95, 500, 1)


def turns(factors, rounds=20, noise=0.005, lengths=(1024,), drift=0.0):
    """Rows of turns: every arm costs 100 ms times its factor, with noise and a drift that all share."""
    rng = np.random.default_rng(3)
    arms = {
        "restored": ("state_restore", None, 0),
        "again": ("state_restore", None, 1),
        "cached": ("cached_prefix", None, 0),
    }
    rows = []
    for length in lengths:
        for number in range(rounds):
            for name, factor in {"restored": 1.0, "again": 1.0, **factors}.items():
                arm, fill, twin = arms.get(name, ("fake_prefix", name, 0))
                time = 100 * factor * (1 + drift * number) * np.exp(rng.normal(0, noise))
                rows.append(
                    {
                        "job": f"fidelity/{length}",
                        "arm": arm,
                        "fill": fill,
                        "twin": twin,
                        "repetition": number,
                        "prefix_tokens": length,
                        "new_tokens": 64,
                        "prompt_ms": time,
                        "decode_n": 4,
                        "decode_ms": 4 * time / 10,
                        "install_ms": 1.0,
                        "install_bytes": 1000,
                        "status": "ok",
                    }
                )
    return pd.DataFrame(rows)


def row_of(table, subject, reference="restored", quantity="prefill"):
    mine = (table.quantity == quantity) & (table.subject == subject) & (table.reference == reference)
    (row,) = table[mine].itertuples()
    return row


def test_a_bias_of_four_percent_is_found_and_an_unbiased_fill_is_equivalent():
    table = compare(turns({"zero": 0.96, "tile": 1.001}), BOOTSTRAP, 0.02)
    zero, tile = row_of(table, "zero"), row_of(table, "tile")
    assert zero.paired_ratio == pytest.approx(0.96, abs=0.004)
    assert zero.statement == "different (by -4.0 %)" or zero.statement.startswith("different (by -")
    assert (tile.verdict, tile.statement) == ("equivalent", "equivalent")
    assert tile.paired_ratio_low <= 1.001 <= tile.paired_ratio_high
    assert row_of(table, "restored again").verdict == "equivalent"


def test_drift_that_all_arms_share_cancels_in_the_paired_ratio():
    table = compare(turns({"tile": 1.0}, drift=0.05), BOOTSTRAP, 0.02)
    tile = row_of(table, "tile")
    assert tile.verdict == "equivalent"
    assert tile.median_ratio_high - tile.median_ratio_low > 5 * (tile.paired_ratio_high - tile.paired_ratio_low)


def test_too_few_or_too_noisy_rounds_are_not_shown_and_never_equal():
    noisy = row_of(compare(turns({"tile": 1.0}, rounds=10, noise=0.1), BOOTSTRAP, 0.02), "tile")
    assert noisy.statement == "not shown (n too small)"
    # no test can reject with four rounds, however close they are
    few = row_of(compare(turns({"tile": 1.0}, rounds=4, noise=1e-4), BOOTSTRAP, 0.02), "tile")
    assert few.verdict != "equivalent"


def test_error_rows_take_their_round_out_of_the_pairs():
    rows = turns({"tile": 1.0})
    bad = (rows.fill == "tile") & rows.repetition.isin([3, 4])
    rows.loc[bad, "status"] = "error"
    rows.loc[bad, "prompt_ms"] = 1e6
    tile = row_of(compare(rows, BOOTSTRAP, 0.02), "tile")
    assert tile.rounds == 18
    assert tile.verdict == "equivalent"


def test_the_cache_is_a_reference_of_its_own():
    table = compare(turns({"tile": 1.0, "cached": 1.1}), BOOTSTRAP, 0.02)
    assert row_of(table, "tile", "cached").paired_ratio == pytest.approx(1 / 1.1, abs=0.01)
    assert row_of(table, "cached").verdict == "different"


def test_other_jobs_rows_are_not_turns():
    rows = turns({"tile": 1.0})
    rows["job"] = "fake_prefix/1"
    assert compare(rows, BOOTSTRAP, 0.02).empty


@pytest.mark.parametrize(
    ("shift", "equivalent"), [(0.0, True), (np.log(1.015), True), (np.log(1.03), False), (np.log(0.97), False)]
)
def test_both_one_sided_tests_must_reject(shift, equivalent):
    logs = np.random.default_rng(0).normal(shift, 0.003, 20)
    assert (tost_p(logs, 0.02) < 0.05) is equivalent


def test_one_wild_outlier_does_not_decide():
    logs = np.append(np.random.default_rng(0).normal(0, 0.003, 20), 0.5)
    assert tost_p(logs, 0.02) < 0.05


@pytest.mark.parametrize(
    ("low", "high", "p", "verdict"),
    [
        (0.99, 1.01, 0.01, "equivalent"),
        (1.001, 1.01, 0.01, "equivalent"),
        (1.03, 1.05, 0.9, "different"),
        (0.95, 1.05, 0.4, "not shown"),
    ],
)
def test_equivalence_comes_before_difference_and_both_before_not_shown(low, high, p, verdict):
    assert judge((low + high) / 2, low, high, p, 0.05)[0] == verdict


def test_the_least_biased_fill_is_the_one_whose_worst_length_is_best():
    near, far = (
        turns({"zero": 0.99, "tile": 1.004}, lengths=(1024,)),
        turns({"zero": 0.95, "tile": 1.006}, lengths=(4096,)),
    )
    summary = summarize(compare(pd.concat([near, far]), BOOTSTRAP, 0.02), "zero")
    assert summary["least_biased"] == "tile"
    assert summary["fills"]["zero"] == pytest.approx(0.05, abs=0.01)
    assert (summary["verdict"], summary["exceeds"]) == ("different", True)
    assert summary["noise_floor"] < 0.01


def test_a_run_without_turns_says_so():
    rows = turns({"tile": 1.0}).iloc[:0]
    assert summarize(compare(rows, BOOTSTRAP, 0.02), "tile")["measured"] is False


def test_turns_of_the_runs_own_fill_that_all_failed_are_no_crash():
    rows = turns({"zero": 1.0, "tile": 1.0})
    rows.loc[rows.fill == "tile", "status"] = "error"
    assert summarize(compare(rows, BOOTSTRAP, 0.02), "tile")["measured"] is False
    rows = turns({"tile": 1.0})
    rows.loc[rows.twin == 1, "status"] = "error"
    summary = summarize(compare(rows, BOOTSTRAP, 0.02), "tile")
    assert (summary["verdict"], summary["noise_floor"]) == ("equivalent", None)


def test_the_noise_floor_is_how_far_equal_arms_are_apart_and_not_only_how_wide_their_interval_is():
    summary = summarize(compare(turns({"tile": 1.0, "again": 1.04}), BOOTSTRAP, 0.02), "tile")
    assert summary["noise_floor"] == pytest.approx(0.04, abs=0.01)


def test_logits_are_compared_over_all_top_tokens(tmp_path):
    def write(length, **logits):
        path = tmp_path / f"{length}.logits.json"
        path.write_text(json.dumps({"prefix_tokens": length, "new_tokens": 1, "logits": logits}))
        return path

    same, near, other = [[7, -1.5], [8, -2.0]], [[7, -1.5], [8, -2.25]], [[7, -1.5], [9, -2.0]]
    files = [
        write(2048, restored=same),
        write(1024, whole=near, restored=same, cached=same),
        write(512, whole=other, restored=same),
    ]
    short, middle, long = compare_logits(files)
    assert middle["cached_restored"] == {"difference": 0, "shared": 2, "top": 2}
    assert middle["whole_restored"]["difference"] == 0.25
    assert short["whole_restored"] == {"difference": 0, "shared": 1, "top": 2}
    assert long["cached_restored"] is None
    assert "exactly the same at L = 1,024" in logits_statement([middle])
    assert "with 1 of 2 top tokens in common at L = 512" in logits_statement([short])


def test_decode_is_compared_like_prefill_and_only_where_something_was_decoded():
    rows = turns({"tile": 1.0, "zero": 1.0})
    rows.loc[rows.fill == "zero", "decode_ms"] *= 0.9
    table = compare(rows, BOOTSTRAP, 0.02)
    assert row_of(table, "zero", quantity="decode").paired_ratio == pytest.approx(0.9, abs=0.004)
    assert row_of(table, "zero").paired_ratio == pytest.approx(1.0, abs=0.004)
    assert row_of(table, "tile", quantity="decode").subject_ms == pytest.approx(10, rel=0.01)
    # the verdict is about prefill
    assert summarize(table, "zero")["exceeds"] is False
    none = compare(rows.assign(decode_n=0, decode_ms=0.0), BOOTSTRAP, 0.02)
    assert set(none.quantity) == {"prefill"}
