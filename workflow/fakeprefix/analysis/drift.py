"""Whether the machine stayed the same: the fixed probe within and between jobs."""

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from fakeprefix.analysis.fidelity import JOB_PREFIX
from fakeprefix.figures import exact, percent

PROBE = "probe"
# probability at which a trend of the probes counts as one; three against three reach 0.1
TREND_P = 0.11


def probe_drift(rows: pd.DataFrame) -> dict[str, Any]:
    """How much the fixed probe differed between jobs and within them, relative to its overall median.

    Within a job: the median of its later half of probes against that of its earlier half, if the probes
    show a trend beyond their own noise; one disturbed probe is none, and three probes cannot tell.
    Between jobs: those of one bucket, which are compared with each other. Turns for fidelity are
    compared within one job only.
    """
    probes = rows[(rows.arm == PROBE) & (rows.status == "ok")]
    if probes.empty:
        return {"n": 0, "between_jobs": None, "within_jobs": None, "median_ms": None, "jobs": {}}
    overall = float(probes.prompt_ms.median())
    compared = probes[~probes.job.str.startswith(JOB_PREFIX)]
    medians = compared.groupby(["bucket", "job"]).prompt_ms.median().groupby("bucket")
    within = {
        job: _trend(group.sort_values(["started_at", "order"]).prompt_ms.to_numpy())
        for job, group in probes.groupby("job")
    }
    return {
        "n": len(probes),
        "median_ms": overall,
        "between_jobs": float((medians.max() - medians.min()).max() / overall) if len(compared) else 0.0,
        "within_jobs": max(abs(value) for value in within.values()) / overall,
        "jobs": {
            job: {"median_ms": float(group.prompt_ms.median()), "within": within[job] / overall, "n": len(group)}
            for job, group in probes.groupby("job")
        },
    }


def _trend(values: np.ndarray) -> float:
    half = len(values) // 2
    earlier, later = values[:half], values[len(values) - half :]
    # Mann and Whitney's rank test: with fewer than three on each side it can never reject
    if half < 3 or stats.mannwhitneyu(earlier, later).pvalue > TREND_P:
        return 0.0
    return float(np.median(later) - np.median(earlier))


def drift_problem(drift: dict[str, Any], bound: float) -> str | None:
    """Why the drift forbids a verdict; None if it does not."""
    if drift["between_jobs"] is None:
        return None
    if drift["between_jobs"] > bound:
        return f"the probe differed by {percent(drift['between_jobs'])} between jobs, more than {exact(100 * bound)} %"
    if drift["within_jobs"] > bound:
        job = max(drift["jobs"], key=lambda name: abs(drift["jobs"][name]["within"]))
        return f"the probe drifted by {percent(drift['within_jobs'])} within {job}, more than {exact(100 * bound)} %"
    return None
