"""How many KV cells an image occupies."""

from dataclasses import dataclass
from math import ceil, floor, sqrt

from fakeprefix.errors import ModelError

# the engine puts <|vision_start|> in front of an image and <|vision_end|> behind it; where a vocabulary
# does not have them as single tokens, the smoke request finds another count and says so
MARK_TOKENS = 2


@dataclass(frozen=True)
class ImageGeometry:
    """What decides the number of tokens of an image.

    Attributes:
        patch: edge of a patch in pixels.
        merge: patches that are merged into one token, each way.
        min_tokens, max_tokens: bounds within which images are resized; 8 and 4096 are those that
            the engine sets for Qwen-VL (``set_limit_image_tokens`` in ``tools/mtmd/clip.cpp``).
    """

    patch: int
    merge: int
    min_tokens: int = 8
    max_tokens: int = 4096

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Tokens in x and y after the engine's resizing, which keeps the aspect ratio.

        Source: ``calc_size_preserved_ratio`` in ``tools/mtmd/clip.cpp``, itself the "smart resize"
        of the Qwen2-VL preprocessor.
        """
        if width < 1 or height < 1:
            raise ModelError(f"an image of {width}x{height} pixels has no tokens")
        cell = self.patch * self.merge
        columns, rows = max(1, round_half_up(width / cell)), max(1, round_half_up(height / cell))
        if columns * rows > self.max_tokens:
            scale = sqrt(width * height / (self.max_tokens * cell * cell))
            columns, rows = max(1, floor(width / scale / cell)), max(1, floor(height / scale / cell))
        elif columns * rows < self.min_tokens:
            scale = sqrt(self.min_tokens * cell * cell / (width * height))
            columns, rows = ceil(width * scale / cell), ceil(height * scale / cell)
        return columns, rows

    def tokens(self, width: int, height: int) -> int:
        """KV cells of an image, with the marks around it."""
        columns, rows = self.grid(width, height)
        return columns * rows + MARK_TOKENS

    def positions(self, width: int, height: int) -> int:
        """M-RoPE positions by which the image advances the sequence, with the marks around it."""
        return max(self.grid(width, height)) + MARK_TOKENS


def round_half_up(value: float) -> int:
    """C's ``round()`` for positive numbers; Python rounds halves to even."""
    return floor(value + 0.5)
