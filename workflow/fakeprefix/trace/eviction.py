"""What harnesses do with old screenshots: replace all but the last few by a short placeholder."""

from collections.abc import Iterator, Sequence

import numpy as np

from fakeprefix.errors import TraceError
from fakeprefix.trace.common_prefix import ImageIds, RenderedPrompt, TaskSteps
from fakeprefix.trace.formats.conversation import RecordedTimes
from fakeprefix.trace.steps import Step, StepImage

KEEP_ALL = "keep_all"
# ids of generated text lie above those of any vocabulary
FIRST_GENERATED_ID = 2**32
PLACEHOLDER_ID = FIRST_GENERATED_ID - 1


def policy_name(keep_last_images: int) -> str:
    """Name of the policy in all records."""
    return f"keep_last_{keep_last_images}"


def evicted_steps(steps: Sequence[Step], keep_last_images: int, placeholder_tokens: int) -> Iterator[Step]:
    """The steps of tasks as they would be if only the last images were kept.

    The text of every step stays. What the steps do not say, the content of the text, is taken to
    differ everywhere.

    Args:
        steps: steps with the policy ``keep_all``, tasks one after another.
        keep_last_images: images that a prompt keeps, the newest ones.
        placeholder_tokens: tokens of what stands for an older one.

    Raises:
        TraceError: the steps of a task do not continue each other, so their prompts cannot be rebuilt.
    """
    tasks: dict[str, list[Step]] = {}
    for step in steps:
        if step.policy == KEEP_ALL:
            tasks.setdefault(step.task_id, []).append(step)
    for task_id, mine in tasks.items():
        task = TaskSteps(task_id, policy_name(keep_last_images))
        for prompt in rebuilt_prompts(mine, keep_last_images, placeholder_tokens):
            yield task.add(prompt)


def rebuilt_prompts(steps: Sequence[Step], keep_last_images: int, placeholder_tokens: int) -> Iterator[RenderedPrompt]:
    """The prompts of one task, from what its steps add."""
    ids = ImageIds()
    first = steps[0]
    generated = FIRST_GENERATED_ID
    pieces: list[tuple[np.ndarray, StepImage | None]] = []

    def text(tokens: int) -> tuple[np.ndarray, None]:
        nonlocal generated
        generated += tokens
        return np.arange(generated - tokens, generated, dtype=np.int64), None

    pieces.append(text(first.prefix_tokens))
    length = first.prefix_tokens
    for step in steps:
        if step.prefix_tokens != length or len(step.visible) > 1:
            raise TraceError(
                f"task {step.task_id!r}, step {step.step}: trace.eviction needs a history that only grows; "
                f"{length} tokens came before, the step says {step.prefix_tokens}"
            )
        pieces += [(ids.cells(image.file, image.tokens), image) for image in step.images]
        pieces.append(text(step.new_tokens - sum(image.tokens for image in step.images)))
        length += step.new_tokens
        yield _assembled(step.step, pieces, keep_last_images, placeholder_tokens, step.times)


def _assembled(
    number: int,
    pieces: Sequence[tuple[np.ndarray, StepImage | None]],
    keep_last_images: int,
    placeholder_tokens: int,
    times: RecordedTimes,
) -> RenderedPrompt:
    left = sum(image is not None for _, image in pieces) - keep_last_images
    parts, images, at = [], [], 0
    for cells, image in pieces:
        part = cells
        if image is not None:
            if left > 0:
                part = np.full(placeholder_tokens, PLACEHOLDER_ID, dtype=np.int64)
            else:
                images.append((at, image))
            left -= 1
        parts.append(part)
        at += len(part)
    return RenderedPrompt(number, np.concatenate(parts), tuple(images), times)
