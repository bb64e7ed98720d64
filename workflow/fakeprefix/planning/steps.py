"""From steps to buckets: what is measured, what stands for what, and what cannot be measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fakeprefix.arms import FAKE_PREFIX
from fakeprefix.engine_facts import COLUMN_WIDTH, columns_read
from fakeprefix.errors import TraceError
from fakeprefix.storage import table_writer
from fakeprefix.trace.logical_run import first_hole
from fakeprefix.trace.steps import BATCH_STEPS, REJECTED_SCHEMA, STEP_SCHEMA, Step

PLAN_SCHEMA = pa.schema(
    [
        *STEP_SCHEMA,
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
    ]
)

# what every timing job does besides its steps: a text before anything counts; and of the benchmark, probes of a
# server in front and as many behind, and the rate that most people would use: nothing cached, one physical batch
WARM_UP_TOKENS, N_PROBES, NAIVE_TOKENS = 256, 3, 512

MEASURED, SAMPLED_OUT, UNMEASURABLE = "measured", "sampled_out", "unmeasurable"
STATUSES = np.array([MEASURED, SAMPLED_OUT, UNMEASURABLE])
_MEASURED, _SAMPLED_OUT, _UNMEASURABLE = range(3)


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


CHECKED_COLUMNS = ["task_id", "policy", "step", "prefix_tokens", "new_tokens", "images", "visible"]


@dataclass(frozen=True)
class PlanRules:
    """What decides about a step.

    Attributes:
        on_hole: ``reject`` refuses a step with a hole; ``recompute`` keeps the tokens before the hole
            as prefix and prefills everything after it.
        n_ctx_max: largest context of the model in tokens.
        bucket_width: in tokens, a multiple of 256.
        max_steps_per_bucket: steps of a bucket that are measured directly.
        max_new_tokens: steps that add more are not measured directly; 0 for no bound.
    """

    on_hole: str
    n_ctx_max: int
    bucket_width: int
    max_steps_per_bucket: int
    max_new_tokens: int = 0


@dataclass(frozen=True)
class PlanCounts:
    """How many steps came to be what."""

    n_steps: int
    n_rejected: int
    n_unmeasurable: int
    n_measured: int
    n_with_images: int


def plan_file(steps: Path, rules: PlanRules, plan: Path, rejected: Path) -> PlanCounts:
    """Check every step's history, assign buckets and choose the steps that are measured.

    Steps stream through in batches, twice: once to see all lengths, once to write. Only a few numbers
    a step stay in memory. The plan keeps the order of the steps.

    Args:
        steps: Parquet of `STEP_SCHEMA`.
        plan, rejected: files to write; refused steps are not in the plan.

    Raises:
        TraceError: the bucket width is not a multiple of 256.
    """
    if rules.bucket_width < COLUMN_WIDTH or rules.bucket_width % COLUMN_WIDTH:
        raise TraceError(f"plan.bucket_width: {rules.bucket_width} is not a multiple of {COLUMN_WIDTH}")
    checked, n_with_images = [], 0
    with table_writer(rejected, REJECTED_SCHEMA) as writer:
        for batch in _batches(steps, CHECKED_COLUMNS):
            found = _check(batch, rules)
            checked.append(found)
            n_with_images += int(np.count_nonzero(_list_lengths(batch["images"])))
            if found.rejections:
                writer.write_table(pa.Table.from_pylist(found.rejections, schema=REJECTED_SCHEMA))
    prefix = np.concatenate([part.prefix for part in checked])
    total = prefix + np.concatenate([part.new for part in checked])
    accepted = np.concatenate([part.accepted for part in checked])
    bucket, status = assign(prefix[accepted], total[accepted], rules)
    with table_writer(plan, PLAN_SCHEMA) as writer:
        start = 0
        for batch, part in zip(_batches(steps), checked, strict=True):
            kept = part.apply(batch)
            end = start + kept.num_rows
            columns = [*kept.columns, pa.array(bucket[start:end]), pa.array(STATUSES[status[start:end]].tolist())]
            writer.write_table(pa.Table.from_arrays(columns, names=PLAN_SCHEMA.names).cast(PLAN_SCHEMA))
            start = end
    return PlanCounts(
        n_steps=len(accepted),
        n_rejected=int(np.count_nonzero(~accepted)),
        n_unmeasurable=int(np.count_nonzero(STATUSES[status] == UNMEASURABLE)),
        n_measured=int(np.count_nonzero(STATUSES[status] == MEASURED)),
        n_with_images=n_with_images,
    )


def assign(prefix: np.ndarray, total: np.ndarray, rules: PlanRules) -> tuple[np.ndarray, np.ndarray]:
    """Buckets, and what becomes of each step.

    Within a bucket the measured steps are spread evenly over the prefix lengths, ends included, so
    that a fit over them covers the bucket.

    Args:
        prefix: prefix lengths in tokens, shape ``(n,)``.
        total: prefix and new tokens, shape ``(n,)``.

    Returns:
        Bucket ``ceil(total / width)`` and index into `STATUSES`, both of shape ``(n,)``.
    """
    bucket = -(-total // rules.bucket_width)
    status = np.where(total > COLUMN_WIDTH, _SAMPLED_OUT, _UNMEASURABLE)
    affordable = total - prefix <= (rules.max_new_tokens or np.inf)
    measurable = np.flatnonzero((total > COLUMN_WIDTH) & affordable)
    ordered = measurable[np.lexsort((total[measurable], prefix[measurable], bucket[measurable]))]
    starts = np.flatnonzero(np.diff(bucket[ordered], prepend=-1))
    for start, end in pairwise([*starts.tolist(), len(ordered)]):
        status[ordered[start + np.array(spread(end - start, rules.max_steps_per_bucket))]] = _MEASURED
    return bucket, status


@dataclass(frozen=True)
class _Checked:
    """One batch after the check of histories, `n` steps.

    Attributes:
        prefix, new: tokens, shape ``(n,)``, after recomputing.
        accepted: shape ``(n,)``.
        recomputed: visible ranges of the steps whose prefix was cut at a hole, by index.
        rejections: rows of `REJECTED_SCHEMA`.
    """

    prefix: np.ndarray
    new: np.ndarray
    accepted: np.ndarray
    recomputed: dict[int, list[list[int]]]
    rejections: list[dict[str, Any]]

    def apply(self, batch: pa.RecordBatch) -> pa.Table:
        """The accepted steps of the batch, with their new numbers."""
        table = pa.Table.from_batches([batch])
        if self.recomputed:
            names = ("visible", "images", "behind_hole", "image_tokens")
            visible, images, behind, image_tokens = (table[name].to_pylist() for name in names)
            for index, ranges in self.recomputed.items():
                visible[index] = ranges
                # what is behind the hole is prefilled again, in front of what is new
                again = behind[index] or []
                images[index] = [*again, *(images[index] or [])]
                image_tokens[index] += sum(image["tokens"] for image in again)
                behind[index] = []
            changed = {"prefix_tokens": self.prefix, "new_tokens": self.new, "image_tokens": image_tokens}
            changed |= {"visible": visible, "images": images, "behind_hole": behind}
            for name, values in changed.items():
                field = STEP_SCHEMA.field(name)
                table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
        return table.filter(pa.array(self.accepted))


def _check(batch: pa.RecordBatch, rules: PlanRules) -> _Checked:
    prefix, new = (batch[name].to_numpy().copy() for name in ("prefix_tokens", "new_tokens"))
    too_long = prefix + new >= rules.n_ctx_max
    accepted = ~too_long
    rejections, recomputed = [], {}

    def reject(index: int, position: int | None, reason: str, remedy: str) -> None:
        accepted[index] = False
        names = {name: batch[name][index].as_py() for name in ("task_id", "policy", "step")}
        rejections.append({**names, "position": position, "reason": reason, "remedy": remedy})

    # one range or none cannot have a hole
    suspects = _list_lengths(batch["visible"]) > 1
    for index in np.flatnonzero(suspects | too_long).tolist():
        if too_long[index]:
            reason = f"prefix and new tokens, {prefix[index] + new[index]}, do not fit the model's context of "
            reject(index, None, f"{reason}{rules.n_ctx_max}", "use a model with a longer context")
            continue
        visible = batch["visible"][index].as_py()
        hole = first_hole(visible)
        if hole is None:
            continue
        if rules.on_hole == "recompute":
            kept = min(hole.n_orphaned, int(prefix[index]))
            new[index] += prefix[index] - kept
            prefix[index] = kept
            first = visible[0][0]
            recomputed[index] = [[first, first + kept - 1]] if kept else []
        else:
            reason = f"position {hole.position} is missing, {hole.n_orphaned} live tokens before it would be orphaned"
            reject(index, hole.position, reason, "set trace.on_hole: recompute")
    return _Checked(prefix, new, accepted, recomputed, rejections)


def _batches(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    return pq.ParquetFile(path).iter_batches(BATCH_STEPS, columns=columns or STEP_SCHEMA.names)


def _list_lengths(column: pa.Array) -> np.ndarray:
    return pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)


def spread(n: int, k: int) -> list[int]:
    """At most `k` of the indices ``0..n-1``, evenly spread, both ends included; the middle if k is 1."""
    if n <= k:
        return list(range(n))
    if k == 1:
        return [n // 2]
    return sorted({round(i * (n - 1) / (k - 1)) for i in range(k)})


def prefix_bound(arm: str, real_prefix_up_to: int) -> int:
    """Longest prefix at which an arm, or the benchmark, takes part, in tokens; 0 for no bound.

    Only a fabricated prefix costs nothing to make; all others have to be prefilled.

    Args:
        real_prefix_up_to: ``plan.real_prefix_up_to`` of the settings, 0 for no bound.
    """
    return 0 if arm == FAKE_PREFIX else real_prefix_up_to


def _within(up_to: int) -> list[tuple[str, str, int]]:
    return [("prefix_tokens", "<=", up_to)] if up_to else []


def read_planned(path: Path, status: str | None = None, bucket: int | None = None, up_to: int = 0) -> list[PlannedStep]:
    """Steps of a plan, all or those with a status and of a bucket, in the plan's order.

    Args:
        up_to: longest prefix in tokens, 0 for no bound.
    """
    filters = [(name, "=", value) for name, value in (("status", status), ("bucket", bucket)) if value is not None]
    filters += _within(up_to)
    planned = []
    for row in pq.read_table(path, filters=filters or None).to_pylist():
        bucket, status = row.pop("bucket"), row.pop("status")
        planned.append(PlannedStep(Step.from_row(row, str(path)), bucket, status))
    return planned


def measured_buckets(path: Path, up_to: int = 0) -> list[int]:
    """Buckets of a plan that have something to measure over a prefix of at most so many tokens (0: any)."""
    filters = [("status", "=", MEASURED), *_within(up_to)]
    column = pq.read_table(path, columns=["bucket"], filters=filters)["bucket"]
    return sorted(pc.unique(column).to_pylist())


def context_tokens(measured: Sequence[PlannedStep], decode_tokens: int, at_least: int = COLUMN_WIDTH) -> int:
    """Context for every job of a run, in tokens: the longest step, room to decode, rounded up to 256 columns.

    Args:
        at_least: tokens of the longest other request.
    """
    longest = max([item.step.total_tokens for item in measured] + [at_least])
    return columns_read(longest + decode_tokens + 1) + COLUMN_WIDTH
