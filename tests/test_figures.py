"""Figures as people read them."""

import math

import pytest
from fakeprefix.figures import NOTHING, exact, gibibytes, number, p_value, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (140, "140"),
        (1.4, "1.40"),
        (0.9996, "1.00"),
        (99.96, "100"),
        (999.6, "1,000"),
        (123456, "123,000"),
        (-0.012345, "-0.0123"),
        (0.0000123456, "0.0000123"),
        (1e-9, "0.00000000100"),
        (0, "0"),
        (None, NOTHING),
        (math.nan, NOTHING),
    ],
)
def test_three_significant_digits_and_no_exponent(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(131072, "131,072"), (5.0, "5"), (100 * 0.07, "7"), (2.5, "2.5"), (10000019, "10,000,019"), (None, NOTHING)],
)
def test_counts_and_settings_are_exact(value, text):
    assert exact(value) == text


def test_shares_probabilities_and_sizes():
    assert percent(1.4) == "140 %"
    assert percent(None) == NOTHING
    assert p_value(0.00004) == "< 0.001"
    assert p_value(0.0312) == "0.0312"
    assert gibibytes(3 * 2**29) == "1.50 GiB"
