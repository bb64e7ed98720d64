import json
from dataclasses import asdict, replace

import pyarrow.parquet as pq
import pytest
from fakeprefix.errors import MeasureError
from fakeprefix.measure.records import (
    RECORD_SCHEMA,
    Record,
    RecordWriter,
    join_records,
    read_records,
)
from fakeprefix.measure.session import Clocks

RECORD = Record(
    run="r",
    host="h",
    job="baseline/1",
    task_id="t",
    step=0,
    bucket=1,
    arm="baseline",
    fill=None,
    policy="keep_all",
    history="text",
    repetition=0,
    order=0,
    started_at="2026-01-01T00:00:00+00:00",
    prefix_tokens=100,
    new_tokens=20,
    image_tokens=0,
)


def test_rows_are_on_disk_before_the_next_repetition_and_get_their_name_at_the_end(tmp_path):
    writer = RecordWriter(tmp_path / ".1.partial.jsonl")
    writer.append(RECORD)
    assert list(read_records(tmp_path / ".1.partial.jsonl")) == [RECORD]
    writer.finish(tmp_path / "1.jsonl")
    assert list(read_records(tmp_path / "1.jsonl")) == [RECORD]
    assert [path.name for path in tmp_path.iterdir()] == ["1.jsonl"]


def test_a_second_writer_does_not_append_to_an_earlier_attempt(tmp_path):
    RecordWriter(tmp_path / "x.jsonl").close()
    with pytest.raises(FileExistsError):
        RecordWriter(tmp_path / "x.jsonl")


def test_a_cut_line_is_an_error_and_never_a_row(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(asdict(RECORD)) + "\n" + json.dumps(asdict(RECORD))[:50])
    with pytest.raises(MeasureError, match="line 2"):
        list(read_records(path))


def test_joining_keeps_error_rows_and_types(tmp_path):
    failed = replace(RECORD, error="HTTP 400: no", order=1)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(asdict(row)) + "\n" for row in (RECORD, failed)))
    join_records([tmp_path / "a.jsonl"], tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.schema.names == RECORD_SCHEMA.names
    assert table.column("error").to_pylist() == [None, "HTTP 400: no"]


def test_a_machine_that_slept_is_noticed():
    now = Clocks.now()
    assert now.problem() is None
    assert "the machine slept" in replace(now, wall=now.wall - 30).problem()
