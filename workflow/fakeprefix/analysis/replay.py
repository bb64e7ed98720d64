"""One row a step for a simulator, sums over tasks, and what a policy of forgetting is worth."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fakeprefix.analysis.depth_curve import decode_line
from fakeprefix.analysis.fit import CostModel
from fakeprefix.analysis.statistics import Bootstrap

BASELINE = "baseline"
KEY = ["task_id", "policy", "step"]
RECORDED = ["decode_s", "exec_s", "recorded_wall_s"]
PLAN_COLUMNS = [*KEY, *("prefix_tokens", "new_tokens", "image_tokens", "bucket", "status"), *RECORDED]

REPLAY_SCHEMA = pa.schema(
    [
        ("task_id", pa.string()),
        ("step", pa.int32()),
        ("policy", pa.string()),
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
        ("full_prefill_s", pa.float64()),
        ("full_source", pa.string()),
        ("decode_token_s", pa.float64()),
        ("decode_source", pa.string()),
    ]
)

TASKS_SCHEMA = pa.schema(
    [
        ("task_id", pa.string()),
        ("policy", pa.string()),
        ("steps", pa.int32()),
        ("complete", pa.bool_()),
        ("opt_prefill_s", pa.float64()),
        ("full_prefill_s", pa.float64()),
        ("decode_s", pa.float64()),
        ("exec_s", pa.float64()),
        ("opt_wall_s", pa.float64()),
        ("full_wall_s", pa.float64()),
        ("recorded_wall_s", pa.float64()),
        ("opt_over_recorded", pa.float64()),
        ("reason", pa.string()),
    ]
)


def encode_per_image_token(rows: pd.DataFrame, arm: str) -> float:
    """Median ms that encoding took for each token of an image; 0 without images."""
    images = rows[(rows.status == "ok") & (rows.arm == arm) & (rows.image_tokens > 0)]
    return float((images.image_encode_ms / images.image_tokens).median()) if len(images) else 0.0


def replay_frame(
    planned: pd.DataFrame, rows: pd.DataFrame, arm: str, model: CostModel | None, bootstrap: Bootstrap
) -> pd.DataFrame:
    """One row a step of the trace, in its order, with the columns of `REPLAY_SCHEMA`.

    A step that was measured has its median; one for which others of its bucket stand has the fitted
    cost, and ``source`` says so; without a fit its cost is missing. ``decode_token_s`` is one decoded token
    behind the step, measured, or else from a line through what was measured (``decode_source``); null
    without. ``full_source`` says where a whole prompt's time comes from, see `whole_prompt_ms`.

    Args:
        planned: the plan, columns `PLAN_COLUMNS`.
        rows: measurements of the steps.
        arm: the one that has the prefix.
        model: the fitted cost in ms, image encoding excluded.
    """
    counted = rows[(rows.arm == arm) & (rows.status == "ok")]
    encode = encode_per_image_token(rows, arm) * planned.image_tokens.to_numpy()
    frame = pd.DataFrame(
        {
            "task_id": planned.task_id,
            "step": planned.step,
            "policy": planned.policy,
            "L": planned.prefix_tokens,
            "only_new_tokens": planned.new_tokens,
            "cache_n": planned.prefix_tokens,
            "bucket": planned.bucket,
        }
    ).reset_index(drop=True)
    names = ("prefix_tokens", "new_tokens", "image_tokens")
    prefix, new, images = (planned[name].to_numpy(dtype=float) for name in names)
    if model is None:
        value, low, high = (np.full(len(planned), np.nan) for _ in range(3))
        source = np.full(len(planned), "missing", dtype=object)
    else:
        value, low, high = (part + encode for part in model.predict_many(prefix, new, images))
        source = np.where(model.extrapolates(prefix, new, images), "extrapolated", "fitted").astype(object)
    repetitions = np.zeros(len(planned), dtype=int)
    line = decode_line(counted)
    decode = np.full(len(planned), np.nan) if line is None else line[0] + line[1] * (prefix + new)
    decode_source = np.full(len(planned), "missing" if line is None else "fitted", dtype=object)
    places = {tuple(key): place for place, key in enumerate(planned[KEY].itertuples(index=False, name=None))}
    for key, group in counted.groupby(KEY, sort=False):
        place = places.get(key)
        if place is not None:
            time = bootstrap.median(group.prompt_ms.to_numpy())
            value[place], low[place], high[place] = time.value, time.low, time.high
            encode[place] = group.image_encode_ms.median()
            source[place], repetitions[place] = "measured", len(group)
            if (group.decode_n > 0).all():
                decode[place], decode_source[place] = (group.decode_ms / group.decode_n).median(), "measured"
    full, full_source = np.full(len(planned), np.nan), np.full(len(planned), "missing", dtype=object)
    for policy in planned.policy.unique():
        mine = (planned.policy == policy).to_numpy()
        own = rows[(rows.policy == policy) & (rows.arm == BASELINE)]
        whole = own if len(own) else rows[rows.arm == BASELINE]
        full[mine], full_source[mine] = whole_prompt_ms((prefix + new)[mine], whole, model, encode[mine])
    return frame.assign(
        measured_opt_prefill_s=value / 1e3,
        image_encode_s=np.where(source == "missing", np.nan, encode / 1e3),
        prompt_per_token_ms=value / new,
        source=source,
        n_repetitions=repetitions,
        ci_low_s=low / 1e3,
        ci_high_s=high / 1e3,
        full_prefill_s=full / 1e3,
        full_source=full_source,
        decode_token_s=decode / 1e3,
        decode_source=decode_source,
    )


def whole_prompt_ms(
    total: np.ndarray, baseline: pd.DataFrame, model: CostModel | None, encode: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Time of whole prompts without any cache in ms, NaN where nothing tells, and what it is; both ``(n,)``.

    ``interpolated`` over measured whole prompts, those of the same policy where there are any, since they
    encode as many images. ``extrapolated`` beyond the longest one, whose time grows as the fitted cost over
    no prefix does; without any measured one it is that fitted cost, with the encoding of the new images
    only. ``missing`` without a fit.
    """
    baseline = baseline[baseline.status == "ok"]
    zeros = np.zeros_like(total)
    fitted = np.full(len(total), np.nan) if model is None else model.predict_many(zeros, total, zeros)[0]
    if baseline.empty:
        return fitted + encode, np.where(np.isnan(fitted), "missing", "extrapolated").astype(object)
    medians = baseline.groupby(baseline.prefix_tokens + baseline.new_tokens).prompt_ms.median().sort_index()
    # through the origin: a prompt of no tokens takes no time
    known = np.concatenate([[0.0], medians.index.to_numpy(dtype=float)])
    times = np.concatenate([[0.0], medians.to_numpy()])
    inside = total <= known[-1]
    longest = np.array([known[-1]])
    scale = np.nan if model is None else times[-1] / model.predict_many(0 * longest, longest, 0 * longest)[0][0]
    value = np.where(inside, np.interp(total, known, times), fitted * scale)
    source = np.where(inside, "interpolated", np.where(np.isnan(value), "missing", "extrapolated"))
    return value, source.astype(object)


def task_frame(
    planned: pd.DataFrame, replay: pd.DataFrame, rejected: pd.DataFrame, imported: dict[str, Any]
) -> pd.DataFrame:
    """Sums over every task and policy, with the columns of `TASKS_SCHEMA`.

    A task with a step that has no cost, was refused or could not be imported is incomplete and not summed.

    Args:
        planned: the plan, columns `PLAN_COLUMNS`.
        replay: made by `replay_frame` of the same plan.
        rejected: the refused steps.
        imported: ``trace/import.json``.
    """
    frame = replay.assign(**{name: planned[name].to_numpy() for name in RECORDED})
    refused = rejected.groupby(["task_id", "policy"]).size()
    keys = list(dict.fromkeys(zip(frame.task_id, frame.policy, strict=True)))
    keys += [key for key in refused.index if key not in set(keys)]
    groups = dict(iter(frame.groupby(["task_id", "policy"], sort=False)))
    return pd.DataFrame(
        [
            _task_row(key, groups.get(key, frame.iloc[:0]), int(refused.get(key, 0)), _n_skipped(key[0], imported))
            for key in keys
        ],
        columns=TASKS_SCHEMA.names,
    )


def _n_skipped(task_id: str, imported: dict[str, Any]) -> int:
    """Records that the import skipped and that belong to a task, or may belong to it."""
    return imported["skipped_by_task"].get(task_id, 0) + imported["skipped_of_no_task"]


def _task_row(key: tuple[str, str], group: pd.DataFrame, n_refused: int, n_skipped: int) -> dict[str, Any]:
    missing = int((group.source == "missing").sum())
    reasons = []
    if missing:
        reasons.append(f"{missing} steps neither measured nor fitted")
    if n_refused:
        reasons.append(f"{n_refused} steps refused")
    if n_skipped:
        reasons.append(f"{n_skipped} records skipped by the import")
    row: dict[str, Any] = {
        "task_id": key[0],
        "policy": key[1],
        "steps": len(group) + n_refused,
        "complete": not reasons,
        "reason": "; ".join(reasons) or None,
    }
    if reasons:
        return row
    # a column that was not recorded for every step has no sum
    sums = {name: group[name].sum(skipna=False) for name in [*RECORDED, "full_prefill_s"]}
    prefill = float(group.measured_opt_prefill_s.sum())
    rest = sums["decode_s"] + sums["exec_s"]
    unknown = [name for name in ("decode_s", "exec_s") if pd.isna(sums[name])]
    return row | {
        "opt_prefill_s": prefill,
        "opt_wall_s": prefill + rest,
        "full_wall_s": sums["full_prefill_s"] + rest,
        "opt_over_recorded": (prefill + rest) / sums["recorded_wall_s"] if sums["recorded_wall_s"] else None,
        "reason": f"{' and '.join(unknown)} not recorded, so there is no wall time" if unknown else None,
        **sums,
    }


def compare_policies(tasks: pd.DataFrame, replay: pd.DataFrame) -> list[dict[str, Any]]:
    """For each task that was measured with several policies: what each costs with and without a cache.

    Returns:
        One entry a task: `policies` with their prefill in seconds, and for both kinds of cache the
        `winner` and `changes`, the prefix lengths (of the agent that keeps everything) at which another
        policy takes the lead in the sum up to there.
    """
    found = []
    for task_id, group in tasks.groupby("task_id", sort=True):
        if group.policy.nunique() < 2:
            continue
        entry: dict[str, Any] = {"task_id": task_id, "policies": {}}
        for row in group.itertuples():
            entry["policies"][row.policy] = {
                "complete": bool(row.complete),
                "with_cache_s": None if pd.isna(row.opt_prefill_s) else float(row.opt_prefill_s),
                "without_cache_s": None if pd.isna(row.full_prefill_s) else float(row.full_prefill_s),
                "reason": row.reason,
            }
        complete = [row.policy for row in group.itertuples() if row.complete]
        mine = replay[(replay.task_id == task_id) & replay.policy.isin(complete)]
        for name, column in (("with_cache", "measured_opt_prefill_s"), ("without_cache", "full_prefill_s")):
            entry[name] = _leaders(mine, column) if len(complete) > 1 else None
        found.append(entry)
    return found


def _leaders(mine: pd.DataFrame, column: str) -> dict[str, Any] | None:
    # a step that is the same for all policies costs the same, what its repetitions differ by is noise
    alike = mine.groupby("step")[["L", "only_new_tokens"]].transform("nunique").eq(1).all(axis=1)
    cost = mine[column].where(~alike, mine.groupby("step")[column].transform("mean"))
    sums = mine.assign(cost=cost).pivot_table(index="step", columns="policy", values="cost").cumsum().dropna()
    if sums.empty:
        return None
    # policies that are the same so far have no leader
    ties = sums.sub(sums.min(axis=1), axis=0).abs() < 1e-9
    leader = sums.idxmin(axis=1).where(ties.sum(axis=1) == 1)
    depth = mine[mine.policy == "keep_all"].set_index("step").L
    changes, last = [], None
    for step, name in leader.dropna().items():
        if name != last:
            changes.append({"policy": name, "step": int(step), "L": int(depth.get(step, -1))})
            last = name
    return {"winner": last, "changes": changes}
