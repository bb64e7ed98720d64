"""From a file of a trace to steps: which format it is, and what happens to records that cannot be used."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakeprefix.errors import TraceError
from fakeprefix.settings import Eviction
from fakeprefix.trace.common_prefix import TaskSteps
from fakeprefix.trace.eviction import KEEP_ALL, evicted_steps, policy_name
from fakeprefix.trace.formats.blocks import kv_cache_tester, mooncake
from fakeprefix.trace.formats.chat_log import body_of, openai_chat
from fakeprefix.trace.formats.conversation import OnProblem, Request
from fakeprefix.trace.formats.files import json_lines, read_json_file, read_text
from fakeprefix.trace.formats.opencua import opencua
from fakeprefix.trace.formats.swe_agent import mini_swe_agent, swe_agent
from fakeprefix.trace.import_summary import ImportSummary
from fakeprefix.trace.rendering import Renderer
from fakeprefix.trace.steps import Step, copy_step_images, iterate_steps

# formats of whole conversations, which the model's own tokenizer has to count
CONVERSATIONS: dict[str, Callable[[Path, OnProblem], Iterator[Request]]] = {
    "opencua": opencua,
    "openai-chat": openai_chat,
    "swe-agent": swe_agent,
    "mini-swe-agent": mini_swe_agent,
}
COUNTED: dict[str, Callable[[Path, OnProblem], Iterator[Step]]] = {
    "steps": iterate_steps,
    "kv-cache-tester": kv_cache_tester,
    "mooncake": mooncake,
}
FORMATS = (*COUNTED, *CONVERSATIONS)
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".traj", ".csv")
LINES = (".jsonl", ".ndjson")
MAX_REASONS = 20


@dataclass
class Problems:
    """Records that could not be used.

    Attributes:
        skip: count them and go on; else the first one is raised.
        n_skipped: how many.
        reasons: the first of them.
        by_task: how many of each task; those of no task that can be told are under None.
    """

    skip: bool
    n_skipped: int = 0
    reasons: list[str] = field(default_factory=list)
    by_task: dict[str | None, int] = field(default_factory=dict)

    def summary(self, name: str, n_steps: int) -> ImportSummary:
        """What the import of `n_steps` steps in the format `name` found."""
        return ImportSummary(
            format=name,
            steps=n_steps,
            skipped=self.n_skipped,
            skipped_by_task={task: n for task, n in self.by_task.items() if task is not None},
            skipped_of_no_task=self.by_task.get(None, 0),
            reasons=tuple(self.reasons),
        )

    def __call__(self, error: TraceError, task_id: str | None = None) -> None:
        if not self.skip:
            raise error
        self.n_skipped += 1
        self.by_task[task_id] = self.by_task.get(task_id, 0) + 1
        if len(self.reasons) < MAX_REASONS:
            self.reasons.append(str(error))


def trace_files(path: Path) -> list[Path]:
    """The file, or the files of a folder in the order of their names.

    Raises:
        TraceError: there is no such file or folder, or the folder has no trace.
    """
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not found:
            raise TraceError(f"{path}: contains no trace file ({', '.join(SUFFIXES)})")
        return found
    if not path.is_file():
        raise TraceError(f"{path}: no such file; trace.path is relative to the folder where snakemake runs")
    return [path]


def format_of(path: Path, configured: str) -> str:
    """The format of a file or of all files of a folder.

    Args:
        configured: a format, or ``auto``.

    Raises:
        TraceError: none fits, several do, files of a folder differ, or a prefix cannot be derived.
    """
    if configured != "auto":
        return configured
    found = {file: detect(file) for file in trace_files(path)}
    if len(set(found.values())) > 1:
        named = ", ".join(f"{file.name}: {name}" for file, name in list(found.items())[:4])
        raise TraceError(f"{path}: its files differ in format ({named}); give one of them, or set trace.format")
    return next(iter(found.values()))


def detect(path: Path) -> str:
    """The one format that a file can be.

    Raises:
        TraceError: none or several; the message names the candidates.
    """
    if path.suffix == ".parquet":
        return "steps"
    if path.suffix == ".csv":
        head = read_text(path).splitlines()[0]
        raise TraceError(
            f"{path}: token counts without sessions ({head[:60]}); which tokens of a request were there before "
            "cannot be derived from them"
        )
    in_lines = path.suffix in LINES
    sample = _sample(path)
    candidates = [name for name, fits in _SIGNS.items() if (name in _LINE_FORMATS or not in_lines) and fits(sample)]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise TraceError(f"{path}: could be {' or '.join(candidates)}; set trace.format")
    known = ", ".join(FORMATS)
    if not isinstance(sample, dict):
        raise TraceError(f"{path}: not in a known format ({known}); it is {type(sample).__name__}")
    keys = ", ".join(sorted(map(str, sample))[:8])
    if any("token" in str(key).lower() for key in sample):
        raise TraceError(
            f"{path}: has token counts ({keys}) but nothing that says which tokens were there before; cumulative "
            "and added counts must be told apart, see the format steps"
        )
    raise TraceError(f"{path}: not in a known format ({known}); its keys are {keys}")


def _sample(path: Path) -> Any:
    """The value of a JSON file, or of the first line of JSON Lines."""
    if path.suffix not in LINES:
        return read_json_file(path)
    _, value = next(json_lines(path))
    if isinstance(value, TraceError):
        raise value
    return value


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None


def _has(value: Any, *names: str) -> bool:
    return isinstance(value, dict) and all(name in value for name in names)


def _is_message(value: Any) -> bool:
    return _has(value, "role") and not _has(value, "messages")


_LINE_FORMATS = ("steps", "mooncake", "openai-chat")
_SIGNS: dict[str, Callable[[Any], bool]] = {
    "steps": lambda value: _has(value, "task_id", "prefix_tokens", "new_tokens"),
    "mooncake": lambda value: _has(value, "hash_ids", "input_length"),
    "kv-cache-tester": lambda value: _has(value, "block_size", "requests"),
    "opencua": lambda value: _has(value, "steps") and _has(_first(value["steps"]), "step_num", "image"),
    "swe-agent": lambda value: _has(value, "history"),
    "mini-swe-agent": lambda value: (
        _is_message(_first(value)) or (_has(value, "messages") and _is_message(_first(value["messages"])))
    ),
    "openai-chat": lambda value: (
        body_of(value) is not None
        or body_of(_first(value)) is not None
        or (_has(value, "requests") and body_of(_first(value["requests"])) is not None)
    ),
}


def import_steps(
    path: Path,
    name: str,
    problems: Problems,
    images: Path,
    renderer: Renderer | None,
    eviction: Eviction,
) -> Iterator[Step]:
    """The steps of a trace, and with eviction also those of an agent that evicts old screenshots.

    Args:
        name: one of `FORMATS`.
        images: folder that gets the screenshots.
        renderer: for formats of conversations.

    Raises:
        TraceError: the trace cannot be used, see the formats.
    """
    n_steps = 0
    for step in _steps(path, name, problems, images, renderer, eviction):
        n_steps += 1
        yield step
    if not n_steps:
        skipped = f"; {problems.n_skipped} records were skipped: {problems.reasons[0]}" if problems.n_skipped else ""
        raise TraceError(f"{path}: has no steps{skipped}")


def _steps(
    path: Path, name: str, problems: Problems, images: Path, renderer: Renderer | None, eviction: Eviction
) -> Iterator[Step]:
    owners: dict[str, Path] = {}
    for file in trace_files(path):
        for step in _steps_of_file(file, name, problems, images, renderer, eviction):
            if owners.setdefault(step.task_id, file) != file:
                raise TraceError(
                    f"{file}: task {step.task_id!r} is also in {owners[step.task_id].name}; "
                    "put its records into one file"
                )
            yield step


def _steps_of_file(
    file: Path,
    name: str,
    problems: Problems,
    images: Path,
    renderer: Renderer | None,
    eviction: Eviction,
) -> Iterator[Step]:
    if name in CONVERSATIONS:
        if renderer is None:
            raise TraceError(f"{file}: trace.format {name} needs the model's tokenizer")
        requests = CONVERSATIONS[name](file, problems)
        yield from conversation_steps(requests, renderer, problems, images, eviction)
        return
    steps = copy_step_images(COUNTED[name](file, problems), file.parent, images, problems)
    if not eviction.keep_last_images:
        yield from steps
        return
    kept = list(steps)
    yield from kept
    yield from evicted_steps(kept, eviction.keep_last_images, eviction.placeholder_tokens)


def conversation_steps(
    requests: Iterator[Request], renderer: Renderer, problems: Problems, images: Path, eviction: Eviction
) -> Iterator[Step]:
    """Steps of requests, tasks may be mixed; for each request one step a policy."""
    policies: dict[str, int | None] = {KEEP_ALL: None}
    if eviction.keep_last_images:
        policies[policy_name(eviction.keep_last_images)] = eviction.keep_last_images
    tasks: dict[tuple[str, str], TaskSteps] = {}
    written: set[str] = set()
    for request in requests:
        for policy, keep in policies.items():
            task = tasks.setdefault((request.task_id, policy), TaskSteps(request.task_id, policy))
            try:
                step = task.add(renderer.prompt(request, keep))
            except TraceError as error:
                problems(error, request.task_id)
                continue
            for image in (*step.behind_hole, *step.images):
                if image.file not in written:
                    images.mkdir(parents=True, exist_ok=True)
                    (images / image.file).write_bytes(renderer.screenshots[image.file].data)
                    written.add(image.file)
            yield step
        # their files are written; the next request brings those that it shows
        renderer.screenshots.clear()
