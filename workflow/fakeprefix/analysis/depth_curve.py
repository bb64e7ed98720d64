"""How the cost of one token grows with depth: a line ``a + b L``, what it leaves, and what it foretells."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fakeprefix.analysis.statistics import Bootstrap

PREFILL, DECODE = "prefill", "decode"
# two lengths always lie on a line, so nothing can be learnt from them
MIN_LENGTHS = 3
CELLS = 1000

CURVE_SCHEMA = pa.schema(
    [
        ("quantity", pa.string()),
        ("new_tokens", pa.int64()),
        ("depth", pa.int64()),
        ("n", pa.int32()),
        *[(f"token_ms{part}", pa.float64()) for part in ("", "_low", "_high")],
        ("fitted_ms", pa.float64()),
        ("residual", pa.float64()),
        ("foretold_from", pa.int32()),
        *[(f"measured_over_foretold{part}", pa.float64()) for part in ("", "_low", "_high")],
        *[
            (f"{name}{part}", pa.float64())
            for name in ("a_ms", "b_ms_per_1000_cells")
            for part in ("", "_low", "_high")
        ],
    ]
)


@dataclass(frozen=True)
class Samples:
    """Repetitions at several depths of what ought to lie on one line.

    Attributes:
        quantity: ``prefill`` of so many `new_tokens` at once, or ``decode`` of one token after another.
        new_tokens: None for decode, where it makes no difference.
        depths: cells in front, rising.
        token_ms: ms a token, one array of repetitions for each depth.
    """

    quantity: str
    new_tokens: int | None
    depths: Sequence[int]
    token_ms: Sequence[np.ndarray]


def depth_samples(rows: pd.DataFrame) -> Iterator[Samples]:
    """What can be held against a line: at least three depths with as many new tokens, images left out.

    Args:
        rows: measurements of one arm that has the prefix; error rows are left out.
    """
    text = rows[(rows.status == "ok") & (rows.image_tokens == 0)]
    for new_tokens, group in text.groupby("new_tokens", sort=True):
        yield from _samples(PREFILL, int(new_tokens), group.prefix_tokens, group.prompt_ms / group.new_tokens)
    decoded = text[text.decode_n > 0]
    # decoding begins behind the new tokens
    yield from _samples(DECODE, None, decoded.prefix_tokens + decoded.new_tokens, decoded.decode_ms / decoded.decode_n)


def _samples(quantity: str, new_tokens: int | None, depths: pd.Series, token_ms: pd.Series) -> Iterator[Samples]:
    groups = {int(depth): values.to_numpy() for depth, values in token_ms.groupby(depths, sort=True)}
    if len(groups) >= MIN_LENGTHS:
        yield Samples(quantity, new_tokens, list(groups), list(groups.values()))


def fit_line(depths: Sequence[int], token_ms: Sequence[np.ndarray]) -> np.ndarray:
    """``(a, b)`` in ms and ms a cell, by least squares on relative errors over all repetitions, shape ``(2,)``."""
    x = np.concatenate(
        [np.full(len(values), depth, dtype=float) for depth, values in zip(depths, token_ms, strict=True)]
    )
    y = np.concatenate(token_ms)
    return np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones_like(y), rcond=None)[0]


def curve_frame(rows: pd.DataFrame, bootstrap: Bootstrap) -> pd.DataFrame:
    """One row for each depth of each line, with the columns of `CURVE_SCHEMA`.

    ``residual`` is measured / fitted - 1 of the median. ``measured_over_foretold`` holds it against a line
    through the shallower depths only, as one would extrapolate: it is there from the third depth on.
    """
    return pd.DataFrame(
        [row for samples in depth_samples(rows) for row in _line_rows(samples, bootstrap)], columns=CURVE_SCHEMA.names
    )


def _line_rows(samples: Samples, bootstrap: Bootstrap) -> Iterator[dict[str, Any]]:
    depths, token_ms = samples.depths, samples.token_ms
    line = fit_line(depths, token_ms)
    resampled = _resampled(samples, bootstrap)
    lines = np.stack([fit_line(depths, drawn) for drawn in resampled])
    tail = 100 * (1 - bootstrap.confidence) / 2
    low, high = np.percentile(lines, [tail, 100 - tail], axis=0)
    coefficients = {
        f"{name}{part}": float(scale * values[place])
        for place, (name, scale) in enumerate((("a_ms", 1), ("b_ms_per_1000_cells", CELLS)))
        for part, values in (("", line), ("_low", low), ("_high", high))
    }
    for place, (depth, values) in enumerate(zip(depths, token_ms, strict=True)):
        fitted = line[0] + line[1] * depth
        row = {
            "quantity": samples.quantity,
            "new_tokens": samples.new_tokens,
            "depth": depth,
            "n": len(values),
            **bootstrap.median(values).columns("token_ms"),
            "fitted_ms": fitted,
            "residual": float(np.median(values) / fitted - 1),
            **coefficients,
        }
        if place >= MIN_LENGTHS - 1:
            ratios = [_over_foretold(depths, drawn, place) for drawn in resampled]
            bounds = np.percentile(ratios, [tail, 100 - tail])
            row["foretold_from"] = place
            row["measured_over_foretold"] = _over_foretold(depths, token_ms, place)
            row["measured_over_foretold_low"], row["measured_over_foretold_high"] = map(float, bounds)
        yield row


def _over_foretold(depths: Sequence[int], token_ms: Sequence[np.ndarray], place: int) -> float:
    a, b = fit_line(depths[:place], token_ms[:place])
    return float(np.median(token_ms[place]) / (a + b * depths[place]))


def _resampled(samples: Samples, bootstrap: Bootstrap) -> list[list[np.ndarray]]:
    """Bootstrap resamples, the repetitions of each depth drawn from its own."""
    rng = np.random.default_rng(bootstrap.seed)
    return [
        [values[rng.integers(0, len(values), len(values))] for values in samples.token_ms]
        for _ in range(min(bootstrap.resamples, 500))
    ]


def summarize(curve: pd.DataFrame) -> list[dict[str, Any]]:
    """For each line its coefficients, the largest residual, and how well its deepest length was foretold."""
    lines = []
    for (quantity, _), group in curve.groupby(["quantity", "new_tokens"], sort=False, dropna=False):
        deepest = group.iloc[-1]
        names = ("a_ms", "b_ms_per_1000_cells", "measured_over_foretold")
        intervals = {
            f"{name}{part}": float(deepest[f"{name}{part}"]) for name in names for part in ("", "_low", "_high")
        }
        lines.append(
            {
                "quantity": quantity,
                "new_tokens": None if pd.isna(deepest.new_tokens) else int(deepest.new_tokens),
                "lengths": len(group),
                "n": int(group.n.min()),
                "from_depth": int(group.depth.iloc[0]),
                "to_depth": int(deepest.depth),
                "foretold_from_depth": int(group.depth.iloc[-2]),
                "max_residual": float(group.residual.abs().max()),
                **intervals,
            }
        )
    return lines


def decode_line(rows: pd.DataFrame) -> np.ndarray | None:
    """``(a, b)`` of decoding one token, in ms and ms a cell; None with fewer than two depths."""
    decoded = rows[(rows.status == "ok") & (rows.decode_n > 0)]
    depths = decoded.prefix_tokens + decoded.new_tokens
    groups = {int(depth): values.to_numpy() for depth, values in (decoded.decode_ms / decoded.decode_n).groupby(depths)}
    return fit_line(list(groups), list(groups.values())) if len(groups) > 1 else None
