"""The record of one agent step, and its files: Parquet and JSON Lines."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fakeprefix.errors import TraceError
from fakeprefix.storage import replacing, table_writer
from fakeprefix.trace.formats.conversation import OnProblem, RecordedTimes, read_screenshot
from fakeprefix.trace.formats.files import json_lines, seconds, whole_number

# steps that are in memory at a time
BATCH_STEPS = 65_536

# [first, last] positions, both included; several ranges mean that there is a hole between them
RANGES = pa.list_(pa.list_(pa.int64(), 2))
IMAGES = pa.list_(
    pa.struct([("file", pa.string()), ("width", pa.int32()), ("height", pa.int32()), ("tokens", pa.int32())])
)

STEP_SCHEMA = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("prefix_tokens", pa.int64(), nullable=False),
        pa.field("prefix_positions", pa.int64()),
        pa.field("new_tokens", pa.int64(), nullable=False),
        pa.field("image_tokens", pa.int64(), nullable=False),
        pa.field("images", IMAGES),
        pa.field("visible", RANGES),
        pa.field("behind_hole", IMAGES),
        pa.field("policy", pa.string(), nullable=False),
        pa.field("decode_s", pa.float64()),
        pa.field("exec_s", pa.float64()),
        pa.field("recorded_wall_s", pa.float64()),
    ]
)

REJECTED_SCHEMA = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("policy", pa.string(), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("position", pa.int64()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("remedy", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class StepImage:
    """A screenshot.

    Attributes:
        file: name below the trace's folder.
        width, height: size in pixels.
        tokens: KV cells that it occupies, with the marks around it.
    """

    file: str
    width: int
    height: int
    tokens: int


@dataclass(frozen=True)
class Step:
    """One call of the model: what was in context before, and what this call adds.

    Attributes:
        task_id: the agent's task; `step` counts within it from 0.
        prefix_tokens: KV cells in context before the step.
        new_tokens: KV cells that the step appends, images included.
        image_tokens: how many of the new ones are images.
        images: the new images.
        visible: ranges of positions ``(first, last)`` that the step's history consists of; the
            default is one range from 0.
        policy: what the agent does with its history; ``keep_all`` if it keeps everything.
        prefix_positions: positions of the prefix where images make them differ from its tokens.
        decode_s, exec_s: recorded time of decoding and of executing the action, in seconds.
        recorded_wall_s: recorded time of the whole step in seconds.
        behind_hole: images of the history behind a hole, which are prefilled again if the plan recomputes.
    """

    task_id: str
    step: int
    prefix_tokens: int
    new_tokens: int
    image_tokens: int = 0
    images: tuple[StepImage, ...] = ()
    visible: tuple[tuple[int, int], ...] = ()
    policy: str = "keep_all"
    prefix_positions: int | None = None
    decode_s: float | None = None
    exec_s: float | None = None
    recorded_wall_s: float | None = None
    behind_hole: tuple[StepImage, ...] = ()

    def __post_init__(self) -> None:
        where = f"task {self.task_id!r}, step {self.step}"
        if not 0 <= self.step < 2**31:
            raise TraceError(f"{where}: step must be between 0 and {2**31 - 1}")
        if self.total_tokens >= 2**62:
            raise TraceError(f"{where}: {self.total_tokens} tokens are too many")
        if self.prefix_tokens < 0:
            raise TraceError(f"{where}: prefix_tokens = {self.prefix_tokens}, must be >= 0")
        if self.new_tokens < 1:
            raise TraceError(f"{where}: new_tokens = {self.new_tokens}, must be >= 1")
        if not 0 <= self.image_tokens <= self.new_tokens:
            raise TraceError(f"{where}: image_tokens = {self.image_tokens}, must be between 0 and new_tokens")
        if self.image_tokens != sum(image.tokens for image in self.images) and self.images:
            raise TraceError(f"{where}: image_tokens = {self.image_tokens} is not the sum over its images")
        if self.images and self.new_tokens - self.image_tokens < len(self.images) - 1:
            raise TraceError(
                f"{where}: {len(self.images)} images and {self.new_tokens - self.image_tokens} tokens of text between "
                "them; the engine would take neighbouring images for frames of a video"
            )

    @property
    def total_tokens(self) -> int:
        return self.prefix_tokens + self.new_tokens

    @property
    def times(self) -> RecordedTimes:
        return RecordedTimes(self.decode_s, self.exec_s, self.recorded_wall_s)

    def as_row(self) -> dict[str, object]:
        """The step with the columns of `STEP_SCHEMA`."""
        row: dict[str, object] = asdict(self)
        row["visible"] = [list(run) for run in self.visible]
        for name in ("images", "behind_hole"):
            row[name] = [asdict(image) for image in getattr(self, name)]
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, object], where: str = "") -> "Step":
        """A step from a row of a file.

        Raises:
            TraceError: an unknown, missing or wrong field; `where` is put in front of the message.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(row) - known):
            raise TraceError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}")
        values: dict[str, Any] = {name: value for name, value in row.items() if value is not None}
        for name in ("task_id", "policy"):
            if name in values and not isinstance(values[name], str):
                raise TraceError(f"{where}: {name} = {values[name]!r}, must be text")
        for name in ("step", "prefix_tokens", "new_tokens", "image_tokens", "prefix_positions"):
            if name in values:
                whole_number(values[name], name, where, at_least=-(2**63))
        for name in ("decode_s", "exec_s", "recorded_wall_s"):
            values[name] = seconds(values.get(name), name, where)
        for name in ("images", "behind_hole"):
            values[name] = tuple(_image_of(image, f"{where}: {name}") for image in _list_of(values, name, where))
        values["visible"] = tuple(_range_of(pair, f"{where}: visible") for pair in _list_of(values, "visible", where))
        try:
            return cls(**values)
        except (TypeError, TraceError) as error:
            raise TraceError(f"{where}: {error}") from None


def _list_of(values: Mapping[str, object], name: str, where: str) -> list[object]:
    value = values.get(name, [])
    if not isinstance(value, list):
        raise TraceError(f"{where}: {name} = {value!r}, must be a list")
    return value


def _image_of(value: object, where: str) -> StepImage:
    if not isinstance(value, dict) or not isinstance(value.get("file"), str):
        raise TraceError(f"{where}: {value!r} must be an object with file, width, height and tokens")
    numbers = [whole_number(value.get(name), name, where, at_least=1) for name in ("width", "height", "tokens")]
    if unknown := sorted(set(value) - {"file", "width", "height", "tokens"}):
        raise TraceError(f"{where}: unknown field {unknown[0]!r}")
    return StepImage(value["file"], *numbers)


def _range_of(value: object, where: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise TraceError(f"{where}: {value!r} must be a pair of positions")
    first, last = (whole_number(end, "a position", where) for end in value)
    if last < first:
        raise TraceError(f"{where}: [{first}, {last}] ends before it begins")
    return first, last


def write_steps(path: Path, steps: Iterable[Step]) -> int:
    """Write steps as Parquet, or as JSON Lines if the name ends in ``.jsonl``, a batch in memory at a time.

    Returns:
        How many there were.
    """
    n_steps = 0
    if path.suffix == ".jsonl":
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for step in steps:
                file.write(json.dumps(step.as_row()) + "\n")
                n_steps += 1
        return n_steps
    with table_writer(path, STEP_SCHEMA) as writer:
        for batch in _batched((step.as_row() for step in steps), BATCH_STEPS):
            writer.write_table(pa.Table.from_pylist(batch, schema=STEP_SCHEMA))
            n_steps += len(batch)
    return n_steps


def _batched(rows: Iterable[dict[str, object]], size: int) -> Iterator[list[dict[str, object]]]:
    # itertools.batched is newer than Python 3.11
    rows = iter(rows)
    while batch := list(islice(rows, size)):
        yield batch


def read_steps(path: Path) -> list[Step]:
    """All steps of a file, see `iterate_steps`; the first thing that is wrong is raised."""
    steps = list(iterate_steps(path, _raise))
    if not steps:
        raise TraceError(f"{path}: has no steps")
    return steps


def iterate_steps(path: Path, on_problem: OnProblem) -> Iterator[Step]:
    """Steps from Parquet or JSON Lines, in file order, a batch in memory at a time.

    Args:
        on_problem: gets what is wrong with a row: a wrong field, a step that is there twice, a step
            number that does not increase within its task.

    Raises:
        TraceError: the file cannot be read.
    """
    seen: dict[tuple[str, str], int] = {}
    for where, row in _rows(path):
        try:
            if isinstance(row, TraceError):
                raise row
            step = Step.from_row(row, where)
            last = seen.get((step.task_id, step.policy), -1)
            if step.step == last:
                raise TraceError(f"{where}: task {step.task_id!r}, step {step.step} appears twice")
            if step.step < last:
                raise TraceError(
                    f"{where}: task {step.task_id!r}, step {step.step} comes after step {last}; "
                    "step numbers must increase"
                )
        except TraceError as error:
            task = row.get("task_id") if isinstance(row, dict) else None
            on_problem(error, task if isinstance(task, str) else None)
            continue
        seen[step.task_id, step.policy] = step.step
        yield step


def _raise(error: TraceError, _task_id: str | None) -> None:
    raise error


def read_tasks(path: Path, task_ids: Collection[str]) -> list[Step]:
    """The steps of some tasks from a Parquet file of this project, in file order."""
    rows = pq.read_table(path, filters=[("task_id", "in", sorted(task_ids))]).to_pylist()
    return [Step.from_row(row, f"{path}") for row in rows]


def copy_step_images(steps: Iterable[Step], source: Path, folder: Path, on_problem: OnProblem) -> Iterator[Step]:
    """Pass steps on and copy the images that they name from below `source` into `folder`.

    A step with an image that is missing, is no image, has another size than the step says or lies
    outside of `source` goes to `on_problem` instead.
    """
    copied: set[str] = set()
    for step in steps:
        where = f"task {step.task_id!r}, step {step.step}"
        try:
            for image in (*step.behind_hole, *step.images):
                if image.file in copied:
                    continue
                shot = read_screenshot(source, image.file, where)
                if (shot.width, shot.height) != (image.width, image.height):
                    raise TraceError(
                        f"{where}: {image.file} is {shot.width}x{shot.height}, "
                        f"the step says {image.width}x{image.height}"
                    )
                target = folder / image.file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(shot.data)
                copied.add(image.file)
        except TraceError as error:
            on_problem(error, step.task_id)
            continue
        yield step


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix in (".jsonl", ".ndjson"):
        for where, row in json_lines(path):
            wrong = not isinstance(row, dict | TraceError)
            yield where, TraceError(f"{where}: must be an object, is {type(row).__name__}") if wrong else row
        return
    if not path.is_file():
        raise TraceError(f"{path}: no such file; trace.path is relative to the folder where snakemake runs")
    try:
        number = 0
        for batch in pq.ParquetFile(path).iter_batches(BATCH_STEPS):
            for row in batch.to_pylist():
                yield f"{path}, row {number}", row
                number += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise TraceError(f"{path}: not a Parquet file of steps ({error})") from error
