"""What a run may say: registered, faithful, in agreement, on a machine that stayed the same."""

from typing import Any

import numpy as np
import pandas as pd

from fakeprefix.analysis.drift import PROBE, drift_problem
from fakeprefix.analysis.fit import CostModel

PRIME = "prime"
# tasks in the summary; analysis/tasks.parquet has all
MAX_TASKS = 100
AGREES, UNDECIDED, DISAGREES, MISSING = "agrees", "undecided", "disagrees", "missing"
# no prefix of such a length was really computed, on purpose
NOT_COMPARED = "not compared"


def summarize(
    rows: pd.DataFrame,
    buckets: pd.DataFrame,
    tasks: pd.DataFrame,
    drift: dict[str, Any],
    faithful: dict[str, Any],
    model: CostModel | None,
    plan: dict[str, Any],
    config: dict[str, Any],
) -> dict[str, Any]:
    """The verdict and the figures behind it.

    Args:
        rows: all measurements.
        buckets: the buckets' rows of the agreement table.
        drift: see `fakeprefix.analysis.drift.probe_drift`.
        faithful: see `fakeprefix.analysis.fidelity.summarize`.
        plan: ``trace/plan.json``.
        config: section ``analysis`` of the configuration.
    """
    counted = rows[~rows.arm.isin([PROBE, PRIME])]
    errors = rows[rows.status != "ok"]
    margin = config["agreement_margin"]
    has_estimate = "n_estimate" in buckets and bool(buckets.n_estimate.max())
    found_by_bucket = [agreement(row, margin) for row in buckets.itertuples(index=False)] if has_estimate else []
    agreements = [found for found in found_by_bucket if found != NOT_COMPARED]
    drifted = drift_problem(drift, config["max_drift"])
    complete = tasks[tasks.complete] if len(tasks) else tasks
    return {
        "verdict": verdict(errors.empty, drifted, faithful, agreements),
        "registered": errors.empty,
        "has_estimate": has_estimate,
        "agrees": has_estimate and all(found == AGREES for found in agreements),
        "agreement_by_bucket": dict(zip([str(bucket) for bucket in buckets.bucket], found_by_bucket, strict=False)),
        "drifted": drifted,
        "fidelity": faithful,
        "margin": margin,
        "equivalence_margin": config["equivalence_margin"],
        "confidence": config["confidence"],
        "max_drift": config["max_drift"],
        "rows": len(counted),
        "error_rows": len(errors),
        "errors": sorted(errors.error.dropna().unique().tolist())[:10],
        "buckets": plain(buckets),
        "drift": drift,
        "tasks": plain(complete.head(MAX_TASKS)),
        "n_tasks": len(tasks),
        "n_tasks_complete": len(complete),
        "plan": {key: plan[key] for key in ("n_steps", "n_rejected", "n_unmeasurable", "n_measured", "n_ctx")},
        "fit": None
        if model is None
        else {
            "formula": "a + b new + (c many + d few) (prefix + new / 2), in ms without image encoding",
            "a": float(model.coefficients[0]),
            "b": float(model.coefficients[1]),
            "c": float(model.coefficients[2]),
            "d": float(model.coefficients[3]),
            "max_relative_residual": float(np.abs(model.relative_residuals).max()),
        },
    }


def agreement(row: Any, margin: float) -> str:
    """How one bucket's measurement stands to its estimate.

    A bucket without a step whose prefix was really computed is not compared. Within the margin it agrees;
    outside with all of its interval it disagrees; in between the repetitions do not suffice to tell.
    """
    ratio = getattr(row, "measured_over_estimate", None)
    if not row.n_compared:
        return NOT_COMPARED
    if ratio is None or pd.isna(ratio):
        return MISSING
    if abs(ratio - 1) <= margin:
        return AGREES
    low, high = row.measured_over_estimate_low, row.measured_over_estimate_high
    return UNDECIDED if low <= 1 + margin and high >= 1 - margin else DISAGREES


def verdict(registered: bool, drifted: str | None, faithful: dict[str, Any], agreements: list[str]) -> str:
    """``trusted``, or the first reason why the figures cannot be.

    A fill that differs from a real prefix by more than the margin is a reason; one that is not shown to
    be equivalent is not, the report says beside the verdict that it is not shown.
    """
    if not registered:
        return "not registered"
    if drifted:
        return "no verdict: the machine drifted"
    if faithful["exceeds"]:
        return "not faithful: the fabricated prefix costs something else than a real one"
    if not agreements:
        return "valid; no estimate to compare with"
    if DISAGREES in agreements or MISSING in agreements:
        return "disagrees with the estimate"
    return "trusted" if UNDECIDED not in agreements else "undecided: too few repetitions for this machine's noise"


def plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a frame as JSON values, NaN as null."""
    values = frame.astype(object).where(frame.notna(), None)
    return [
        {key: value.item() if isinstance(value, np.generic) else value for key, value in row.items()}
        for row in values.to_dict(orient="records")
    ]
