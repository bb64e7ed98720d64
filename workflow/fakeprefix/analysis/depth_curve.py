"""How the cost of one token grows with depth: a line ``a + b L``, what it leaves, and what it predicts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.optimize import nnls

from fakeprefix.analysis.drift import PROBE
from fakeprefix.analysis.fidelity import DECODE, PREFILL
from fakeprefix.analysis.statistics import Bootstrap

# two lengths always lie on a line, so nothing can be learnt from them
MIN_LENGTHS = 3
MIN_PREDICTING = 2
CELLS = 1000
PARTS = ("", "_low", "_high")

CURVE_SCHEMA = pa.schema(
    [
        ("quantity", pa.string()),
        ("new_tokens", pa.int64()),
        ("depth", pa.int64()),
        ("n", pa.int32()),
        *[(f"token_ms{part}", pa.float64()) for part in PARTS],
        ("fitted_ms", pa.float64()),
        ("residual", pa.float64()),
        ("foretold_from", pa.int64()),
        *[(f"measured_over_foretold{part}", pa.float64()) for part in PARTS],
        *[(f"{name}{part}", pa.float64()) for name in ("a_ms", "b_ms_per_1000_cells") for part in PARTS],
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
    """What can be compared with a line: at least three depths with as many new tokens, images left out; and decode.

    Args:
        rows: measurements of one arm that has the prefix; error rows are left out.
    """
    text = rows[(rows.status == "ok") & (rows.image_tokens == 0)]
    for new_tokens, group in text.groupby("new_tokens", sort=True):
        yield from _samples(PREFILL, int(new_tokens), group.prefix_tokens, group.prompt_ms / group.new_tokens)
    yield from decode_samples(rows)


def decode_samples(rows: pd.DataFrame) -> Iterator[Samples]:
    """Decode at three depths or more; how many new tokens came before makes no difference, nor do images."""
    decoded = rows[(rows.status == "ok") & (rows.decode_n > 0)]
    # decoding begins behind the new tokens
    yield from _samples(DECODE, None, decoded.prefix_tokens + decoded.new_tokens, decoded.decode_ms / decoded.decode_n)


def _samples(quantity: str, new_tokens: int | None, depths: pd.Series, token_ms: pd.Series) -> Iterator[Samples]:
    groups = {int(depth): values.to_numpy() for depth, values in token_ms.groupby(depths, sort=True)}
    if len(groups) >= MIN_LENGTHS:
        yield Samples(quantity, new_tokens, list(groups), list(groups.values()))


def decode_line(rows: pd.DataFrame) -> np.ndarray | None:
    """``(a, b)`` of decoding one token, in ms and ms a cell; None with fewer than three depths."""
    return next((fit_line(samples.depths, samples.token_ms) for samples in decode_samples(rows)), None)


def fit_line(depths: Sequence[int], token_ms: Sequence[np.ndarray]) -> np.ndarray:
    """``(a, b)`` in ms and ms a cell, neither negative, shape ``(2,)``.

    Non-negative least squares on relative errors over all repetitions: no token costs less for more cells.
    """
    counts = [len(values) for values in token_ms]
    x, y = np.repeat(np.asarray(depths, dtype=float), counts), np.concatenate(token_ms)
    return nnls(np.stack([1 / y, x / y], axis=1), np.ones_like(y))[0]


def curve_frame(rows: pd.DataFrame, bootstrap: Bootstrap) -> pd.DataFrame:
    """One row for each depth of each line, with the columns of `CURVE_SCHEMA`.

    ``residual`` is measured / fitted - 1 of the median. ``measured_over_foretold`` compares it with a line
    through depths of at most half of it, as one would extrapolate; null where there are not two of them.
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
        below = sum(2 * other <= depth for other in depths)
        if below >= MIN_PREDICTING:
            ratios = [_over_foretold(depths, drawn, place, below) for drawn in resampled]
            bounds = np.percentile(ratios, [tail, 100 - tail])
            row["foretold_from"] = depths[below - 1]
            row["measured_over_foretold"] = _over_foretold(depths, token_ms, place, below)
            row["measured_over_foretold_low"], row["measured_over_foretold_high"] = map(float, bounds)
        yield row


def _over_foretold(depths: Sequence[int], token_ms: Sequence[np.ndarray], place: int, below: int) -> float:
    """Median at `place` over what a line through the first `below` depths says."""
    a, b = fit_line(depths[:below], token_ms[:below])
    return float(np.median(token_ms[place]) / (a + b * depths[place]))


def _resampled(samples: Samples, bootstrap: Bootstrap) -> list[list[np.ndarray]]:
    """Bootstrap resamples, the repetitions of each depth drawn from its own."""
    rng = np.random.default_rng(bootstrap.seed)
    return [
        [values[rng.integers(0, len(values), len(values))] for values in samples.token_ms]
        for _ in range(min(bootstrap.resamples, 500))
    ]


def summarize(curve: pd.DataFrame, probe_spread: float | None) -> list[dict[str, Any]]:
    """For each line its coefficients, the largest residual, and how well its deepest length was predicted.

    Args:
        curve: as made by `curve_frame`.
        probe_spread: how much the same probe differed between the jobs behind it, see `spread_of_probes`.
    """
    lines = []
    for (quantity, _), group in curve.groupby(["quantity", "new_tokens"], sort=False, dropna=False):
        deepest = group.iloc[-1]
        names = ("a_ms", "b_ms_per_1000_cells", "measured_over_foretold")
        intervals = {f"{name}{part}": _number(deepest[f"{name}{part}"]) for name in names for part in PARTS}
        lines.append(
            {
                "quantity": quantity,
                "new_tokens": _number(deepest.new_tokens, int),
                "lengths": len(group),
                "n": int(group.n.min()),
                "from_depth": int(group.depth.iloc[0]),
                "to_depth": int(deepest.depth),
                "foretold_from": _number(deepest.foretold_from, int),
                "max_residual": float(group.residual.abs().max()),
                "probe_spread": probe_spread,
                **intervals,
            }
        )
    return lines


def _number(value: Any, kind: type = float) -> Any:
    return None if pd.isna(value) else kind(value)


def spread_of_probes(rows: pd.DataFrame, arm: str) -> float | None:
    """How much the probe's median differed between the jobs of an arm, relative to their median; None without.

    Depths lie in different jobs, hours apart perhaps: what a line through them leaves may be the machine.
    """
    probes = rows[(rows.arm == PROBE) & (rows.status == "ok") & rows.job.str.startswith(f"{arm}/")]
    if probes.empty:
        return None
    medians = probes.groupby("job").prompt_ms.median()
    return float((medians.max() - medians.min()) / medians.median())
