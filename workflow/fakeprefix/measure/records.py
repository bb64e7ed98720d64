"""The record of one repetition, and when it counts."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from fakeprefix.errors import MeasureError
from fakeprefix.storage import write_table

OK, ERROR = "ok", "error"

# the wall clock may run on while the machine sleeps, the monotonic one does not
MAX_CLOCK_DIFFERENCE_S = 1.0


@dataclass(frozen=True)
class Record:
    """One repetition. Times of the server are in ms, see `fakeprefix.server.client.Timings`.

    Attributes:
        job: ``<arm>/<bucket>`` of the server life that it belongs to.
        arm: the step's arm, ``probe`` (the same request in every job) or ``prime`` (a real prefill of a
            prefix, for a state to restore or the prompt cache).
        twin: 0, or 1 for the second of two equal repetitions in a round, which show the noise floor.
        install_ms: making the prefix present: fabricating it, restoring it, or for `cached_prefix`
            the prefill that had to precede.
        history: baseline only: ``images`` if the prefix contained the trace's images, ``text`` if the
            trace has none, ``text-equivalent`` if text stands for images.
        order: running number within the job, probes included.
        decode_n, decode_ms: tokens after the first one and their time.
        wall_s: the whole request as seen by the client.
        status: ``ok`` or ``error``; no figure is computed from an error row.
    """

    run: str
    host: str
    job: str
    task_id: str
    step: int
    bucket: int
    arm: str
    fill: str | None
    policy: str
    history: str | None
    repetition: int
    order: int
    started_at: str
    prefix_tokens: int
    new_tokens: int
    image_tokens: int
    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    install_ms: float | None = None
    install_bytes: int | None = None
    image_encode_ms: float | None = None
    n_kv: int | None = None
    seq_pos_max_attn: int | None = None
    seq_pos_max_recr: int | None = None
    decode_n: int | None = None
    decode_ms: float | None = None
    wall_s: float | None = None
    status: str = ERROR
    error: str | None = None
    server_pid: int | None = None
    twin: int = 0


_ARROW = {int: pa.int64(), float: pa.float64(), str: pa.string()}


def _arrow_type(annotation: Any) -> pa.DataType:
    kinds = [kind for kind in getattr(annotation, "__args__", (annotation,)) if kind is not type(None)]
    return _ARROW[kinds[0]]


RECORD_SCHEMA = pa.schema([(field.name, _arrow_type(field.type)) for field in fields(Record)])


class RecordWriter:
    """Appends records to a file that survives the job, each one whole on the disk before the next.

    The file gets its final name by `finish`; Snakemake deletes the outputs of a failed job, but
    not this one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("x", encoding="utf-8")

    def append(self, record: Record) -> None:
        self._file.write(json.dumps(asdict(record), allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self, final: Path) -> None:
        self._file.close()
        final.parent.mkdir(parents=True, exist_ok=True)
        self.path.replace(final)

    def close(self) -> None:
        self._file.close()


def read_records(path: Path) -> Iterator[Record]:
    """Records of one raw file.

    Raises:
        MeasureError: a line is not a whole record.
    """
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield Record(**json.loads(line))
            except (json.JSONDecodeError, TypeError) as error:
                raise MeasureError(f"{path}, line {number}: is not a record ({error})") from None


def join_records(files: Iterable[Path], table: Path) -> None:
    """Write all records of the raw files, error rows too, as one Parquet table."""
    rows = (asdict(record) for file in files for record in read_records(file))
    write_table(table, rows, RECORD_SCHEMA)
