"""The plan as files, and as the text that ``make plan`` prints."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fakeprefix.engine_facts import COLUMN_WIDTH, TILE_TOKENS
from fakeprefix.errors import FakePrefixError, MeasureError
from fakeprefix.figures import gibibytes
from fakeprefix.machine.devices import CPU, gpu_memory, require_device
from fakeprefix.machine.limits import available_memory
from fakeprefix.model.gguf_file import ModelFacts
from fakeprefix.model.memory import MemoryNeed, gpu_part, host_part, memory_need, refuse_if_too_large
from fakeprefix.model.needs import (
    BUILD_CORE_S,
    CONTRACT_S,
    VOCABULARY_S,
    WRITE_BYTES_PER_S,
    decode_seconds,
    estimate_record,
    prefill_seconds,
    start_seconds,
)
from fakeprefix.planning.steps import (
    MEASURED,
    N_PROBES,
    NAIVE_TOKENS,
    WARM_UP_TOKENS,
    PlannedStep,
    PlanRules,
    context_tokens,
    plan_file,
    prefix_bound,
    read_planned,
)
from fakeprefix.progress import describe_seconds
from fakeprefix.storage import write_json

log = logging.getLogger(__name__)


def make_plan(
    steps: Path,
    facts: ModelFacts,
    plan: dict[str, Any],
    on_hole: str,
    measure: dict[str, Any],
    engine: dict[str, Any],
    synthetic: bool,
    plan_output: Path,
    rejected_output: Path,
    summary_output: Path,
) -> None:
    """Check, bucket and estimate; write the plan, the refused steps and a summary.

    Args:
        plan, measure, engine: sections of the configuration.
        on_hole: ``trace.on_hole``.
        synthetic: the model has to be written first.

    Raises:
        MeasureError: nothing is left to measure.
        ModelError: the experiment does not fit this machine's memory, or images need a projector.
        EngineError: there is no device for the engine's backend.
    """
    run, backend = engine["run"], engine["build"]["backend"]
    try:
        require_device(backend)
        # a step must leave room for what is decoded behind it
        n_ctx_max = facts.n_ctx_train - (measure["decode_tokens"] - 1)
        bound = plan["real_prefix_up_to"]
        rules = PlanRules(
            on_hole, n_ctx_max, plan["bucket_width"], plan["max_steps_per_bucket"], plan["max_new_tokens"]
        )
        counts = plan_file(steps, rules, plan_output, rejected_output)
        if counts.n_with_images and facts.image is None:
            raise MeasureError("model.mmproj: the trace has images, and no projector is given")
        if not counts.n_measured:
            raise MeasureError(
                f"nothing to measure: of {counts.n_steps} steps {counts.n_rejected} are refused and "
                f"{counts.n_unmeasurable} end within the first {COLUMN_WIDTH} columns"
            )
        chosen = read_planned(plan_output, MEASURED)
        fidelity = measure["fidelity"]
        turns = [length + fidelity["new_tokens"] for length in fidelity["prefix_tokens"]]
        if max(turns, default=0) >= n_ctx_max:
            raise MeasureError(
                f"measure.fidelity.prefix_tokens: with the new ones {max(turns)} tokens do not fit the model's "
                f"context of {facts.n_ctx_train}"
            )
        probe = measure["probe"]["prefix_tokens"] + measure["probe"]["new_tokens"]
        images = max((image.tokens for item in chosen for image in item.step.images), default=0)
        own = max([probe, 2 * WARM_UP_TOKENS + images, *turns])
        n_ctx = context_tokens(chosen, measure["decode_tokens"], own)
        kept = state_tokens(chosen, measure, bound)
        need = memory_need(facts, n_ctx, run["n_ubatch"], run["cache_type_k"], run["cache_type_v"], kept)
        on_gpu = None if backend == CPU else gpu_part(need, facts.n_layers, run["n_gpu_layers"])
        gpu_available = gpu_memory(backend)
        refuse_if_unfit(need, on_gpu, gpu_available)
        seconds = {} if backend != CPU else stage_seconds(chosen, facts, measure, engine, synthetic, bound)
        summary = {
            "n_steps": counts.n_steps,
            "n_rejected": counts.n_rejected,
            "n_unmeasurable": counts.n_unmeasurable,
            "n_measured": counts.n_measured,
            "n_ctx": n_ctx,
            "real_prefix_up_to": plan["real_prefix_up_to"],
            "buckets": bucket_rows(plan_output, plan["bucket_width"]),
            "estimate": estimate_record(need, on_gpu, gpu_available, seconds),
        }
        write_json(summary_output, summary)
        log.info("%s", describe(summary))
    except FakePrefixError:
        plan_output.unlink(missing_ok=True)
        rejected_output.unlink(missing_ok=True)
        raise


def refuse_if_unfit(need: MemoryNeed, on_gpu: MemoryNeed | None, gpu_available: int | None) -> None:
    """Raise ModelError if the machine, or its GPUs, have too little memory.

    Args:
        on_gpu: the part of `need` that lies on GPUs, None without a GPU.
        gpu_available: bytes that the GPUs have together, None where that is not known.
    """
    if on_gpu is None:
        refuse_if_too_large(need, available_memory())
        return
    refuse_if_too_large(host_part(need, on_gpu), available_memory())
    if gpu_available is not None:
        refuse_if_too_large(on_gpu, gpu_available, on_gpu=True)


def state_tokens(chosen: Sequence[PlannedStep], measure: dict[str, Any], real_prefix_up_to: int) -> int:
    """Tokens of the longest prefix of which a state is kept; 0 if none is."""
    lengths = list(measure["fidelity"]["prefix_tokens"])
    if "state_restore" in measure["arms"]:
        lengths += [item.step.prefix_tokens for item in within(chosen, "state_restore", real_prefix_up_to)]
    return max(lengths, default=0)


def within(chosen: Sequence[PlannedStep], arm: str, real_prefix_up_to: int) -> list[PlannedStep]:
    """The steps at which an arm, or the benchmark, takes part."""
    bound = prefix_bound(arm, real_prefix_up_to)
    return [item for item in chosen if not bound or item.step.prefix_tokens <= bound]


def stage_seconds(
    chosen: Sequence[PlannedStep],
    facts: ModelFacts,
    measure: dict[str, Any],
    engine: dict[str, Any],
    synthetic: bool,
    real_prefix_up_to: int,
) -> dict[str, float]:
    """Estimated time of every stage that takes long, in seconds and in their order; on a CPU."""
    threads = engine["run"]["threads"]
    seconds = {"engine build": BUILD_CORE_S / (engine["build"]["jobs"] or len(os.sched_getaffinity(0)))}
    if synthetic:
        seconds["model"] = VOCABULARY_S + facts.weight_bytes / WRITE_BYTES_PER_S
    seconds["contract"] = CONTRACT_S
    for arm in measure["arms"]:
        seconds[arm] = arm_seconds(arm, within(chosen, arm, real_prefix_up_to), facts, measure, threads)
    if measure["fidelity"]["prefix_tokens"]:
        seconds["fidelity"] = fidelity_seconds(facts, measure, threads)
    if measure["repetitions"]["depth_rate"]:
        seconds["depth_rate"] = bench_seconds(within(chosen, "depth_rate", real_prefix_up_to), facts, measure, threads)
    return seconds


def fidelity_seconds(facts: ModelFacts, measure: dict[str, Any], threads: int) -> float:
    """Estimated time of all turns in seconds, rounds being added up to their number or budget."""
    fidelity, total = measure["fidelity"], 0.0
    new, n_decode = fidelity["new_tokens"], measure["decode_tokens"] - 1
    for prefix in fidelity["prefix_tokens"]:
        whole = prefill_seconds(facts, 0, prefix, threads)
        turn = prefill_seconds(facts, prefix, new, threads)
        turn += decode_seconds(facts, prefix + new, n_decode, threads)
        # a state is computed once and restored twice a round; the cache needs the prefix every time
        a_round = (len(fidelity["fills"]) + 2) * turn + probe_seconds(facts, measure, threads)
        if prefix <= fidelity["cached_up_to"]:
            a_round += whole + turn
            total += 2 * (whole + turn)
        most = min(fidelity["max_rounds"] * a_round, fidelity["budget_s"])
        total += job_start(facts, threads) + whole + max(fidelity["min_rounds"] * a_round, most)
    return total


def job_start(facts: ModelFacts, threads: int) -> float:
    """Estimated time until a job's server has started and is warm, in seconds."""
    return start_seconds(facts, WARM_UP_TOKENS + TILE_TOKENS, threads)


def probe_seconds(facts: ModelFacts, measure: dict[str, Any], threads: int) -> float:
    """Estimated time of one probe, in seconds."""
    return prefill_seconds(facts, measure["probe"]["prefix_tokens"], measure["probe"]["new_tokens"], threads)


def arm_seconds(
    arm: str, chosen: Sequence[PlannedStep], facts: ModelFacts, measure: dict[str, Any], threads: int
) -> float:
    """Estimated time of all jobs of one arm, in seconds."""
    repetitions = measure["repetitions"][arm]
    jobs = len({item.bucket for item in chosen})
    total = jobs * (job_start(facts, threads) + repetitions * probe_seconds(facts, measure, threads))
    if arm == "state_restore":
        lengths = {(item.step.prefix_tokens, bool(item.step.images)) for item in chosen}
        total += sum(prefill_seconds(facts, 0, prefix, threads) for prefix, _ in lengths)
    for item in chosen:
        prefix, new = item.step.prefix_tokens, item.step.new_tokens
        once = prefill_seconds(facts, prefix, new, threads)
        once += decode_seconds(facts, prefix + new, measure["decode_tokens"] - 1, threads)
        if arm in ("baseline", "cached_prefix"):
            once += prefill_seconds(facts, 0, prefix, threads)
        total += repetitions * once
    return total


def bench_seconds(chosen: Sequence[PlannedStep], facts: ModelFacts, measure: dict[str, Any], threads: int) -> float:
    """Estimated time of the independent benchmark, in seconds: two servers for probes, and each depth once."""
    jobs = len({item.bucket for item in chosen})
    # a warm-up and as many repetitions as asked for of each
    repetitions, n_decode = measure["repetitions"]["depth_rate"] + 1, measure["decode_tokens"] - 1
    naive = repetitions * prefill_seconds(facts, 0, NAIVE_TOKENS, threads)
    probes = job_start(facts, threads) + N_PROBES * probe_seconds(facts, measure, threads)
    total = jobs * (2 * probes + naive)
    # every bucket is a call of its own, and decoding begins at another depth
    depths = [depth for _, depth in {(item.bucket, item.step.prefix_tokens) for item in chosen}]
    if n_decode:
        depths += [depth for _, depth in {(item.bucket, item.step.total_tokens) for item in chosen}]
    total += sum(prefill_seconds(facts, 0, depth, threads) for depth in depths)
    for item in chosen:
        step = item.step
        total += repetitions * prefill_seconds(facts, step.prefix_tokens, step.new_tokens, threads)
        total += repetitions * decode_seconds(facts, step.total_tokens, n_decode, threads)
    return total


def bucket_rows(plan: Path, width: int) -> list[dict[str, Any]]:
    """One row a bucket: bounds in tokens, steps, measured ones, range of prefix lengths."""
    table = pq.read_table(plan, columns=["bucket", "status", "prefix_tokens"])
    bucket, prefix = table["bucket"].to_numpy(), table["prefix_tokens"].to_numpy()
    measured = pc.equal(table["status"], MEASURED).to_numpy()
    rows = []
    for number in np.unique(bucket).tolist():
        mine = bucket == number
        rows.append(
            {
                "bucket": number,
                "from_tokens": (number - 1) * width + 1,
                "to_tokens": number * width,
                "steps": int(mine.sum()),
                "measured": int(measured[mine].sum()),
                "prefix_min": int(prefix[mine].min()),
                "prefix_max": int(prefix[mine].max()),
            }
        )
    return rows


def describe(summary: dict[str, Any]) -> str:
    """The summary for a terminal."""
    estimate = summary["estimate"]
    lines = [
        f"{summary['n_steps']} steps, {summary['n_measured']} measured directly, "
        f"{summary['n_rejected']} refused, {summary['n_unmeasurable']} too short to measure",
        "",
        f"{'bucket':>6}  {'prefix + new, tokens':>22}  {'steps':>5}  {'measured':>8}  {'prefix lengths':>16}",
    ]
    for row in summary["buckets"]:
        span = f"{row['from_tokens']}..{row['to_tokens']}"
        prefixes = f"{row['prefix_min']}..{row['prefix_max']}"
        lines.append(f"{row['bucket']:>6}  {span:>22}  {row['steps']:>5}  {row['measured']:>8}  {prefixes:>16}")
    lines += ["", f"context {summary['n_ctx']} tokens, memory {gibibytes(estimate['memory_bytes']['total'])}"]
    if "gpu_memory_bytes" in estimate:
        have = estimate["gpu_available_bytes"]
        known = "whether the GPU has that much is not known" if have is None else f"it has {gibibytes(have)}"
        lines.append(f"of it on the GPU {gibibytes(estimate['gpu_memory_bytes']['total'])}, {known}")
    if "model" in estimate["seconds"]:
        weights = estimate["memory_bytes"]["weights"]
        lines.append(f"the generated model takes {gibibytes(weights)} on disk")
    if summary["real_prefix_up_to"]:
        lines.append(f"prefixes of more than {summary['real_prefix_up_to']} tokens are fabricated only")
    lines.append("")
    if not estimate["seconds"]:
        lines.append("how long it takes on a GPU is not estimated")
    else:
        lines += [f"{name:>14}: about {describe_seconds(value)}" for name, value in estimate["seconds"].items()]
        lines.append(f"{'together':>14}: about {describe_seconds(sum(estimate['seconds'].values()))}, less where")
        lines.append(f"{'':>14}  the engine is built or the model written already; estimates may be off by half")
    return "\n".join(lines)
