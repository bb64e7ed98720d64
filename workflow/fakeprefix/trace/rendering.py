"""From conversations to prompts: the model's own template and tokenizer, real token counts of images."""

from functools import lru_cache
from typing import Protocol

import numpy as np
from pydantic import JsonValue

from fakeprefix.errors import RequestRefused, TraceError
from fakeprefix.model.vision import ImageGeometry
from fakeprefix.trace.common_prefix import ImageIds, RenderedPrompt
from fakeprefix.trace.formats.conversation import Request, Screenshot
from fakeprefix.trace.steps import StepImage

# texts between images whose ids are kept; without images each is a whole prompt
KEPT_PIECES = 256


class Tokenizer(Protocol):
    """What is asked of the patched server; `fakeprefix.server.client.Client` is one."""

    def apply_template(self, messages: list[dict[str, JsonValue]], tools: list[dict[str, JsonValue]]) -> str: ...

    def tokenize(self, text: str, *, add_special: bool = False) -> list[int]: ...


class Renderer:
    """Renders requests as the model would see them.

    Args:
        tokenizer: renders messages and counts tokens.
        marker: stands for an image in a rendered text.
        geometry: of images; None for a model without a projector.
        placeholder: text in place of an image that is not kept.
    """

    def __init__(self, tokenizer: Tokenizer, marker: str, geometry: ImageGeometry | None, placeholder: str) -> None:
        self._tokenizer, self._marker, self._geometry = tokenizer, marker, geometry
        self._placeholder = placeholder
        self._image_ids = ImageIds()
        # most pieces of a prompt were in the previous one
        self._ids = lru_cache(KEPT_PIECES)(self._tokenized)
        self.screenshots: dict[str, Screenshot] = {}

    def prompt(self, request: Request, keep_last_images: int | None = None) -> RenderedPrompt:
        """The prompt of a request.

        Args:
            keep_last_images: older images are replaced by the placeholder; None keeps all.

        Raises:
            TraceError: an image, and no projector; or the template refuses the messages.
        """
        where = f"task {request.task_id!r}, step {request.step}"
        shots = [part for message in request.messages for part in message.parts if isinstance(part, Screenshot)]
        sized = [(shot, self._image_of(shot, where)) for shot in shots]
        n_dropped = 0 if keep_last_images is None else max(0, len(shots) - keep_last_images)
        kept = sized[n_dropped:]
        pieces = self._render(request, n_dropped, where).split(self._marker)
        if len(pieces) != len(kept) + 1:
            raise TraceError(f"{where}: the template shows {len(pieces) - 1} of {len(kept)} images")
        parts, images = [self._ids(pieces[0], True)], []
        for (shot, image), piece in zip(kept, pieces[1:], strict=True):
            images.append((sum(len(part) for part in parts), image))
            self.screenshots[shot.file] = shot
            parts += [self._image_ids.cells(shot.digest, image.tokens), self._ids(piece)]
        return RenderedPrompt(request.step, np.concatenate(parts), tuple(images), request.times)

    def _image_of(self, shot: Screenshot, where: str) -> StepImage:
        if self._geometry is None:
            raise TraceError(f"{where}: has an image, and model.mmproj is not given")
        return StepImage(shot.file, shot.width, shot.height, self._geometry.tokens(shot.width, shot.height))

    def _render(self, request: Request, n_dropped: int, where: str) -> str:
        messages: list[dict[str, JsonValue]] = []
        left = n_dropped
        for message in request.messages:
            parts = []
            for part in message.parts:
                if isinstance(part, Screenshot):
                    parts.append(self._placeholder if left > 0 else self._marker)
                    left -= 1
                else:
                    # a text that contains the marker would be taken for an image
                    parts.append(part.replace(self._marker, ""))
            messages.append({"role": message.role, "content": "\n".join(parts), **message.extra})
        try:
            return self._tokenizer.apply_template(messages, list(request.tools))
        except RequestRefused as error:
            raise TraceError(f"{where}: the model's chat template refuses it: {error}") from None

    def _tokenized(self, text: str, first: bool = False) -> np.ndarray:
        """Token ids of a piece; in front of the first one come the tokenizer's special tokens."""
        ids = self._tokenizer.tokenize(text, add_special=first) if text or first else []
        return np.array(ids, dtype=np.int64)
