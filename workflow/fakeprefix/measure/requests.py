"""The ways of making the prefix present, as requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image as Picture

from fakeprefix.errors import TraceError
from fakeprefix.server.exact_prompts import Image, Segment
from fakeprefix.trace.desktop import mark
from fakeprefix.trace.steps import Step, StepImage

BASELINE, FAKE_PREFIX, STATE_RESTORE, CACHED_PREFIX = "baseline", "fake_prefix", "state_restore", "cached_prefix"
# rows that are no arm of their own: the fixed request of every job, and real prefills of a prefix
PROBE, PRIME = "probe", "prime"

# the one state that a server keeps at a time
STATE_NAME = "prefix"

ImageLoader = Callable[[StepImage, str], Image]


@dataclass(frozen=True)
class ArmRequest:
    """A request of one repetition.

    Attributes:
        segments: the whole prompt.
        options: fields of the request besides the prompt.
        prefix_source: what the server must say about the prefix.
        history: see `fakeprefix.measure.records.Record`.
        prime: a real prefill of the prefix that must precede; None if there is none.
        prime_lasts: the prime serves all requests with the same prefix, not only the next one.
    """

    segments: tuple[Segment, ...]
    options: dict[str, Any]
    prefix_source: str
    history: str | None = None
    prime: "ArmRequest | None" = None
    prime_lasts: bool = False


def image_loader(folder: Path) -> ImageLoader:
    """Loads a trace's images, each time with another mark in a corner, so that no cache can hit.

    Raises (when called):
        TraceError: the file is missing, outside `folder`, not an image, or of another size.
    """
    root = folder.resolve()

    def load(image: StepImage, seed: str) -> Image:
        path = (root / image.file).resolve()
        if not path.is_relative_to(root):
            raise TraceError(f"{image.file}: lies outside of the trace's folder {folder}")
        try:
            picture = Picture.open(path).convert("RGB")
        except OSError as error:
            raise TraceError(f"{path}: is not a readable image ({error})") from None
        if picture.size != (image.width, image.height):
            raise TraceError(
                f"{path}: is {picture.size[0]}x{picture.size[1]}, the trace says {image.width}x{image.height}"
            )
        return Image(mark(picture, seed), image.tokens)

    return load


def texts_behind_images(step: Step) -> list[int]:
    """Tokens of text behind each of the step's images; one entry for a step without.

    The engine takes two images with nothing between them for frames of a video and computes them as
    one, so the text is spread over all gaps.

    `Step` refuses images that cannot be kept apart.
    """
    text, n = step.new_tokens - step.image_tokens, max(1, len(step.images))
    return [text // n + (number < text % n) for number in range(n)]


def new_segments(step: Step, seed: str, load: ImageLoader) -> tuple[Segment, ...]:
    """What the step appends: its images, each with text behind it. The same seed gives the same content."""
    if not step.images:
        # of images of which only the token count is known text is sent
        return (Segment(step.new_tokens, seed),)
    texts = texts_behind_images(step)
    return tuple(
        Segment(text, f"{seed}/text/{number}", load(image, f"{seed}/{number}"))
        for number, (image, text) in enumerate(zip(step.images, texts, strict=True))
    )


def prefix_segments(
    step: Step, history: Sequence[Step], seed: str, load: ImageLoader
) -> tuple[tuple[Segment, ...], str]:
    """What was in context before the step, with its images where the trace tells which they are.

    Args:
        history: all steps of the task, in order.

    Returns:
        The segments and what to call them: ``images``, ``text`` or ``text-equivalent``.
    """
    earlier = [other for other in history if other.step < step.step and other.policy == step.policy]
    has_images = any(other.images for other in earlier)
    if has_images and earlier[0].prefix_tokens + sum(other.new_tokens for other in earlier) == step.prefix_tokens:
        segments = [Segment(earlier[0].prefix_tokens, f"{seed}/0")]
        for number, other in enumerate(earlier, start=1):
            segments += new_segments(other, f"{seed}/{number}", load)
        return tuple(segments), "images"
    label = "text-equivalent" if has_images else "text"
    return (Segment(step.prefix_tokens, f"{seed}/0"),), label


def arm_request(
    arm: str, step: Step, history: Sequence[Step], repetition: int, fill: str, load: ImageLoader
) -> ArmRequest:
    """The request of one repetition; new content differs between repetitions and not between arms."""
    name = f"{step.task_id}/{step.step}/{repetition}"
    new = new_segments(step, f"new/{name}", load)
    if arm == BASELINE:
        prefix, label = prefix_segments(step, history, f"prefix/{name}", load)
        return ArmRequest((*prefix, *new), {}, "none", label)
    if arm in (STATE_RESTORE, CACHED_PREFIX):
        # one state serves all repetitions, so its content depends on the length only
        name = f"{step.prefix_tokens}"
    return prefixed_request(arm, step.prefix_tokens, new, f"prefix/{name}", fill)


def prefixed_request(arm: str, prefix_tokens: int, new: tuple[Segment, ...], seed: str, fill: str) -> ArmRequest:
    """New content over a prefix of text that `arm` makes present.

    Args:
        prefix_tokens: length of the prefix in tokens, 0 for none.
        seed: of the prefix's words.
        fill: content of fabricated cells.
    """
    if prefix_tokens == 0:
        return ArmRequest(new, {}, "none")
    prefix = Segment(prefix_tokens, seed)
    whole = (prefix, *new)
    if arm == STATE_RESTORE:
        prime = ArmRequest((prefix,), {"prefix_state": {"save": STATE_NAME}}, "none")
        options = {"prefix_state": {"restore": STATE_NAME}}
        return ArmRequest(whole, options, "restored", prime=prime, prime_lasts=True)
    if arm == CACHED_PREFIX:
        # a hybrid state cannot be rewound, so a hit of the prompt cache survives one use
        prime = ArmRequest((prefix,), {}, "none")
        return ArmRequest(whole, {"cache_prompt": True}, "cached", prime=prime)
    return ArmRequest(whole, {"n_fake_cached": prefix_tokens, "fake_fill": fill}, "fake")


def probe_request(prefix: int, new: int, repetition: int, fill: str | None) -> ArmRequest:
    """The fixed request that every job repeats.

    Args:
        fill: None where a prefix cannot be fabricated; everything is computed then.
    """
    segments = (Segment(prefix, "probe/prefix"), Segment(new, f"probe/{repetition}"))
    if fill is None:
        return ArmRequest(segments, {}, "none")
    return ArmRequest(segments, {"n_fake_cached": prefix, "fake_fill": fill}, "fake")
