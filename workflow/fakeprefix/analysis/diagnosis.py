"""The two ways in which a fabricated prefix can go wrong, and which counters tell."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from fakeprefix.analysis.fit import CostModel

NEITHER, REPREFILLED, NOT_READ, UNCLEAR = "neither", "re-prefilled", "keys not read", "unclear"


@dataclass(frozen=True)
class Counters:
    """What the counters of the fabricated arm's rows say, each over all rows.

    Attributes:
        rows: rows of the arm with an answer, error rows too.
        cache_n, prompt_n, positions, columns: rows in which the counter is as it must be: the prefix
            present, only the new tokens computed, both memories at L - 1, and at least L + new columns read.
        slope_ms: additional ms that 1,000 new tokens take for 1,000 more cells of prefix, from the fit.
        slope_low, slope_high: its interval.
    """

    rows: int
    cache_n: int
    prompt_n: int
    positions: int
    columns: int
    slope_ms: float | None
    slope_low: float | None
    slope_high: float | None


def count(rows: pd.DataFrame, model: CostModel | None, memory_type: str) -> Counters:
    """Count over the rows of the fabricated arm.

    Args:
        rows: rows of the arm, error rows too.
        model: the fitted cost.
        memory_type: ``attention``, ``recurrent`` or ``hybrid``; says which positions there are.
    """
    # a row without an answer has no counters; it is an error row, and no sign of either mismatch
    rows = rows[rows.cache_n.notna()]
    last = rows.prefix_tokens - 1
    reached = pd.Series(True, index=rows.index)
    if memory_type in ("attention", "hybrid"):
        reached &= rows.seq_pos_max_attn == last
    if memory_type in ("recurrent", "hybrid"):
        reached &= rows.seq_pos_max_recr == last
    without = rows.prefix_tokens == 0
    slope = None if model is None else 1e6 * model.coefficients[2]
    low, high = (None, None) if model is None else (1e6 * bound for bound in _interval(model))
    total = rows.prefix_tokens + rows.new_tokens
    # only these memories tell how many columns they read
    reads = pd.Series(memory_type not in ("attention", "hybrid"), index=rows.index)
    return Counters(
        rows=len(rows),
        cache_n=int((rows.cache_n == rows.prefix_tokens).sum()),
        prompt_n=int((rows.prompt_n == rows.new_tokens).sum()),
        positions=int((reached | without).sum()),
        columns=int((reads | (rows.n_kv >= total)).sum()),
        slope_ms=slope,
        slope_low=low,
        slope_high=high,
    )


def _interval(model: CostModel) -> tuple[float, float]:
    tail = 100 * (1 - model.confidence) / 2
    low, high = np.percentile(model.resampled[:, 2], [tail, 100 - tail])
    return float(low), float(high)


def diagnose(counters: Counters, ratios: dict[int, float | None], margin: float, memory_type: str) -> dict[str, Any]:
    """Which mismatch applies, or that neither does, with the counters that say so.

    Args:
        ratios: measured / estimate of each bucket.
        margin: largest relative difference that counts as agreement.
    """
    known = {bucket: ratio for bucket, ratio in ratios.items() if ratio is not None and not pd.isna(ratio)}
    slow = [bucket for bucket, ratio in known.items() if ratio > 1 + margin]
    fast = [bucket for bucket, ratio in known.items() if ratio < 1 - margin]
    reprefilled = counters.cache_n < counters.rows or counters.prompt_n < counters.rows
    unread = counters.columns < counters.rows or counters.positions < counters.rows
    grows = counters.slope_low is None or counters.slope_low > 0 or memory_type == "recurrent"
    if reprefilled:
        name = REPREFILLED
        reason = (
            f"in {counters.rows - min(counters.cache_n, counters.prompt_n)} of {counters.rows} rows the server "
            "did not count the prefix as present and only the new tokens as computed"
        )
    elif unread:
        name = NOT_READ
        reason = (
            f"in {counters.rows - min(counters.columns, counters.positions)} of {counters.rows} rows the attention "
            "read fewer columns than prefix and new tokens, or a memory did not end at L - 1"
        )
    elif fast and not grows:
        name, reason = NOT_READ, "faster than the estimate, and the time does not grow with the prefix"
    elif slow or fast:
        name = UNCLEAR
        where = ", ".join(map(str, slow + fast))
        reason = (
            f"bucket {where} is outside of the margin, but all counters are right: neither a second prefill "
            "nor unread keys explain it; look at the drift and at the settings of both programs"
        )
    else:
        agrees = ", and the time agrees with the estimate" if known else "; no estimate to compare the time with"
        name, reason = NEITHER, f"all counters are right{agrees}"
    return {"finding": name, "reason": reason, "slow": slow, "fast": fast, "counters": asdict(counters)}
