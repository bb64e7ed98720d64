"""Measured against arithmetic, and the ways of having a prefix against whole prompts: per step, kind and bucket."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fakeprefix.analysis import depth_curve, fidelity, verdict
from fakeprefix.analysis.benchmark_rates import read_rates
from fakeprefix.analysis.diagnosis import count, diagnose
from fakeprefix.analysis.drift import probe_drift
from fakeprefix.analysis.fit import CostModel, fit_cost
from fakeprefix.analysis.replay import (
    KEY,
    PLAN_COLUMNS,
    RECORDED,
    REPLAY_SCHEMA,
    TASKS_SCHEMA,
    compare_policies,
    replay_frame,
    task_frame,
)
from fakeprefix.analysis.samples import (
    ARMS,
    BASELINE,
    PREFIXED,
    StepSamples,
    key_of,
    step_samples,
)
from fakeprefix.analysis.statistics import Bootstrap, Estimate
from fakeprefix.storage import read_json, replacing, write_json, write_table

KINDS = ("text only", "with a screenshot")

AGREEMENT_SCHEMA = pa.schema(
    [
        ("level", pa.string()),
        ("kind", pa.string()),
        ("bucket", pa.int32()),
        ("task_id", pa.string()),
        ("policy", pa.string()),
        ("step", pa.int32()),
        ("prefix_tokens", pa.int64()),
        ("new_tokens", pa.int64()),
        ("image_tokens", pa.int64()),
        ("rows", pa.int32()),
        ("rows_registered", pa.int32()),
        ("arm", pa.string()),
        *[
            (f"{name}{part}", pa.float64())
            for name in (
                "baseline_prompt_ms",
                "fake_prefix_prompt_ms",
                "state_restore_prompt_ms",
                "cached_prefix_prompt_ms",
                "image_encode_ms",
                "install_ms",
                "restore_ms",
                "speedup",
                "estimate_ms",
                "measured_over_estimate",
                "measured_over_naive",
                *(f"{arm}_decode_token_ms" for arm in ARMS),
                "decode_estimate_token_ms",
                "decode_over_estimate",
                "decode_over_baseline",
            )
            for part in ("", "_low", "_high")
        ],
        ("restore_bytes", pa.int64()),
        *[(f"n_{name}", pa.int32()) for name in (*ARMS, "estimate")],
        ("n_decode_estimate", pa.int32()),
        ("n_steps", pa.int32()),
        ("n_compared", pa.int32()),
        ("baseline_history", pa.string()),
    ]
)


@dataclass(frozen=True)
class Analysis:
    """Everything that the report shows.

    Attributes:
        steps, kinds, buckets: rows of `AGREEMENT_SCHEMA` as frames.
        fidelity: rows of `fakeprefix.analysis.fidelity.FIDELITY_SCHEMA` as a frame.
        curve: rows of `fakeprefix.analysis.depth_curve.CURVE_SCHEMA` as a frame.
        replay, tasks: rows of the schemas of these names as frames.
        recorded: what the trace recorded of every row of `replay`: ``decode_s``, ``exec_s``, ``recorded_wall_s``.
        rows: all measurements.
        model: the fitted cost, None with too few steps.
        summary: the verdict and the figures behind it.
    """

    steps: pd.DataFrame
    kinds: pd.DataFrame
    buckets: pd.DataFrame
    fidelity: pd.DataFrame
    curve: pd.DataFrame
    replay: pd.DataFrame
    tasks: pd.DataFrame
    recorded: pd.DataFrame
    rows: pd.DataFrame
    model: CostModel | None
    summary: dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What the analysis has to know besides the measurements.

    Attributes:
        config: section ``analysis`` of the configuration.
        fill: the fill of the fabricated prefixes.
        plan: ``trace/plan.json``.
        memory_type: of the model, as the server said.
        imported: ``trace/import.json``.
        n_ubatch: physical batch in tokens.
    """

    config: dict[str, Any]
    fill: str
    plan: dict[str, Any]
    memory_type: str
    imported: dict[str, Any]
    n_ubatch: int

    @classmethod
    def of_run(cls, config: dict[str, Any], fill: str, plan: Path, imported: Path, server_config: Path) -> "Settings":
        """From the files of a run, ``trace/plan.json``, ``trace/import.json`` and ``engine/server_config.json``."""
        resolved = read_json(server_config)["resolved"]
        return cls(
            config=config,
            fill=fill,
            plan=read_json(plan),
            memory_type=resolved["memory_type"],
            imported=read_json(imported),
            n_ubatch=resolved["n_ubatch"],
        )


def analyse(
    measurements: Path,
    plan: Path,
    rejected: Path,
    depth_rates: Sequence[Path],
    logits: Sequence[Path],
    settings: Settings,
) -> Analysis:
    """Compute everything from the files of a run.

    Args:
        measurements: ``measurements.parquet``.
        plan: ``trace/plan.parquet``.
        rejected: ``trace/rejected.parquet``.
        depth_rates: ``raw/depth_rate/*.json``.
        logits: ``raw/fidelity/*.logits.json``.
    """
    everything = pd.read_parquet(measurements)
    rows = everything[~everything.job.str.startswith(fidelity.JOB_PREFIX)]
    planned = pd.read_parquet(plan, columns=PLAN_COLUMNS)
    rates = read_rates(depth_rates)
    config = settings.config
    bootstrap = Bootstrap(config["confidence"], config["bootstrap"], config["seed"])

    arm = next((arm for arm in PREFIXED if (rows.arm == arm).any()), PREFIXED[0])
    measured = planned[planned.status == "measured"]
    up_to = settings.plan.get("real_prefix_up_to") or np.inf
    samples = {key_of(step): step_samples(rows, step, rates, arm, up_to) for step in _records(measured)}
    steps = pd.DataFrame([_step_row(step, samples[key_of(step)], bootstrap) for step in _records(measured)])
    kinds = pd.DataFrame(
        [
            _group_row("kind", group, samples, up_to, bootstrap) | {"kind": kind}
            for kind, group in measured.groupby(np.where(measured.image_tokens > 0, *KINDS[::-1]), sort=True)
        ]
    )
    buckets = pd.DataFrame(
        [
            _group_row("bucket", group, samples, up_to, bootstrap) | {"bucket": bucket}
            for bucket, group in measured.groupby("bucket", sort=True)
        ]
    )
    model = _fit(rows, arm, settings.n_ubatch, bootstrap)
    replay = replay_frame(planned, rows, arm, model, bootstrap)
    tasks = task_frame(planned, replay, pd.read_parquet(rejected), settings.imported)
    compared = fidelity.compare(everything, bootstrap, config["equivalence_margin"])
    curve = depth_curve.curve_frame(rows[rows.arm == arm], bootstrap)
    faithful = fidelity.summarize(compared, settings.fill) | {
        "logits": fidelity.compare_logits(logits),
        "decode": verdict.plain(fidelity.of_decode(compared, settings.fill)),
    }
    ratios = {int(row.bucket): getattr(row, "measured_over_estimate", None) for row in _records(buckets)}
    summary = verdict.summarize(
        everything, buckets, tasks, probe_drift(everything), faithful, model, settings.plan, config
    ) | {
        "arm": arm,
        "kinds": verdict.plain(kinds),
        "whole_prompts_up_to": _longest_whole_prompt(rows),
        "hosts": sorted(everything.host.unique().tolist()),
        "decoded_per_repetition": int(rows.decode_n.fillna(0).max()),
        "real_prefix_up_to": settings.plan.get("real_prefix_up_to", 0),
        "depth_curves": depth_curve.summarize(curve, depth_curve.spread_of_probes(rows, arm)),
        "policies": compare_policies(tasks, replay),
        "diagnosis": diagnose(
            count(rows[rows.arm == arm], model, settings.memory_type),
            ratios,
            config["agreement_margin"],
            settings.memory_type,
        ),
    }
    recorded = planned[[*KEY, *RECORDED]].reset_index(drop=True)
    return Analysis(steps, kinds, buckets, compared, curve, replay, tasks, recorded, everything, model, summary)


def write_analysis(analysis: Analysis, folder: Path) -> None:
    """Write the tables below a run folder."""
    table = pd.concat([analysis.steps, analysis.kinds, analysis.buckets], ignore_index=True)
    write_frame(folder / "analysis" / "agreement.parquet", table, AGREEMENT_SCHEMA)
    with replacing(folder / "analysis" / "agreement.csv") as temporary:
        table.reindex(columns=AGREEMENT_SCHEMA.names).to_csv(temporary, index=False)
    write_frame(folder / "analysis" / "fidelity.parquet", analysis.fidelity, fidelity.FIDELITY_SCHEMA)
    write_frame(folder / "analysis" / "depth.parquet", analysis.curve, depth_curve.CURVE_SCHEMA)
    write_frame(folder / "analysis" / "tasks.parquet", analysis.tasks, TASKS_SCHEMA)
    write_frame(folder / "replay.parquet", analysis.replay, REPLAY_SCHEMA)
    with replacing(folder / "replay.jsonl") as temporary:
        analysis.replay.reindex(columns=REPLAY_SCHEMA.names).to_json(temporary, orient="records", lines=True)
    write_json(folder / "summary.json", analysis.summary)


def write_frame(path: Path, frame: pd.DataFrame, schema: pa.Schema) -> None:
    """Write a frame as Parquet with exactly `schema`, atomically; columns that it lacks are null."""
    frame = frame.reindex(columns=schema.names)
    write_table(path, pa.Table.from_pandas(frame, schema=schema, preserve_index=False), schema)


def _records(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples(index=False))


def _put(row: dict[str, Any], name: str, estimate: Estimate | None) -> None:
    if estimate:
        row |= estimate.columns(name)
    else:
        row |= dict.fromkeys((name, f"{name}_low", f"{name}_high"))


def _step_row(step: Any, samples: StepSamples, bootstrap: Bootstrap) -> dict[str, Any]:
    row: dict[str, Any] = {
        "level": "step",
        "kind": KINDS[step.image_tokens > 0],
        "bucket": step.bucket,
        "task_id": step.task_id,
        "policy": step.policy,
        "step": step.step,
        "prefix_tokens": step.prefix_tokens,
        "new_tokens": step.new_tokens,
        "image_tokens": step.image_tokens,
        "rows": samples.n_rows,
        "rows_registered": samples.n_registered,
        "arm": samples.arm,
        "restore_bytes": samples.restore_bytes,
        "n_estimate": len(samples.estimate),
        "n_decode_estimate": len(samples.decode_estimate),
        "baseline_history": samples.history,
    }
    for arm, values in samples.prompt.items():
        row[f"n_{arm}"] = len(values)
        _put(row, f"{arm}_prompt_ms", bootstrap.median(values) if len(values) else None)
    for arm, values in (samples.decode | {"decode_estimate": samples.decode_estimate}).items():
        name = f"{arm}_token_ms" if arm == "decode_estimate" else f"{arm}_decode_token_ms"
        _put(row, name, bootstrap.median(values) if len(values) else None)
    decoded = samples.decode[samples.arm]
    for name, reference in (("estimate", samples.decode_estimate), ("baseline", samples.decode[BASELINE])):
        both = len(decoded) and len(reference)
        _put(row, f"decode_over_{name}", bootstrap.ratio(decoded, reference) if both else None)
    for name in ("encode", "install", "restore", "estimate"):
        values = getattr(samples, name)
        column = "image_encode_ms" if name == "encode" else f"{name}_ms"
        _put(row, column, bootstrap.median(values) if len(values) else None)
    measured, baseline = samples.measured, samples.prompt[BASELINE]
    _put(row, "speedup", bootstrap.ratio(baseline, measured) if len(measured) and len(baseline) else None)
    agrees = len(measured) and len(samples.estimate)
    _put(row, "measured_over_estimate", bootstrap.ratio(samples.computed, samples.estimate) if agrees else None)
    _put(row, "measured_over_naive", bootstrap.ratio(samples.computed, samples.naive) if agrees else None)
    return row


def _group_row(level: str, group: pd.DataFrame, samples: dict, up_to: float, bootstrap: Bootstrap) -> dict[str, Any]:
    """Ratios of sums over the steps of a bucket or of a kind.

    Args:
        up_to: longest prefix that was really computed, in tokens; a ratio is over steps within it only.
    """
    parts = [samples[key_of(step)] for step in _records(group)]
    compared = [samples[key_of(step)] for step in _records(group[group.prefix_tokens <= up_to])]
    row: dict[str, Any] = {
        "level": level,
        "prefix_tokens": int(group.prefix_tokens.median()),
        "new_tokens": int(group.new_tokens.sum()),
        "image_tokens": int(group.image_tokens.sum()),
        "rows": sum(part.n_rows for part in parts),
        "rows_registered": sum(part.n_registered for part in parts),
        "arm": parts[0].arm,
        "n_estimate": min((len(part.estimate) for part in compared), default=0),
        "n_steps": len(parts),
        "n_compared": len(compared),
        "baseline_history": "/".join(sorted({part.history for part in parts if part.history})) or None,
    }
    for arm in ARMS:
        row[f"n_{arm}"] = min(len(part.prompt[arm]) for part in compared or parts)
    encode = [part.encode for part in parts]
    _put(row, "image_encode_ms", bootstrap.sum_of_medians(encode) if all(map(len, encode)) else None)

    def put_ratio(name: str, above: str, below: str) -> None:
        pairs = [(getattr(part, above), getattr(part, below)) for part in compared]
        if pairs and all(len(one) and len(other) for one, other in pairs):
            _put(row, name, bootstrap.ratio_of_sums(*map(list, zip(*pairs, strict=True))))

    put_ratio("measured_over_estimate", "computed", "estimate")
    put_ratio("measured_over_naive", "computed", "naive")
    put_ratio("speedup", "whole", "measured")
    put_ratio("decode_over_estimate", "decoded", "decode_estimate")
    put_ratio("decode_over_baseline", "decoded", "decoded_whole")
    return row


def _longest_whole_prompt(rows: pd.DataFrame) -> int | None:
    whole = rows[(rows.arm == BASELINE) & (rows.status == "ok")]
    return None if whole.empty else int((whole.prefix_tokens + whole.new_tokens).max())


def _fit(rows: pd.DataFrame, arm: str, n_ubatch: int, bootstrap: Bootstrap) -> CostModel | None:
    counted = rows[(rows.arm == arm) & (rows.status == "ok")]
    if counted.empty:
        return None
    cost = counted.prompt_ms - counted.image_encode_ms
    return fit_cost(counted.prefix_tokens, counted.new_tokens, counted.image_tokens, cost, n_ubatch, bootstrap)
