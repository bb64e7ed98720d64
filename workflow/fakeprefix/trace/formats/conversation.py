"""Conversations with a model, whatever their file looked like: requests with messages."""

import base64
import binascii
import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image as Picture
from pydantic import JsonValue

from fakeprefix.errors import TraceError

# what the reader does with a record that it cannot use: raise, or count and go on. With it comes the
# task that the record belongs to, None if that cannot be told
OnProblem = Callable[[TraceError, str | None], None]


@dataclass(frozen=True)
class RecordedTimes:
    """What a trace recorded of one call, in seconds; None where it did not.

    Attributes:
        decode_s: decoding the answer.
        exec_s: executing the action.
        recorded_wall_s: the whole step.
    """

    decode_s: float | None = None
    exec_s: float | None = None
    recorded_wall_s: float | None = None


NOTHING_RECORDED = RecordedTimes()


@dataclass(frozen=True)
class Screenshot:
    """An image of a message.

    Attributes:
        data: the encoded file.
        width, height: in pixels.
        digest: sha256 of `data`.
        suffix: of a file with this content, with the dot.
    """

    data: bytes
    width: int
    height: int
    digest: str
    suffix: str

    @property
    def file(self) -> str:
        """Name of the file in a run folder."""
        return f"{self.digest[:16]}{self.suffix}"


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        parts: text and images in order.
        extra: further fields that the chat template may use, tool calls for example.
    """

    role: str
    parts: tuple[str | Screenshot, ...]
    extra: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """One call of the model.

    Attributes:
        task_id, step: where it belongs.
        messages: the whole conversation that was sent.
        tools: definitions of tools, as sent.
        times: as far as they were recorded.
    """

    task_id: str
    step: int
    messages: tuple[Message, ...]
    tools: tuple[dict[str, JsonValue], ...] = ()
    times: RecordedTimes = NOTHING_RECORDED


def screenshot_of(data: bytes, where: str) -> Screenshot:
    """An image from its bytes.

    Raises:
        TraceError: they are no image.
    """
    try:
        with Picture.open(io.BytesIO(data)) as picture:
            picture.load()
            width, height, kind = *picture.size, (picture.format or "png").lower()
    except (OSError, SyntaxError, ValueError, Picture.DecompressionBombError) as error:
        raise TraceError(f"{where}: is not a readable image ({error})") from None
    return Screenshot(data, width, height, hashlib.sha256(data).hexdigest(), f".{kind}")


def read_screenshot(folder: Path, name: str, where: str) -> Screenshot:
    """An image from a file below the trace's folder.

    Raises:
        TraceError: it is missing, outside of `folder`, or no image.
    """
    if "\0" in name or Path(name).is_absolute():
        raise TraceError(f"{where}: {name!r} lies outside of the trace's folder {folder}")
    root = folder.resolve()
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        raise TraceError(f"{where}: {name} lies outside of the trace's folder {folder}")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise TraceError(f"{where}: {path} is missing") from None
    except OSError as error:
        raise TraceError(f"{where}: {path} cannot be read ({error.strerror})") from None
    return screenshot_of(data, f"{where}: {name}")


def screenshot_of_url(url: str, folder: Path, where: str) -> Screenshot:
    """An image of a message: a data URI, or a file below the trace's folder.

    Raises:
        TraceError: it is neither, or no image. Nothing is ever fetched.
    """
    if url.startswith("data:"):
        head, _, body = url.partition(",")
        if not head.endswith(";base64"):
            raise TraceError(f"{where}: a data URI of an image must be base64")
        try:
            return screenshot_of(base64.b64decode(body, validate=True), where)
        except binascii.Error as error:
            raise TraceError(f"{where}: not base64 ({error})") from None
    if "://" in url and not url.startswith("file://"):
        raise TraceError(f"{where}: {url[:60]} is not fetched; save the image below the trace's folder")
    return read_screenshot(folder, url.removeprefix("file://"), where)


def message_of(value: object, folder: Path, where: str) -> Message:
    """A message in the form of the OpenAI API, or close to it.

    Raises:
        TraceError: no role, or content that is neither text nor a list of text and images.
    """
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise TraceError(f"{where}: a message is an object with a role, this is {str(value)[:60]!r}")
    content = value.get("content")
    if content is None or isinstance(content, str):
        parts: list[str | Screenshot] = [content] if content else []
    elif isinstance(content, list):
        parts = [_part_of(part, folder, f"{where}, part {number}") for number, part in enumerate(content)]
    else:
        raise TraceError(f"{where}: content is {type(content).__name__}, must be text or a list")
    extra = {name: value[name] for name in ("tool_calls", "tool_call_id", "name") if value.get(name)}
    return Message(value["role"], tuple(parts), extra)


def _part_of(part: object, folder: Path, where: str) -> str | Screenshot:
    if isinstance(part, str):
        return part
    fields = part if isinstance(part, dict) else {}
    kind = fields.get("type")
    if kind in ("text", "input_text", "output_text"):
        return str(fields.get("text", ""))
    if kind in ("image_url", "input_image"):
        url = fields.get("image_url")
        url = url.get("url") if isinstance(url, dict) else url
        if not isinstance(url, str):
            raise TraceError(f"{where}: an image without a URL")
        return screenshot_of_url(url, folder, where)
    raise TraceError(f"{where}: type {kind!r} is neither text nor an image")


def requests_before_answers(task_id: str, messages: list[Message]) -> Iterator[Request]:
    """One request for each message of the assistant: what was sent to get it."""
    step = 0
    for number, message in enumerate(messages):
        if message.role == "assistant" and number:
            yield Request(task_id, step, tuple(messages[:number]))
            step += 1
