import numpy as np
import pandas as pd
import pytest
from fakeprefix.analysis.depth_curve import CURVE_SCHEMA, curve_frame, decode_line, spread_of_probes, summarize
from fakeprefix.analysis.statistics import Bootstrap
from fakeprefix.report.page import curve_statement

BOOTSTRAP = Bootstrap(0.95, 300, 1)
DEPTHS = (1024, 4096, 16384, 65536)


def measured(cost, depths=DEPTHS, new=(128,), repetitions=5, noise=0.0, **more):
    """Rows over a fabricated prefix; `cost` gives ms a token of prefill at a depth."""
    rng = np.random.default_rng(2)
    rows = [
        {
            "status": "ok",
            "prefix_tokens": depth,
            "new_tokens": n,
            "image_tokens": 0,
            "prompt_ms": n * cost(depth) * np.exp(rng.normal(0, noise)),
            "decode_n": 0,
            "decode_ms": 0.0,
            **more,
        }
        for depth in depths
        for n in new
        for _ in range(repetitions)
    ]
    return pd.DataFrame(rows)


def straight(depth):
    return 30 + depth / 1000


def test_a_straight_line_is_found_leaves_nothing_and_predicts_the_deeper_lengths():
    curve = curve_frame(measured(straight), BOOTSTRAP)
    assert list(curve.columns) == CURVE_SCHEMA.names
    assert curve.a_ms.tolist() == pytest.approx([30] * 4)
    assert curve.b_ms_per_1000_cells.tolist() == pytest.approx([1] * 4)
    assert curve.residual.abs().max() < 1e-9
    assert curve.measured_over_foretold.isna().tolist() == [True, True, False, False]
    assert curve.measured_over_foretold.tolist()[2:] == pytest.approx([1, 1])
    assert curve.foretold_from.tolist()[2:] == [4096, 16384]


def test_a_cost_that_bends_upwards_shows_in_what_the_shallower_lengths_predict():
    bent = measured(lambda depth: 30 + depth / 1000 + (depth / 20_000) ** 2)
    (line,) = summarize(curve_frame(bent, BOOTSTRAP), 0.07)
    assert line["measured_over_foretold"] > 1.05
    assert (line["from_depth"], line["to_depth"], line["foretold_from"]) == (1024, 65536, 16384)
    statement = curve_statement(line)
    assert statement.startswith("Prefill of 128 tokens: a token costs")
    assert "a line through depths up to 16,384 predicts" in statement
    assert "the same probe differed by 7.00 %" in statement


def test_intervals_hold_the_truth_and_grow_with_what_is_extrapolated():
    curve = curve_frame(measured(straight, noise=0.02, repetitions=20), BOOTSTRAP)
    last = curve.iloc[-1]
    assert last.a_ms_low < 30 < last.a_ms_high
    assert last.b_ms_per_1000_cells_low < 1 < last.b_ms_per_1000_cells_high
    assert last.measured_over_foretold_low < 1 < last.measured_over_foretold_high
    width = curve.measured_over_foretold_high - curve.measured_over_foretold_low
    assert width.iloc[2] > width.iloc[3]


def test_each_number_of_new_tokens_has_a_line_and_decode_has_one_for_all():
    rows = measured(straight, new=(128, 1024))
    rows = rows.assign(decode_n=3, decode_ms=3 * (100 + (rows.prefix_tokens + rows.new_tokens) / 500))
    curve = curve_frame(rows, BOOTSTRAP)
    lines = summarize(curve, None)
    assert [(line["quantity"], line["new_tokens"]) for line in lines] == [
        ("prefill", 128),
        ("prefill", 1024),
        ("decode", None),
    ]
    assert (lines[2]["a_ms"], lines[2]["b_ms_per_1000_cells"]) == pytest.approx((100, 2))
    assert lines[2]["lengths"] == 8
    assert curve_statement(lines[2]).startswith("Decode: a token costs 100")
    assert "probe" not in curve_statement(lines[2])
    assert decode_line(rows).tolist() == pytest.approx([100, 0.002])
    # the two deepest are neighbours; both are predicted from far below
    decode = curve[curve.quantity == "decode"]
    assert decode.depth.tolist()[-2:] == [65536 + 128, 65536 + 1024]
    assert decode.foretold_from.tolist()[-2:] == [16384 + 1024] * 2


def test_depths_that_are_neighbours_predict_nothing():
    rows = measured(straight, depths=(10_000, 12_000, 15_000))
    curve = curve_frame(rows, BOOTSTRAP)
    assert curve.measured_over_foretold.isna().all()
    (line,) = summarize(curve, None)
    assert line["foretold_from"] is None
    assert "predict" not in curve_statement(line)


def test_no_token_costs_less_for_more_cells():
    rows = measured(lambda depth: 30 - depth / 10_000)
    curve = curve_frame(rows, BOOTSTRAP)
    assert (curve.b_ms_per_1000_cells == 0).all()
    assert (decode_line(rows.assign(decode_n=1, decode_ms=30 - rows.prefix_tokens / 10_000)) >= 0).all()


def test_the_spread_of_probes_is_between_the_jobs_of_the_arm():
    times = {"fake_prefix/1": 100.0, "fake_prefix/2": 110.0, "baseline/1": 300.0}
    rows = pd.DataFrame(
        [
            {"job": job, "arm": "probe", "status": "ok", "prompt_ms": time}
            for job, time in times.items()
            for _ in range(3)
        ]
    )
    assert spread_of_probes(rows, "fake_prefix") == pytest.approx(10 / 105)
    assert spread_of_probes(rows, "state_restore") is None


def test_two_depths_images_and_error_rows_make_no_line():
    assert curve_frame(measured(straight, depths=(1024, 4096)), BOOTSTRAP).empty
    assert curve_frame(measured(straight, image_tokens=64), BOOTSTRAP).empty
    assert curve_frame(measured(straight, status="error"), BOOTSTRAP).empty
    assert summarize(curve_frame(measured(straight, status="error"), BOOTSTRAP), None) == []
    assert decode_line(measured(straight)) is None
