"""When a request has registered: the server's counters say exactly what was asked for. The one definition of it."""

from dataclasses import dataclass

from fakeprefix.server.client import Timings


@dataclass(frozen=True)
class Expected:
    """What the counters of a request must say, exactly; see `fakeprefix.server.client.Timings`.

    Attributes:
        cache_n: prompt tokens that are present beforehand.
        prompt_n: prompt tokens that are computed.
        prefix_source: ``none``, ``cached``, ``fake`` or ``restored``.
        pos_max_attn, pos_max_recr: last position of both memories before the prefill, -1 where there is none.
    """

    cache_n: int
    prompt_n: int
    prefix_source: str
    pos_max_attn: int
    pos_max_recr: int


def expected_counts(prefix: int, new: int, source: str, memory_type: str) -> Expected:
    """Counters of a request whose first `prefix` tokens come from `source`.

    Args:
        source: ``none``: everything is computed; else `prefix` tokens are present beforehand.
        memory_type: as the server resolved it; decides which of the two memories exist.
    """
    if source == "none" or prefix == 0:
        return Expected(0, prefix + new, "none", -1, -1)
    last = prefix - 1
    return Expected(
        prefix,
        new,
        source,
        last if memory_type in ("attention", "hybrid") else -1,
        last if memory_type in ("recurrent", "hybrid") else -1,
    )


def mismatch(expected: Expected, timings: Timings, n_predict: int = 1) -> str | None:
    """What the server counted otherwise than expected; None if the request has registered.

    Args:
        n_predict: tokens that were asked for, the first included.
    """
    pairs = {
        "cache_n": (expected.cache_n, timings.cache_n),
        "prompt_n": (expected.prompt_n, timings.prompt_n),
        "prefix_source": (expected.prefix_source, timings.prefix_source),
        "seq_pos_max_attn": (expected.pos_max_attn, timings.seq_pos_max_attn),
        "seq_pos_max_recr": (expected.pos_max_recr, timings.seq_pos_max_recr),
        "predicted_n": (n_predict, timings.predicted_n),
    }
    wrong = [f"{name}: expected {want}, got {got}" for name, (want, got) in pairs.items() if want != got]
    if timings.prompt_ms <= 0:
        wrong.append(f"prompt_ms: {timings.prompt_ms}")
    return "; ".join(wrong) or None
