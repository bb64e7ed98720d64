"""How figures are written for people: three significant digits, no exponents, counts whole."""

import math

DIGITS = 3
NOTHING = "\N{EN DASH}"
SMALLEST_P = 0.001


def number(value: float | None) -> str:
    """A measured value with three significant digits and never an exponent; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return NOTHING
    if value == 0 or math.isinf(value):
        return f"{value:.0f}"
    rounded = float(f"{value:.{DIGITS - 1}e}")
    decimals = DIGITS - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(decimals, 0)}f}"


def exact(value: float | None) -> str:
    """A count, or a value that somebody has set, as it is; a dash for None and NaN.

    Six digits are enough for every setting and hide what binary fractions add; a whole number has all of its own.
    """
    if value is None or math.isnan(value):
        return NOTHING
    return f"{value:,.0f}" if value == round(value) else f"{value:,.6g}"


def percent(fraction: float | None) -> str:
    """A measured fraction as percentage."""
    return NOTHING if fraction is None or math.isnan(fraction) else f"{number(100 * fraction)} %"


def p_value(value: float | None) -> str:
    """A probability; a very small one only as being smaller than `SMALLEST_P`."""
    return f"< {SMALLEST_P}" if value is not None and value < SMALLEST_P else number(value)


def gibibytes(size_bytes: float) -> str:
    """A size in GiB."""
    return f"{number(size_bytes / 2**30)} GiB"
