"""A real server that is killed, and a clock that jumps, in the middle of a repetition: an error row, never a number."""

import io
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from fakeprefix.errors import ServerError
from fakeprefix.measure import session as session_module
from fakeprefix.measure.records import RecordWriter, read_records
from fakeprefix.measure.requests import FAKE_PREFIX, prefixed_request
from fakeprefix.measure.session import Probe, Session, Subject
from fakeprefix.model.gguf_file import facts_of_preset
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.exact_prompts import Image, Segment
from fakeprefix.server.process import running_server
from fakeprefix.trace.desktop import screenshot

SETTINGS = EngineSettings(2, 512, 256, "on", "f16", "f16", 16_384)

pytestmark = pytest.mark.engine


@pytest.fixture
def life(tmp_path, fast_server, tiny_model, tiny_mmproj):
    """A session with a running server, the server, its log and the file of rows."""
    rows = tmp_path / "rows.jsonl"
    writer = RecordWriter(rows)
    with running_server(fast_server, SETTINGS, tiny_model, tiny_mmproj, tmp_path / "log") as server:
        props = server.client.props()
        session = Session("fake_prefix/1", "run", server, props, writer, "tile", Probe(256, 32), 1, 120.0)
        session.warm_up()
        yield SimpleNamespace(session=session, server=server, log=tmp_path / "log", rows=rows)
    writer.close()


def measure(life, new, repetition=0):
    subject = Subject("task", 0, 1, "keep_all", 512, sum(part.text_tokens for part in new), 0)
    request = prefixed_request(FAKE_PREFIX, 512, new, "prefix", "tile")
    return life.session.measure(subject, FAKE_PREFIX, request, repetition)


def kill_when(life, condition):
    """Kill the server as soon as the condition holds, in the background."""

    def watch():
        deadline = time.monotonic() + 60
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(life.server.pid, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def assert_error_row(life):
    *good, last = read_records(life.rows)
    assert all(record.status == "ok" for record in good)
    assert last.status == "error"
    assert "no answer" in last.error
    assert last.prompt_ms is None
    assert last.wall_s > 0


def test_killed_in_the_middle_of_a_prefill(life):
    assert measure(life, (Segment(32, "new"),)).status == "ok"
    started = time.monotonic()
    kill_when(life, lambda: time.monotonic() - started > 0.5)
    with pytest.raises(ServerError, match="no answer"):
        measure(life, (Segment(12_000, "long"),))
    assert_error_row(life)


def test_killed_in_the_middle_of_an_image(life):
    geometry = facts_of_preset("tiny-hybrid").image
    buffer = io.BytesIO()
    screenshot(1280, 720, "killed").save(buffer, format="PNG")
    image = Image(buffer.getvalue(), geometry.tokens(1280, 720))
    before = life.log.stat().st_size
    kill_when(life, lambda: b"processing image" in life.log.read_bytes()[before:])
    with pytest.raises(ServerError, match="no answer"):
        measure(life, (Segment(16, "before"), Segment(16, "new", image)))
    assert_error_row(life)


def test_a_machine_that_slept_in_a_repetition_gives_an_error_row_and_the_next_one_counts(life, monkeypatch):
    # the wall clock runs on while the machine sleeps, the monotonic clock does not
    real, calls = time.time, []

    def slept():
        calls.append(1)
        return real() + (3600.0 if len(calls) > 1 else 0.0)

    monkeypatch.setattr(session_module, "time", SimpleNamespace(time=slept, monotonic=time.monotonic))
    assert measure(life, (Segment(32, "new"),)).status == "error"
    monkeypatch.undo()
    assert measure(life, (Segment(32, "new"),), repetition=1).status == "ok"
    first, second = read_records(life.rows)
    assert "slept" in first.error
    assert (first.repetition, second.repetition) == (0, 1)
