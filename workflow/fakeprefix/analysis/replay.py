"""One row a step for a simulator, and sums over tasks."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fakeprefix.analysis.fit import CostModel
from fakeprefix.analysis.statistics import Bootstrap

BASELINE = "baseline"

REPLAY_SCHEMA = pa.schema(
    [
        ("task_id", pa.string()),
        ("step", pa.int32()),
        ("L", pa.int64()),
        ("only_new_tokens", pa.int64()),
        ("measured_opt_prefill_s", pa.float64()),
        ("image_encode_s", pa.float64()),
        ("cache_n", pa.int64()),
        ("prompt_per_token_ms", pa.float64()),
        ("bucket", pa.int32()),
        ("source", pa.string()),
        ("n_repetitions", pa.int32()),
        ("ci_low_s", pa.float64()),
        ("ci_high_s", pa.float64()),
    ]
)

TASKS_SCHEMA = pa.schema(
    [
        ("task_id", pa.string()),
        ("steps", pa.int32()),
        ("complete", pa.bool_()),
        ("opt_prefill_s", pa.float64()),
        ("decode_s", pa.float64()),
        ("exec_s", pa.float64()),
        ("opt_wall_s", pa.float64()),
        ("recorded_wall_s", pa.float64()),
        ("full_prefill_s", pa.float64()),
        ("reason", pa.string()),
    ]
)


def encode_per_image_token(rows: pd.DataFrame, arm: str) -> float:
    """Median ms that encoding took for each token of an image; 0 without images."""
    images = rows[(rows.status == "ok") & (rows.arm == arm) & (rows.image_tokens > 0)]
    return float((images.image_encode_ms / images.image_tokens).median()) if len(images) else 0.0


def replay_row(
    step: Any, rows: pd.DataFrame, arm: str, model: CostModel | None, encode: float, bootstrap: Bootstrap
) -> dict[str, Any]:
    """One row for a simulator: measured where it was measured, fitted where others stand for it."""
    row: dict[str, Any] = {
        "task_id": step.task_id,
        "step": step.step,
        "L": step.prefix_tokens,
        "only_new_tokens": step.new_tokens,
        "cache_n": step.prefix_tokens,
        "bucket": step.bucket,
    }
    mine = rows[(rows.task_id == step.task_id) & (rows.step == step.step) & (rows.arm == arm) & (rows.status == "ok")]
    if len(mine):
        time = bootstrap.median(mine.prompt_ms.to_numpy())
        value, low, high, encoding = time.value, time.low, time.high, float(mine.image_encode_ms.median())
        row |= {"source": "measured", "n_repetitions": len(mine)}
    elif model is not None:
        encoding = encode * step.image_tokens
        value, low, high = (part + encoding for part in model.predict(step.prefix_tokens, step.new_tokens))
        source = "extrapolated" if model.extrapolates(step.prefix_tokens, step.new_tokens) else "fitted"
        row |= {"source": source, "n_repetitions": 0}
    else:
        return row | {"source": "missing", "n_repetitions": 0}
    return row | {
        "measured_opt_prefill_s": value / 1e3,
        "image_encode_s": encoding / 1e3,
        "prompt_per_token_ms": value / step.new_tokens,
        "ci_low_s": low / 1e3,
        "ci_high_s": high / 1e3,
    }


def task_row(task: str, group: pd.DataFrame, replay: pd.DataFrame, rows: pd.DataFrame) -> dict[str, Any]:
    """Sums over a task; incomplete where a step has no cost, not summed."""
    mine = replay[replay.task_id == task]
    reasons = []
    if (mine.source == "missing").any():
        reasons.append(f"{int((mine.source == 'missing').sum())} steps neither measured nor fitted")
    for column in ("decode_s", "exec_s"):
        if group[column].isna().any():
            reasons.append(f"{column} was not recorded")
    row: dict[str, Any] = {
        "task_id": task,
        "steps": len(group),
        "complete": not reasons,
        "reason": "; ".join(reasons) or None,
    }
    if reasons:
        return row
    prefill, decode, execution = mine.measured_opt_prefill_s.sum(), group.decode_s.sum(), group.exec_s.sum()
    recorded = None if group.recorded_wall_s.isna().any() else float(group.recorded_wall_s.sum())
    return row | {
        "opt_prefill_s": float(prefill),
        "decode_s": float(decode),
        "exec_s": float(execution),
        "opt_wall_s": float(prefill + decode + execution),
        "recorded_wall_s": recorded,
        "full_prefill_s": _full_prefill_s(group, rows),
    }


def _full_prefill_s(group: pd.DataFrame, rows: pd.DataFrame) -> float | None:
    """Prefill time of a task if every step computed its whole prompt, interpolated over the baselines."""
    baseline = rows[(rows.arm == BASELINE) & (rows.status == "ok")]
    if baseline.empty:
        return None
    total = baseline.prefix_tokens + baseline.new_tokens
    medians = baseline.groupby(total).prompt_ms.median().sort_index()
    lengths = (group.prefix_tokens + group.new_tokens).to_numpy()
    # through the origin: a prompt of no tokens takes no time
    known = np.concatenate([[0.0], medians.index.to_numpy(dtype=float)])
    return float(np.interp(lengths, known, np.concatenate([[0.0], medians.to_numpy()])).sum() / 1e3)
