"""Traces made for the tests of importers, and a tokenizer that is easy to read."""

import io
import json

from fakeprefix.model.vision import ImageGeometry
from fakeprefix.settings import Eviction
from fakeprefix.trace.importing import Problems, format_of, import_steps
from fakeprefix.trace.rendering import Renderer
from PIL import Image as Picture

GEOMETRY = ImageGeometry(patch=16, merge=2)
MARKER = "<image>"


class Letters:
    """A tokenizer with one token a letter, and a template that is easy to read."""

    def apply_template(self, messages, tools):
        text = "".join(f"[tool {tool['name']}]" for tool in tools)
        for message in messages:
            calls = "".join(call["function"]["name"] for call in message.get("tool_calls", ()))
            text += f"<{message['role']}>{message['content']}{calls}</>"
        return f"{text}<assistant>"

    def tokenize(self, text, *, add_special=False):
        return ([1] if add_special else []) + [ord(letter) for letter in text]


def renderer(geometry=GEOMETRY):
    return Renderer(Letters(), MARKER, geometry, "[gone]")


def imported(path, folder, name="auto", skip=False, render=None, keep_last_images=0):
    problems = Problems(skip)
    name = format_of(path, name)
    eviction = Eviction(keep_last_images=keep_last_images, placeholder="[gone]", placeholder_tokens=2)
    return list(import_steps(path, name, problems, folder / "images", render or renderer(), eviction)), problems


def picture(path=None, size=(64, 64), colour="white"):
    buffer = io.BytesIO()
    Picture.new("RGB", size, colour).save(buffer, format="PNG")
    if path:
        path.write_bytes(buffer.getvalue())
    return buffer.getvalue()


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def lines(path, rows):
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def lengths(steps):
    return [(step.prefix_tokens, step.new_tokens) for step in steps]


def chat(*texts):
    roles = ("system", "user", "assistant")
    return [{"role": roles[min(i, 1 + (i - 1) % 2) if i else 0], "content": text} for i, text in enumerate(texts)]


def opencua_trace(folder, numbers=(2, 3, 5)):
    steps = []
    for number in numbers:
        picture(folder / f"{number}.png", (64 + 32 * number, 64), (number, 0, 0))
        monologue = {"observation": f"screen {number}", "thought": "hm", "low_level_instruction": "click"}
        steps.append({"step_num": number, "image": f"{number}.png", "action": "click()", "inner_monologue": monologue})
    return {"task_id": "o", "user_task_description": "find it", "steps": steps}
