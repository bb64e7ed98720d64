"""The record of one agent step, and its files: Parquet and JSON Lines."""

import json
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fakeprefix.errors import TraceError
from fakeprefix.storage import write_table, write_text

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
        pa.field("policy", pa.string(), nullable=False),
        pa.field("decode_s", pa.float64()),
        pa.field("exec_s", pa.float64()),
        pa.field("recorded_wall_s", pa.float64()),
    ]
)

REJECTED_SCHEMA = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
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

    def __post_init__(self) -> None:
        where = f"task {self.task_id!r}, step {self.step}"
        if self.prefix_tokens < 0:
            raise TraceError(f"{where}: prefix_tokens = {self.prefix_tokens}, must be >= 0")
        if self.new_tokens < 1:
            raise TraceError(f"{where}: new_tokens = {self.new_tokens}, must be >= 1")
        if not 0 <= self.image_tokens <= self.new_tokens:
            raise TraceError(f"{where}: image_tokens = {self.image_tokens}, must be between 0 and new_tokens")
        if self.image_tokens != sum(image.tokens for image in self.images) and self.images:
            raise TraceError(f"{where}: image_tokens = {self.image_tokens} is not the sum over its images")

    @property
    def total_tokens(self) -> int:
        return self.prefix_tokens + self.new_tokens

    def as_row(self) -> dict[str, Any]:
        row = asdict(self)
        row["visible"] = [list(run) for run in self.visible]
        row["images"] = [asdict(image) for image in self.images]
        return row

    @classmethod
    def from_row(cls, row: dict[str, Any], where: str = "") -> "Step":
        """A step from a row of a file.

        Raises:
            TraceError: an unknown, missing or wrong field; `where` is put in front of the message.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(row) - known):
            raise TraceError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}")
        values = {name: value for name, value in row.items() if value is not None}
        try:
            values["images"] = tuple(StepImage(**image) for image in values.get("images", ()))
            values["visible"] = tuple((int(first), int(last)) for first, last in values.get("visible", ()))
            for name in ("step", "prefix_tokens", "new_tokens", "image_tokens"):
                if name in values and (isinstance(values[name], bool) or not isinstance(values[name], int)):
                    raise TraceError(f"{where}: {name} = {values[name]!r}, must be an integer")
            return cls(**values)
        except TypeError as error:
            raise TraceError(f"{where}: {error}") from None


def write_steps(path: Path, steps: Iterable[Step]) -> None:
    """Write steps as Parquet, or as JSON Lines if the name ends in ``.jsonl``."""
    rows = (step.as_row() for step in steps)
    if path.suffix == ".jsonl":
        write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    else:
        write_table(path, rows, STEP_SCHEMA)


def read_steps(path: Path) -> list[Step]:
    """Read steps from Parquet or JSON Lines, in file order.

    Raises:
        TraceError: the file cannot be read, is empty, has duplicate steps or a wrong field.
    """
    steps = list(_read(path))
    if not steps:
        raise TraceError(f"{path}: has no steps")
    seen: set[tuple[str, int, str]] = set()
    for step in steps:
        key = (step.task_id, step.step, step.policy)
        if key in seen:
            raise TraceError(f"{path}: task {step.task_id!r}, step {step.step} appears twice")
        seen.add(key)
    return steps


def read_tasks(path: Path, task_ids: Collection[str]) -> list[Step]:
    """The steps of some tasks from a Parquet file of this project, in file order."""
    rows = pq.read_table(path, filters=[("task_id", "in", sorted(task_ids))]).to_pylist()
    return [Step.from_row(row, f"{path}") for row in rows]


def copy_images(steps: Iterable[Step], source: Path, folder: Path) -> None:
    """Copy the images that the steps name from below `source` into `folder`.

    Raises:
        TraceError: an image is missing or lies outside of `source`.
    """
    root = source.resolve()
    for step in steps:
        for image in step.images:
            path = (root / image.file).resolve()
            if not path.is_relative_to(root):
                raise TraceError(f"{image.file}: lies outside of the trace's folder {source}")
            if not path.is_file():
                raise TraceError(f"task {step.task_id!r}, step {step.step}: {path} is missing")
            target = folder / image.file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _read(path: Path) -> Iterator[Step]:
    if not path.is_file():
        raise TraceError(f"{path}: no such file; trace.path is relative to the folder where snakemake runs")
    if path.suffix != ".jsonl":
        try:
            rows = pq.read_table(path).to_pylist()
        except (pa.ArrowInvalid, OSError) as error:
            raise TraceError(f"{path}: not a Parquet file of steps ({error})") from error
        for i, row in enumerate(rows):
            yield Step.from_row(row, f"{path}, row {i}")
        return
    with path.open(encoding="utf-8") as file:
        for i, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise TraceError(f"{path}, line {i}: not JSON ({error.msg})") from None
            if not isinstance(row, dict):
                raise TraceError(f"{path}, line {i}: must be an object, is {type(row).__name__}")
            yield Step.from_row(row, f"{path}, line {i}")
