import numpy as np
import pandas as pd
import pytest
from fakeprefix.analysis.depth_curve import CURVE_SCHEMA, curve_frame, decode_line, summarize
from fakeprefix.analysis.report import curve_statement
from fakeprefix.analysis.statistics import Bootstrap

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


def test_a_straight_line_is_found_leaves_nothing_and_foretells_the_deeper_lengths():
    curve = curve_frame(measured(straight), BOOTSTRAP)
    assert list(curve.columns) == CURVE_SCHEMA.names
    assert curve.a_ms.tolist() == pytest.approx([30] * 4)
    assert curve.b_ms_per_1000_cells.tolist() == pytest.approx([1] * 4)
    assert curve.residual.abs().max() < 1e-9
    assert curve.measured_over_foretold.isna().tolist() == [True, True, False, False]
    assert curve.measured_over_foretold.tolist()[2:] == pytest.approx([1, 1])
    assert curve.foretold_from.tolist()[2:] == [2, 3]


def test_a_cost_that_bends_upwards_shows_in_what_the_shallower_lengths_foretell():
    (line,) = summarize(curve_frame(measured(lambda depth: 30 + depth / 1000 + (depth / 20_000) ** 2), BOOTSTRAP))
    assert line["measured_over_foretold"] > 1.05
    assert (line["from_depth"], line["to_depth"], line["foretold_from_depth"]) == (1024, 65536, 16384)
    assert "Prefill of 128 tokens" in curve_statement(line)


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
    lines = summarize(curve_frame(rows, BOOTSTRAP))
    assert [(line["quantity"], line["new_tokens"]) for line in lines] == [
        ("prefill", 128),
        ("prefill", 1024),
        ("decode", None),
    ]
    assert (lines[2]["a_ms"], lines[2]["b_ms_per_1000_cells"]) == pytest.approx((100, 2))
    assert lines[2]["lengths"] == 8
    assert curve_statement(lines[2]).startswith("Decode: a token costs 100")
    assert decode_line(rows).tolist() == pytest.approx([100, 0.002])


def test_two_depths_images_and_error_rows_make_no_line():
    assert curve_frame(measured(straight, depths=(1024, 4096)), BOOTSTRAP).empty
    assert curve_frame(measured(straight, image_tokens=64), BOOTSTRAP).empty
    assert curve_frame(measured(straight, status="error"), BOOTSTRAP).empty
    assert summarize(curve_frame(measured(straight, status="error"), BOOTSTRAP)) == []
    assert decode_line(measured(straight)) is None
