"""Measured against arithmetic, fabricated against whole prompts: per step, per bucket, and the verdict."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fakeprefix.analysis.estimate import Rates, read_rates
from fakeprefix.analysis.fit import CostModel, fit_cost
from fakeprefix.analysis.statistics import Bootstrap, Estimate
from fakeprefix.storage import replacing, write_json, write_table

FAKE, BASELINE, PROBE = "fake_prefix", "baseline", "probe"
AGREES, UNDECIDED, DISAGREES, MISSING = "agrees", "undecided", "disagrees", "missing"

AGREEMENT_SCHEMA = pa.schema(
    [
        ("level", pa.string()),
        ("bucket", pa.int32()),
        ("task_id", pa.string()),
        ("step", pa.int32()),
        ("prefix_tokens", pa.int64()),
        ("new_tokens", pa.int64()),
        ("image_tokens", pa.int64()),
        ("rows", pa.int32()),
        ("rows_registered", pa.int32()),
        *[
            (f"{name}{part}", pa.float64())
            for name in (
                "fake_prompt_ms",
                "baseline_prompt_ms",
                "image_encode_ms",
                "install_ms",
                "speedup",
                "estimate_ms",
                "measured_over_estimate",
                "measured_over_naive",
            )
            for part in ("", "_low", "_high")
        ],
        ("n_fake", pa.int32()),
        ("n_baseline", pa.int32()),
        ("n_estimate", pa.int32()),
        ("baseline_history", pa.string()),
    ]
)

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


@dataclass(frozen=True)
class Analysis:
    """Everything that the report shows.

    Attributes:
        steps, buckets: rows of `AGREEMENT_SCHEMA` as frames.
        replay, tasks: rows of the schemas of these names as frames.
        model: the fitted cost, None with too few steps.
        summary: the verdict and the figures behind it.
    """

    steps: pd.DataFrame
    buckets: pd.DataFrame
    replay: pd.DataFrame
    tasks: pd.DataFrame
    model: CostModel | None
    summary: dict[str, Any]


def analyse(
    measurements: Path, plan: Path, depth_rates: list[Path], summary_of_plan: dict[str, Any], config: dict[str, Any]
) -> Analysis:
    """Compute everything from the files of a run.

    Args:
        measurements: ``measurements.parquet``.
        plan: ``trace/plan.parquet``.
        depth_rates: ``raw/depth_rate/*.json``.
        summary_of_plan: ``trace/plan.json``.
        config: section ``analysis`` of the configuration.
    """
    rows = pd.read_parquet(measurements)
    planned = pd.read_parquet(plan)
    rates = read_rates(depth_rates)
    bootstrap = Bootstrap(config["confidence"], config["bootstrap"], config["seed"])

    measured = planned[planned.status == "measured"]
    samples = {(step.task_id, step.step): _samples(rows, step, rates) for step in _records(measured)}
    steps = pd.DataFrame([_step_row(step, samples[step.task_id, step.step], bootstrap) for step in _records(measured)])
    buckets = pd.DataFrame(
        [_bucket_row(bucket, group, samples, bootstrap) for bucket, group in measured.groupby("bucket", sort=True)]
    )
    model = _fit(rows, bootstrap)
    encode = encode_per_image_token(rows)
    replay = pd.DataFrame([_replay_row(step, rows, model, encode, bootstrap) for step in _records(planned)])
    tasks = pd.DataFrame(
        [_task_row(task, group, replay, rows) for task, group in planned.groupby("task_id", sort=True)]
    )
    drift = probe_drift(rows)
    summary = _summary(rows, steps, buckets, tasks, drift, model, summary_of_plan, config)
    return Analysis(steps, buckets, replay, tasks, model, summary)


def write_analysis(analysis: Analysis, folder: Path) -> None:
    """Write the tables below a run folder."""
    table = pd.concat([analysis.steps, analysis.buckets], ignore_index=True)
    _write(folder / "analysis" / "agreement.parquet", table, AGREEMENT_SCHEMA)
    with replacing(folder / "analysis" / "agreement.csv") as temporary:
        table.reindex(columns=AGREEMENT_SCHEMA.names).to_csv(temporary, index=False)
    _write(folder / "analysis" / "tasks.parquet", analysis.tasks, TASKS_SCHEMA)
    _write(folder / "replay.parquet", analysis.replay, REPLAY_SCHEMA)
    with replacing(folder / "replay.jsonl") as temporary:
        analysis.replay.reindex(columns=REPLAY_SCHEMA.names).to_json(temporary, orient="records", lines=True)
    write_json(folder / "summary.json", analysis.summary)


def _write(path: Path, frame: pd.DataFrame, schema: pa.Schema) -> None:
    frame = frame.reindex(columns=schema.names)
    write_table(path, pa.Table.from_pandas(frame, schema=schema, preserve_index=False), schema)


def _records(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples(index=False))


@dataclass(frozen=True)
class StepSamples:
    """Samples of one measured step, in ms; only rows that registered."""

    fake: np.ndarray
    baseline: np.ndarray
    encode: np.ndarray
    install: np.ndarray
    estimate: np.ndarray
    naive: np.ndarray
    n_rows: int
    n_registered: int
    history: str | None

    @property
    def computed(self) -> np.ndarray:
        """Prefill without image encoding, which is a term of its own on both sides."""
        return self.fake - self.encode


def _samples(rows: pd.DataFrame, step: Any, rates: Rates) -> StepSamples:
    mine = rows[(rows.task_id == step.task_id) & (rows.step == step.step)]
    counted = mine[mine.status == "ok"]
    fake, baseline = counted[counted.arm == FAKE], counted[counted.arm == BASELINE]
    naive = [1e3 * step.new_tokens / rate for rate in rates.naive]
    return StepSamples(
        fake=fake.prompt_ms.to_numpy(),
        baseline=baseline.prompt_ms.to_numpy(),
        encode=fake.image_encode_ms.to_numpy(),
        install=fake.install_ms.to_numpy(),
        estimate=1e3 * np.array(rates.step_samples(step.task_id, step.step, step.prefix_tokens)),
        naive=np.array(naive),
        n_rows=len(mine),
        n_registered=len(counted),
        history=next(iter(baseline.history.dropna()), None),
    )


def _put(row: dict[str, Any], name: str, estimate: Estimate | None) -> None:
    for part, value in (("", "value"), ("_low", "low"), ("_high", "high")):
        row[name + part] = getattr(estimate, value) if estimate else None


def _step_row(step: Any, samples: StepSamples, bootstrap: Bootstrap) -> dict[str, Any]:
    row: dict[str, Any] = {
        "level": "step",
        "bucket": step.bucket,
        "task_id": step.task_id,
        "step": step.step,
        "prefix_tokens": step.prefix_tokens,
        "new_tokens": step.new_tokens,
        "image_tokens": step.image_tokens,
        "rows": samples.n_rows,
        "rows_registered": samples.n_registered,
        "n_fake": len(samples.fake),
        "n_baseline": len(samples.baseline),
        "n_estimate": len(samples.estimate),
        "baseline_history": samples.history,
    }
    has_fake, has_baseline = len(samples.fake) > 0, len(samples.baseline) > 0
    _put(row, "fake_prompt_ms", bootstrap.median(samples.fake) if has_fake else None)
    _put(row, "baseline_prompt_ms", bootstrap.median(samples.baseline) if has_baseline else None)
    _put(row, "image_encode_ms", bootstrap.median(samples.encode) if has_fake else None)
    _put(row, "install_ms", bootstrap.median(samples.install) if has_fake else None)
    _put(row, "speedup", bootstrap.ratio(samples.baseline, samples.fake) if has_fake and has_baseline else None)
    _put(row, "estimate_ms", bootstrap.median(samples.estimate) if len(samples.estimate) else None)
    agrees = has_fake and len(samples.estimate)
    _put(row, "measured_over_estimate", bootstrap.ratio(samples.computed, samples.estimate) if agrees else None)
    _put(row, "measured_over_naive", bootstrap.ratio(samples.computed, samples.naive) if agrees else None)
    return row


def _bucket_row(bucket: int, group: pd.DataFrame, samples: dict, bootstrap: Bootstrap) -> dict[str, Any]:
    parts = [samples[step.task_id, step.step] for step in _records(group)]
    row: dict[str, Any] = {
        "level": "bucket",
        "bucket": bucket,
        "task_id": None,
        "step": None,
        "prefix_tokens": int(group.prefix_tokens.median()),
        "new_tokens": int(group.new_tokens.sum()),
        "image_tokens": int(group.image_tokens.sum()),
        "rows": sum(part.n_rows for part in parts),
        "rows_registered": sum(part.n_registered for part in parts),
        "n_fake": sum(len(part.fake) for part in parts),
        "n_baseline": sum(len(part.baseline) for part in parts),
        "n_estimate": min(len(part.estimate) for part in parts),
        "baseline_history": "/".join(sorted({part.history for part in parts if part.history})) or None,
    }
    fakes, baselines = [part.fake for part in parts], [part.baseline for part in parts]
    if all(len(fake) for fake in fakes):
        computed, estimates = [part.computed for part in parts], [part.estimate for part in parts]
        if all(len(estimate) for estimate in estimates):
            _put(row, "measured_over_estimate", bootstrap.ratio_of_sums(computed, estimates))
            _put(row, "measured_over_naive", bootstrap.ratio_of_sums(computed, [part.naive for part in parts]))
        if all(len(baseline) for baseline in baselines):
            _put(row, "speedup", bootstrap.ratio_of_sums(baselines, fakes))
    return row


def _fit(rows: pd.DataFrame, bootstrap: Bootstrap) -> CostModel | None:
    fake = rows[(rows.arm == FAKE) & (rows.status == "ok")]
    if fake.empty:
        return None
    return fit_cost(fake.prefix_tokens, fake.new_tokens, fake.prompt_ms - fake.image_encode_ms, bootstrap)


def encode_per_image_token(rows: pd.DataFrame) -> float:
    """Median ms that encoding took for each token of an image; 0 without images."""
    images = rows[(rows.status == "ok") & (rows.arm == FAKE) & (rows.image_tokens > 0)]
    return float((images.image_encode_ms / images.image_tokens).median()) if len(images) else 0.0


def _replay_row(
    step: Any, rows: pd.DataFrame, model: CostModel | None, encode: float, bootstrap: Bootstrap
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
    mine = rows[(rows.task_id == step.task_id) & (rows.step == step.step) & (rows.arm == FAKE) & (rows.status == "ok")]
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


def _task_row(task: str, group: pd.DataFrame, replay: pd.DataFrame, rows: pd.DataFrame) -> dict[str, Any]:
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


def probe_drift(rows: pd.DataFrame) -> dict[str, Any]:
    """How much the fixed probe differed between jobs and within them, relative to its overall median."""
    probes = rows[(rows.arm == PROBE) & (rows.status == "ok")]
    if probes.empty:
        return {"n": 0, "between_jobs": None, "within_jobs": None, "median_ms": None}
    overall = float(probes.prompt_ms.median())
    medians = probes.groupby("job").prompt_ms.median()
    spreads = probes.groupby("job").prompt_ms.agg(lambda values: values.max() - values.min())
    return {
        "n": len(probes),
        "median_ms": overall,
        "between_jobs": float((medians.max() - medians.min()) / overall),
        "within_jobs": float(spreads.max() / overall),
        "jobs": {job: float(value) for job, value in medians.items()},
    }


def _summary(
    rows: pd.DataFrame,
    steps: pd.DataFrame,
    buckets: pd.DataFrame,
    tasks: pd.DataFrame,
    drift: dict[str, Any],
    model: CostModel | None,
    plan: dict[str, Any],
    config: dict[str, Any],
) -> dict[str, Any]:
    counted = rows[rows.arm != PROBE]
    errors = counted[counted.status != "ok"]
    margin = config["agreement_margin"]
    registered = len(errors) == 0
    agreements = [agreement(row, margin) for row in _records(buckets)]
    drifted = drift["between_jobs"] is not None and drift["between_jobs"] > config["max_drift"]
    complete = tasks[tasks.complete] if len(tasks) else tasks
    return {
        "verdict": verdict(registered, agreements, drifted),
        "registered": registered,
        "agrees": all(found == AGREES for found in agreements),
        "agreement_by_bucket": dict(zip([str(bucket) for bucket in buckets.bucket], agreements, strict=True)),
        "drifted": drifted,
        "margin": margin,
        "confidence": config["confidence"],
        "max_drift": config["max_drift"],
        "rows": len(counted),
        "error_rows": len(errors),
        "errors": sorted(errors.error.dropna().unique().tolist())[:10],
        "buckets": _plain(buckets),
        "drift": drift,
        "tasks": _plain(complete),
        "plan": {key: plan[key] for key in ("n_steps", "n_rejected", "n_unmeasurable", "n_measured", "n_ctx")},
        "fit": None
        if model is None
        else {
            "formula": "a + b new + c new (prefix + new / 2), ms without image encoding",
            "a": float(model.coefficients[0]),
            "b": float(model.coefficients[1]),
            "c": float(model.coefficients[2]),
            "max_relative_residual": float(np.abs(model.relative_residuals).max()),
        },
    }


def agreement(row: Any, margin: float) -> str:
    """How one bucket's measurement stands to its estimate.

    Within the margin it agrees; outside with all of its interval it disagrees; in between the
    repetitions do not suffice to tell.
    """
    ratio = getattr(row, "measured_over_estimate", None)
    if ratio is None or pd.isna(ratio):
        return MISSING
    if abs(ratio - 1) <= margin:
        return AGREES
    low, high = row.measured_over_estimate_low, row.measured_over_estimate_high
    return UNDECIDED if low <= 1 + margin and high >= 1 - margin else DISAGREES


def verdict(registered: bool, agreements: list[str], drifted: bool) -> str:
    """``trusted``, or the first reason why the figures cannot be."""
    if not registered:
        return "not registered"
    if drifted:
        return "no verdict: the machine drifted"
    if DISAGREES in agreements or MISSING in agreements or not agreements:
        return "disagrees with the estimate"
    return "trusted" if UNDECIDED not in agreements else "undecided: too few repetitions for this machine's noise"


def _plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a frame as JSON values, NaN as null."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [
        {key: value.item() if isinstance(value, np.generic) else value for key, value in row.items()}
        for row in plain.to_dict(orient="records")
    ]
