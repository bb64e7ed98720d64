"""The plan as files, and as the text that ``make plan`` prints."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fakeprefix.errors import FakePrefixError, MeasureError
from fakeprefix.model.estimate import (
    available_memory,
    describe_seconds,
    estimate_record,
    memory_need,
    prefill_seconds,
    refuse_if_too_large,
)
from fakeprefix.model.gguf_file import ModelFacts
from fakeprefix.plan import MEASURED, PlannedStep, PlanRules, context_tokens, plan_file, read_planned
from fakeprefix.storage import write_json

log = logging.getLogger(__name__)

# text of the smoke request and of the warm-up, at most
WARM_UP_TOKENS = 512
# starting a server and warming it up, in seconds
JOB_OVERHEAD_S = 4.0


def make_plan(
    steps: Path,
    facts: ModelFacts,
    plan: dict[str, Any],
    on_hole: str,
    measure: dict[str, Any],
    run: dict[str, Any],
    plan_output: Path,
    rejected_output: Path,
    summary_output: Path,
) -> None:
    """Check, bucket and estimate; write the plan, the refused steps and a summary.

    Raises:
        MeasureError: nothing is left to measure.
        ModelError: the experiment does not fit this machine's memory, or images need a projector.
    """
    try:
        rules = PlanRules(on_hole, facts.n_ctx_train, **plan)
        counts = plan_file(steps, rules, plan_output, rejected_output)
        if counts.n_with_images and facts.image is None:
            raise MeasureError("model.mmproj: the trace has images, and no projector is given")
        if not counts.n_measured:
            raise MeasureError(
                f"nothing to measure: of {counts.n_steps} steps {counts.n_rejected} are refused and "
                f"{counts.n_unmeasurable} end within the first 256 columns"
            )
        chosen = read_planned(plan_output, MEASURED)
        fidelity = measure["fidelity"]
        turns = [length + fidelity["new_tokens"] for length in fidelity["prefix_tokens"]]
        if max(turns, default=0) >= facts.n_ctx_train:
            raise MeasureError(
                f"measure.fidelity.prefix_tokens: with the new ones {max(turns)} tokens do not fit the model's "
                f"context of {facts.n_ctx_train}"
            )
        probe = measure["probe"]["prefix_tokens"] + measure["probe"]["new_tokens"]
        images = max((image.tokens for item in chosen for image in item.step.images), default=0)
        own = max([probe, WARM_UP_TOKENS + images, *turns])
        n_ctx = context_tokens(chosen, measure["decode_tokens"], own)
        kept = state_tokens(chosen, measure)
        need = memory_need(facts, n_ctx, run["n_ubatch"], run["cache_type_k"], run["cache_type_v"], kept)
        refuse_if_too_large(need, available_memory())
        seconds = {
            arm: arm_seconds(arm, chosen, facts, measure, run["threads"]) for arm in [*measure["arms"], "depth_rate"]
        }
        if fidelity["prefix_tokens"]:
            seconds["fidelity"] = fidelity_seconds(facts, fidelity, run["threads"])
        summary = {
            "n_steps": counts.n_steps,
            "n_rejected": counts.n_rejected,
            "n_unmeasurable": counts.n_unmeasurable,
            "n_measured": counts.n_measured,
            "n_ctx": n_ctx,
            "buckets": bucket_rows(plan_output, plan["bucket_width"]),
            "estimate": estimate_record(need, seconds),
        }
        write_json(summary_output, summary)
        log.info("%s", describe(summary))
    except FakePrefixError:
        plan_output.unlink(missing_ok=True)
        rejected_output.unlink(missing_ok=True)
        raise


def state_tokens(chosen: Sequence[PlannedStep], measure: dict[str, Any]) -> int:
    """Tokens of the longest prefix of which a state is kept; 0 if none is."""
    lengths = list(measure["fidelity"]["prefix_tokens"])
    if "state_restore" in measure["arms"]:
        lengths += [item.step.prefix_tokens for item in chosen]
    return max(lengths, default=0)


def fidelity_seconds(facts: ModelFacts, fidelity: dict[str, Any], threads: int) -> float:
    """Estimated time of all turns with the smallest number of rounds, in seconds."""
    total = 0.0
    for prefix in fidelity["prefix_tokens"]:
        whole = prefill_seconds(facts, 0, prefix, threads)
        turn = prefill_seconds(facts, prefix, fidelity["new_tokens"], threads)
        # a state is computed once and restored twice a round; the cache needs the prefix every time
        total += JOB_OVERHEAD_S + whole + fidelity["min_rounds"] * (len(fidelity["fills"]) + 2) * turn
        if prefix <= fidelity["cached_up_to"]:
            total += (fidelity["min_rounds"] + 2) * (whole + turn)
    return total


def arm_seconds(
    arm: str, chosen: Sequence[PlannedStep], facts: ModelFacts, measure: dict[str, Any], threads: int
) -> float:
    """Estimated time of all jobs of one arm, in seconds."""
    repetitions = measure["repetitions"][arm]
    if not repetitions:
        return 0.0
    jobs = len({item.bucket for item in chosen})
    total = jobs * JOB_OVERHEAD_S
    if arm == "state_restore":
        lengths = {(item.step.prefix_tokens, bool(item.step.images)) for item in chosen}
        total += sum(prefill_seconds(facts, 0, prefix, threads) for prefix, _ in lengths)
    for item in chosen:
        prefix, new = item.step.prefix_tokens, item.step.new_tokens
        whole = prefill_seconds(facts, 0, prefix, threads)
        step = prefill_seconds(facts, prefix, new, threads)
        total += {
            "baseline": repetitions * (whole + step),
            "cached_prefix": repetitions * (whole + step),
            "depth_rate": whole + repetitions * step,
        }.get(arm, repetitions * step)
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
        f"{summary['n_steps']} steps, {summary['n_measured']} measured themselves, "
        f"{summary['n_rejected']} refused, {summary['n_unmeasurable']} too short to measure",
        "",
        f"{'bucket':>6}  {'prefix + new, tokens':>22}  {'steps':>5}  {'measured':>8}  {'prefix lengths':>16}",
    ]
    for row in summary["buckets"]:
        span = f"{row['from_tokens']}..{row['to_tokens']}"
        prefixes = f"{row['prefix_min']}..{row['prefix_max']}"
        lines.append(f"{row['bucket']:>6}  {span:>22}  {row['steps']:>5}  {row['measured']:>8}  {prefixes:>16}")
    lines += ["", f"context {summary['n_ctx']} tokens, memory {estimate['memory_bytes']['total'] / 2**30:.2f} GiB"]
    lines += [f"{name}: about {describe_seconds(value)}" for name, value in estimate["seconds"].items()]
    return "\n".join(lines)
