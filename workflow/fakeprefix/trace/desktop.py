"""A bundled desktop agent: deterministic tasks with drawn screenshots, for a machine without a trace."""

import io
import random
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw

from fakeprefix.model.vision import ImageGeometry
from fakeprefix.storage import replacing
from fakeprefix.trace.steps import Step, StepImage

WIDTH, HEIGHT = 640, 480
SYSTEM_PROMPT_TOKENS = 700


@dataclass(frozen=True)
class Task:
    """A task of the bundled agent.

    Attributes:
        name: identifies it and seeds its drawings.
        n_steps: calls of the model.
        last_prefix_tokens: about where the last step's prefix ends.
    """

    name: str
    n_steps: int
    last_prefix_tokens: int


TASKS = (Task("expense-report", 10, 7_600), Task("calendar-cleanup", 14, 14_900))


def desktop_steps(seed: int, geometry: ImageGeometry | None) -> list[Step]:
    """The steps of all tasks; each adds a screenshot (where the model has a vision tower) and text.

    The text is what a harness sends along: the accessibility tree or a tool's output, of very
    different lengths. Decode and execution times are drawn from ranges that desktop agents show.
    """
    steps = []
    for task in TASKS:
        draw = random.Random(f"{seed}/{task.name}")
        image_tokens = geometry.tokens(WIDTH, HEIGHT) if geometry else 0
        prefix = SYSTEM_PROMPT_TOKENS + draw.randrange(300, 400)
        budget = task.last_prefix_tokens - prefix
        weights = [draw.uniform(0.4, 1.6) for _ in range(task.n_steps - 1)]
        for number in range(task.n_steps):
            share = weights[number] / sum(weights) if number < task.n_steps - 1 else 1 / task.n_steps
            text = max(60, int(budget * share) - image_tokens)
            images: tuple[StepImage, ...] = ()
            if geometry:
                images = (StepImage(f"{task.name}-{number:02d}.png", WIDTH, HEIGHT, image_tokens),)
            decode_s, exec_s = draw.uniform(0.6, 2.5), draw.uniform(0.3, 2.0)
            new = text + image_tokens
            steps.append(
                Step(
                    task_id=task.name,
                    step=number,
                    prefix_tokens=prefix,
                    new_tokens=new,
                    image_tokens=image_tokens,
                    images=images,
                    visible=((0, prefix - 1),),
                    decode_s=round(decode_s, 3),
                    exec_s=round(exec_s, 3),
                )
            )
            prefix += new
    return steps


def draw_screenshots(steps: list[Step], folder: Path) -> None:
    """Draw the screenshots that the steps name, all different, into `folder` as PNG."""
    for step in steps:
        for image in step.images:
            with replacing(folder / image.file) as temporary:
                screenshot(image.width, image.height, image.file).save(temporary, format="PNG")


def screenshot(width: int, height: int, seed: str) -> Image.Image:
    """A desktop with windows, lines of text and buttons; the same seed gives the same pixels."""
    draw = random.Random(seed)
    picture = Image.new("RGB", (width, height), _colour(draw, 30, 90))
    pen = ImageDraw.Draw(picture)
    for _ in range(draw.randrange(2, 5)):
        left, top = draw.randrange(0, width // 2), draw.randrange(0, height // 2)
        right, bottom = left + draw.randrange(width // 4, width // 2), top + draw.randrange(height // 4, height // 2)
        pen.rectangle((left, top, right, bottom), fill=_colour(draw, 200, 255), outline=(40, 40, 40))
        pen.rectangle((left, top, right, top + 18), fill=_colour(draw, 60, 160))
        pen.text((left + 6, top + 4), _word(draw), fill=(255, 255, 255))
        for line in range(top + 28, bottom - 12, 14):
            pen.text((left + 8, line), " ".join(_word(draw) for _ in range(draw.randrange(2, 6))), fill=(20, 20, 20))
    pen.rectangle((0, height - 24, width, height), fill=(25, 25, 30))
    pen.text((8, height - 18), _word(draw), fill=(230, 230, 230))
    return picture


def mark(picture: Image.Image, seed: str) -> bytes:
    """The picture as PNG with a small square whose colour depends on the seed."""
    colour = random.Random(seed).randrange(2**24)
    ImageDraw.Draw(picture).rectangle((0, 0, 7, 7), fill=(colour >> 16, colour >> 8 & 255, colour & 255))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def _colour(draw: random.Random, low: int, high: int) -> tuple[int, int, int]:
    return draw.randrange(low, high), draw.randrange(low, high), draw.randrange(low, high)


def _word(draw: random.Random) -> str:
    return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(3, 9)))
