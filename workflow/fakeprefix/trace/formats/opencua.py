"""Trajectories of computer-use agents in the form of OpenCUA: a screenshot and an inner monologue a step."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from fakeprefix.errors import TraceError
from fakeprefix.trace.formats.conversation import Message, OnProblem, Request, read_screenshot
from fakeprefix.trace.formats.files import fields_of, read_json_file, whole_number

SYSTEM_PROMPT = (
    "You are a computer-use agent. You are given a task, a screenshot of the computer and what you did so far. "
    "Describe what you see, think about what to do next, and give one action as Python code with pyautogui."
)


def opencua(path: Path, on_problem: OnProblem) -> Iterator[Request]:
    """One request for each recorded step: the task, all earlier screenshots and answers, the new screenshot.

    Raises:
        TraceError: the file is not of this format, or step numbers do not increase.
    """
    content = fields_of(read_json_file(path))
    steps = content.get("steps")
    if not isinstance(steps, list) or not steps:
        raise TraceError(f"{path}: has no list of steps")
    task = str(content.get("task_id", path.stem))
    instruction = content.get("user_task_description") or content.get("instruction")
    if not isinstance(instruction, str):
        raise TraceError(f"{path}: user_task_description = {instruction!r}, must be text")
    messages = [Message("system", (SYSTEM_PROMPT,)), Message("user", (f"Task: {instruction}",))]
    last = -1
    for index, step in enumerate(steps):
        where = f"{path}, steps[{index}]"
        try:
            if not isinstance(step, dict):
                raise TraceError(f"{where}: is not an object")
            number = whole_number(step.get("step_num"), "step_num", where)
            if number <= last:
                raise TraceError(f"{where}: step_num = {number} comes after {last}; step numbers must increase")
            image = step.get("image")
            if not isinstance(image, str):
                raise TraceError(f"{where}: image = {image!r}, must be the name of a file")
            shot = read_screenshot(path.parent, image, where)
            answer = answer_of(step, where)
        except TraceError as error:
            on_problem(error, task)
            continue
        last = number
        messages.append(Message("user", (shot,)))
        yield Request(task, number, tuple(messages))
        messages.append(Message("assistant", (answer,)))


def answer_of(step: dict[str, JsonValue], where: str) -> str:
    """What the agent wrote: observation, thought, instruction, and its action."""
    monologue = step.get("inner_monologue") or {}
    if not isinstance(monologue, dict):
        raise TraceError(f"{where}: inner_monologue is {type(monologue).__name__}, must be an object")
    names = {"observation": "Observation", "thought": "Thought", "low_level_instruction": "Action"}
    lines = [f"{title}: {monologue[name]}" for name, title in names.items() if monologue.get(name)]
    action = step.get("action") or step.get("code") or ""
    return "\n\n".join([*lines, f"Code: {action}"])
