"""Whole prompts as sequences of token ids, and the steps that follow from comparing them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fakeprefix.errors import TraceError
from fakeprefix.trace.formats.conversation import NOTHING_RECORDED, RecordedTimes
from fakeprefix.trace.steps import Step, StepImage

# so many tokens in a row, found again behind a gap, may be history that was kept
KEPT_RUN = 16
# and it is history if it covers so much of the text that the previous prompt had behind the gap
KEPT_SHARE = 0.5


@dataclass(frozen=True)
class RenderedPrompt:
    """What one call of the model was given, counted in KV cells.

    Attributes:
        step: number of the call within its task.
        ids: one id a KV cell, shape ``(n,)``. Text has its token ids (>= 0), the cells of an image
            share a negative one, see `ImageIds`.
        images: the images in order, each with the index of its first cell.
        times: as far as they were recorded.
    """

    step: int
    ids: np.ndarray
    images: tuple[tuple[int, StepImage], ...] = ()
    times: RecordedTimes = NOTHING_RECORDED


class ImageIds:
    """Negative ids for images: the same content has the same one."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def cells(self, digest: str, tokens: int) -> np.ndarray:
        """Ids of all cells of an image, shape ``(tokens,)``."""
        return np.full(tokens, self._ids.setdefault(digest, -1 - len(self._ids)), dtype=np.int64)


class PrefixIndex:
    """Finds the longest beginning that an earlier sequence has too.

    Every prefix of an earlier sequence is in a set by its hash, so that the longest one can be
    searched for by bisection; a prefix adds only what was not there. The hash is a sum of products
    with random odd numbers, one a position, modulo 2^64.
    """

    def __init__(self) -> None:
        self._hashes: set[int] = set()
        self._factors = np.empty(0, dtype=np.uint64)

    def longest(self, ids: np.ndarray) -> int:
        """Length of the longest prefix of `ids` that was added before."""
        hashes = self._prefix_hashes(ids)
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high + 1) // 2
            if int(hashes[middle - 1]) in self._hashes:
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, ids: np.ndarray, known: int = 0) -> None:
        """Remember all prefixes of `ids`; those up to `known` are there already."""
        self._hashes.update(self._prefix_hashes(ids)[known:].tolist())

    def _prefix_hashes(self, ids: np.ndarray) -> np.ndarray:
        if len(self._factors) < len(ids):
            drawn = np.random.default_rng(1).integers(0, 2**63, 2 * len(ids), dtype=np.uint64)
            self._factors = drawn * np.uint64(2) + np.uint64(1)
        # an id of 0 must count too
        values = (ids + 2**40).astype(np.uint64) * self._factors[: len(ids)]
        mixed = values ^ (values >> np.uint64(29))
        return np.cumsum(mixed * np.uint64(0x9E3779B97F4A7C15), dtype=np.uint64)


class TaskSteps:
    """Turns the prompts of one task, in the order of the calls, into steps.

    The prefix is the longest beginning, in tokens, that any earlier prompt of the task has; it is
    never taken to be as long as the previous prompt. Where the prompt goes on with something that
    the previous one held behind other content, the history has a hole: the visible ranges say where.

    Args:
        policy: what the agent does with its history.
    """

    def __init__(self, task_id: str, policy: str) -> None:
        self._task_id, self._policy = task_id, policy
        self._index = PrefixIndex()
        self._previous: RenderedPrompt | None = None

    def add(self, prompt: RenderedPrompt) -> Step:
        """The step of the next prompt.

        Raises:
            TraceError: the prompt is empty, or its step number does not increase.
        """
        where = f"task {self._task_id!r}, step {prompt.step}"
        if self._previous is not None and prompt.step <= self._previous.step:
            raise TraceError(
                f"{where}: comes after step {self._previous.step}; step numbers must increase within a task"
            )
        if not len(prompt.ids):
            raise TraceError(f"{where}: its prompt is empty")
        known = self._index.longest(prompt.ids)
        # one token at least is computed, and an image is present as a whole or not at all
        prefix = _outside_images(prompt, min(known, len(prompt.ids) - 1))
        step = _step(self._task_id, self._policy, prompt, prefix, self._previous)
        self._index.add(prompt.ids, known)
        self._previous = prompt
        return step


def _outside_images(prompt: RenderedPrompt, length: int) -> int:
    for start, image in prompt.images:
        if start < length < start + image.tokens:
            return start
    return length


def _step(task_id: str, policy: str, prompt: RenderedPrompt, prefix: int, previous: RenderedPrompt | None) -> Step:
    visible = ((0, prefix - 1),) if prefix else ()
    kept = None if previous is None else kept_behind_gap(previous.ids, prompt.ids, prefix)
    # without a hole nothing is kept, and what is new begins where the prefix ends
    first, n_kept, at = kept or (0, 0, prefix)
    if kept:
        visible = (*visible, (first, first + n_kept - 1))
    new_images = tuple(image for start, image in prompt.images if start >= at + n_kept)
    return Step(
        task_id=task_id,
        step=prompt.step,
        policy=policy,
        prefix_tokens=prefix + n_kept,
        new_tokens=len(prompt.ids) - prefix - n_kept,
        image_tokens=sum(image.tokens for image in new_images),
        images=new_images,
        visible=visible,
        behind_hole=tuple(image for start, image in prompt.images if prefix <= start < at + n_kept),
        decode_s=prompt.times.decode_s,
        exec_s=prompt.times.exec_s,
        recorded_wall_s=prompt.times.recorded_wall_s,
    )


def kept_behind_gap(before: np.ndarray, now: np.ndarray, prefix: int) -> tuple[int, int, int] | None:
    """History that both prompts have behind the point at which they part.

    Args:
        before, now: ids of the previous prompt and of this one.
        prefix: where they part.

    Returns:
        Where the first kept run begins in `before`, its length, and where it begins in `now`; None if the
        history simply ends at `prefix`, which is a rewind and no hole, or if the prefix is another
        prompt's. A few tokens in common, of a template for example, are no history.
    """
    if not np.array_equal(before[:prefix], now[:prefix]):
        return None
    old, new = before[prefix:], now[prefix:]
    if len(old) < KEPT_RUN or len(new) < KEPT_RUN:
        return None
    runs = list(_common_runs(old, new))
    n_text = int(np.count_nonzero(old >= 0))
    n_kept = sum(int(np.count_nonzero(old[at : at + length] >= 0)) for at, length, _ in runs)
    # the first one at 0 would continue the prefix itself: something was put in, nothing is missing
    if not runs or runs[0][0] == 0 or n_kept < KEPT_SHARE * n_text:
        return None
    at, length, start = runs[0]
    return prefix + at, length, prefix + start


def _common_runs(old: np.ndarray, new: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Runs that both have in the same order, but for the last id of `new`: where in `old`, length, where in `new`."""
    places: dict[bytes, list[int]] = {}
    for at in range(len(old) - KEPT_RUN + 1):
        places.setdefault(old[at : at + KEPT_RUN].tobytes(), []).append(at)
    start, behind = 0, 0
    while start <= len(new) - KEPT_RUN - 1:
        found = next((at for at in places.get(new[start : start + KEPT_RUN].tobytes(), ()) if at >= behind), None)
        if found is None:
            start += 1
            continue
        length = min(len(old) - found, len(new) - start - 1)
        same = old[found : found + length] == new[start : start + length]
        run = length if same.all() else int(np.argmin(same))
        yield found, run, start
        start, behind = start + run, found + run
