"""From steps to buckets: what is measured, what stands for what, and what cannot be measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fakeprefix.errors import TraceError
from fakeprefix.storage import write_table
from fakeprefix.trace.run import first_hole
from fakeprefix.trace.steps import STEP_SCHEMA, Step

# the attention reads whole groups of this many columns (GGML_PAD in llama-kv-cache.cpp): below it nothing differs
COLUMNS = 256

PLAN_SCHEMA = pa.schema(
    [
        *STEP_SCHEMA,
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
    ]
)

MEASURED, SAMPLED_OUT, UNMEASURABLE = "measured", "sampled_out", "unmeasurable"


@dataclass(frozen=True)
class PlannedStep:
    """A step, where it belongs and whether it is measured itself.

    Attributes:
        step: the step.
        bucket: ``ceil((L + new) / width)``.
        status: ``measured``, ``sampled_out`` (others of its bucket stand for it) or
            ``unmeasurable`` (within the first 256 columns).
    """

    step: Step
    bucket: int
    status: str


@dataclass(frozen=True)
class Rejection:
    """A step that is refused, why, and what its user can do."""

    step: Step
    position: int | None
    reason: str
    remedy: str

    def as_row(self) -> dict[str, Any]:
        return {
            "task_id": self.step.task_id,
            "step": self.step.step,
            "position": self.position,
            "reason": self.reason,
            "remedy": self.remedy,
        }


def check_histories(steps: Sequence[Step], on_hole: str, n_ctx_max: int) -> tuple[list[Step], list[Rejection]]:
    """Apply the logical-run contract to every step's history.

    Args:
        on_hole: ``reject`` refuses a step with a hole; ``recompute`` keeps the tokens before the hole
            as prefix and prefills everything after it.
        n_ctx_max: largest context of the model in tokens.
    """
    accepted, rejected = [], []
    for step in steps:
        if step.total_tokens >= n_ctx_max:
            reason = f"prefix and new tokens, {step.total_tokens}, do not fit the model's context of {n_ctx_max}"
            rejected.append(Rejection(step, None, reason, "use a model with a longer context"))
            continue
        hole = first_hole(step.visible)
        if hole is None:
            accepted.append(step)
        elif on_hole == "recompute":
            kept = min(hole.n_orphaned, step.prefix_tokens)
            new = step.total_tokens - kept
            first = step.visible[0][0]
            # of the images that are prefilled again only the token count is known
            accepted.append(
                replace(step, prefix_tokens=kept, new_tokens=new, visible=((first, first + kept - 1),) if kept else ())
            )
        else:
            reason = f"position {hole.position} is missing, {hole.n_orphaned} live tokens before it would be orphaned"
            rejected.append(Rejection(step, hole.position, reason, "set trace.on_hole: recompute"))
    return accepted, rejected


def plan_steps(steps: Sequence[Step], bucket_width: int, max_steps_per_bucket: int) -> list[PlannedStep]:
    """Assign buckets and choose the steps that are measured.

    Within a bucket the measured steps are spread evenly over the prefix lengths, ends included, so
    that a fit over them covers the bucket.

    Raises:
        TraceError: `bucket_width` is not a multiple of 256.
    """
    if bucket_width < COLUMNS or bucket_width % COLUMNS:
        raise TraceError(f"plan.bucket_width: {bucket_width} is not a multiple of {COLUMNS}")
    buckets: dict[int, list[Step]] = {}
    for step in steps:
        buckets.setdefault(ceil(step.total_tokens / bucket_width), []).append(step)
    planned = []
    for bucket in sorted(buckets):
        ordered = sorted(buckets[bucket], key=lambda s: (s.prefix_tokens, s.new_tokens, s.task_id, s.step))
        measurable = [step for step in ordered if step.total_tokens > COLUMNS]
        chosen = {id(measurable[i]) for i in spread(len(measurable), max_steps_per_bucket)}
        for step in ordered:
            status = MEASURED if id(step) in chosen else SAMPLED_OUT
            planned.append(PlannedStep(step, bucket, status if step.total_tokens > COLUMNS else UNMEASURABLE))
    return planned


def spread(n: int, k: int) -> list[int]:
    """At most `k` of the indices ``0..n-1``, evenly spread, both ends included; the middle if k is 1."""
    if n <= k:
        return list(range(n))
    if k == 1:
        return [n // 2]
    return sorted({round(i * (n - 1) / (k - 1)) for i in range(k)})


def write_plan(path: Path, planned: Sequence[PlannedStep]) -> None:
    """Write the plan as Parquet."""
    rows = (item.step.as_row() | {"bucket": item.bucket, "status": item.status} for item in planned)
    write_table(path, rows, PLAN_SCHEMA)


def read_plan(path: Path) -> list[PlannedStep]:
    """Read a plan written by `write_plan`."""
    planned = []
    for row in pq.read_table(path).to_pylist():
        bucket, status = row.pop("bucket"), row.pop("status")
        planned.append(PlannedStep(Step.from_row(row, str(path)), bucket, status))
    return planned


def measured_buckets(path: Path) -> list[int]:
    """Buckets of a plan that have something to measure."""
    table = pq.read_table(path, columns=["bucket", "status"])
    return sorted({row["bucket"] for row in table.to_pylist() if row["status"] == MEASURED})


def context_tokens(planned: Sequence[PlannedStep], decode_tokens: int, at_least: int = COLUMNS) -> int:
    """Context for every job of a run, in tokens: the longest step, room to decode, rounded up to 256 columns.

    Args:
        at_least: tokens of the longest other request.
    """
    longest = max((item.step.total_tokens for item in planned if item.status == MEASURED), default=COLUMNS)
    longest = max(longest, at_least)
    return COLUMNS * ceil((longest + decode_tokens + 1) / COLUMNS) + COLUMNS
