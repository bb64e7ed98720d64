"""Logs of chat requests in the form of the OpenAI API, one request a step."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from fakeprefix.errors import TraceError
from fakeprefix.trace.formats.conversation import Message, OnProblem, RecordedTimes, Request, message_of
from fakeprefix.trace.formats.files import json_lines, read_json_file, seconds

TASK_FIELDS = ("task_id", "session_id", "conversation_id", "trace_id")


def openai_chat(path: Path, on_problem: OnProblem) -> Iterator[Request]:
    """Requests of a JSON list, of an object with ``requests``, or of JSON Lines, in file order.

    A request is an object with ``messages``, or one with such an object under ``request`` or ``body``.
    Its task is the first of ``task_id``, ``session_id``, ``conversation_id`` and ``trace_id`` that it
    has, else the name of the file. Requests of several tasks may be mixed.

    Raises:
        TraceError: the file is not of this format.
    """
    steps: dict[str, int] = {}
    for where, row in _rows(path):
        task = None
        try:
            if isinstance(row, TraceError):
                raise row
            body = body_of(row)
            if body is None or not isinstance(row, dict):
                raise TraceError(f"{where}: has no list of messages")
            task = next((str(row[name]) for name in TASK_FIELDS if row.get(name) is not None), path.stem)
            messages = _messages(body["messages"], path, where)
            times = _times(row, where)
            request = Request(task, steps.get(task, 0), messages, _tools(body.get("tools") or [], where), times)
        except TraceError as error:
            on_problem(error, task)
            continue
        steps[task] = request.step + 1
        yield request


def _messages(values: JsonValue, path: Path, where: str) -> tuple[Message, ...]:
    if not isinstance(values, list) or not values:
        raise TraceError(f"{where}: messages is empty")
    return tuple(message_of(value, path.parent, f"{where}, message {number}") for number, value in enumerate(values))


def _times(row: dict[str, JsonValue], where: str) -> RecordedTimes:
    return RecordedTimes(*(seconds(row.get(name), name, where) for name in ("decode_s", "exec_s", "recorded_wall_s")))


def _tools(values: JsonValue, where: str) -> tuple[dict[str, JsonValue], ...]:
    if not isinstance(values, list):
        raise TraceError(f"{where}: tools is {type(values).__name__}, must be a list")
    tools = [value for value in values if isinstance(value, dict)]
    if len(tools) < len(values):
        raise TraceError(f"{where}: tools has an entry that is not an object")
    return tuple(tools)


def body_of(row: JsonValue) -> dict[str, JsonValue] | None:
    """The object with ``messages`` of a logged request; None if there is none."""
    if not isinstance(row, dict):
        return None
    for body in (row, row.get("request"), row.get("body")):
        if isinstance(body, dict) and isinstance(body.get("messages"), list):
            return body
    return None


def _rows(path: Path) -> Iterator[tuple[str, JsonValue | TraceError]]:
    if path.suffix in (".jsonl", ".ndjson"):
        yield from json_lines(path)
        return
    content = read_json_file(path)
    if isinstance(content, dict):
        content = content.get("requests", [content])
    if not isinstance(content, list):
        raise TraceError(f"{path}: must be a list of requests, is {type(content).__name__}")
    for number, row in enumerate(content):
        yield f"{path}, request {number}", row
