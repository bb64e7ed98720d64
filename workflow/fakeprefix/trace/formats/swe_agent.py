"""Trajectories of SWE-agent and mini-SWE-agent: a history of messages, one step for each of the assistant's."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from fakeprefix.errors import TraceError
from fakeprefix.trace.formats.conversation import Message, OnProblem, Request, message_of, requests_before_answers
from fakeprefix.trace.formats.files import fields_of, read_json_file


def swe_agent(path: Path, on_problem: OnProblem) -> Iterator[Request]:
    """Requests of a ``.traj`` file, from its ``history``; a ``trajectory`` beside it adds nothing to the prompts.

    Raises:
        TraceError: the file is not of this format.
    """
    content = fields_of(read_json_file(path))
    history = content.get("history")
    if not isinstance(history, list):
        raise TraceError(f"{path}: has no history")
    name = path.name.removesuffix(".json").removesuffix(".traj")
    yield from _requests(str(content.get("instance_id", name)), history, path, on_problem)


def mini_swe_agent(path: Path, on_problem: OnProblem) -> Iterator[Request]:
    """Requests of a bare list of messages, or of an object with ``messages``.

    Raises:
        TraceError: the file is not of this format.
    """
    content = read_json_file(path)
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list):
        raise TraceError(f"{path}: has no list of messages")
    yield from _requests(path.name.removesuffix(".json").removesuffix(".traj"), messages, path, on_problem)


def _requests(task: str, values: list[JsonValue], path: Path, on_problem: OnProblem) -> Iterator[Request]:
    messages: list[Message] = []
    for number, value in enumerate(values):
        try:
            messages.append(message_of(value, path.parent, f"{path}, message {number}"))
        except TraceError as error:
            on_problem(error, task)
    if not any(message.role == "assistant" for message in messages[1:]):
        raise TraceError(f"{path}: no assistant message has a message before it, so there is no step")
    yield from requests_before_answers(task, messages)
