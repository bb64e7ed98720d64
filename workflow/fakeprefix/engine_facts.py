"""What llama.cpp does, as constants that measuring, planning and analysis rest on. Said here and nowhere else.

They hold for the commits that ``patches/series.yaml`` lists; each names the place in the engine's source.
"""

COLUMN_WIDTH = 256
"""KV cells that the attention reads at once: it always reads whole groups of so many columns, so below it nothing
differs (``GGML_PAD`` in ``src/llama-kv-cache.cpp``)."""

SMALL_BATCH_TOKENS = 64
"""The CPU backend's attention has another kernel for batches of fewer tokens, several times slower a token
(``GGML_FA_TILE_Q`` in ``ggml/src/ggml-cpu/common.h``)."""

TILE_TOKENS = 512
"""Length of the short prefix that the fill ``tile`` really computes once, and whose rows it repeats (the patch
series, in ``tools/server/server-context.cpp``)."""


def columns_read(cells: int) -> int:
    """KV cells that the attention reads where `cells` are occupied: rounded up to whole columns."""
    return COLUMN_WIDTH * -(-cells // COLUMN_WIDTH)
