"""How much memory and about how long: said before anything is built."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from fakeprefix.errors import ModelError
from fakeprefix.model.gguf_file import ModelFacts

BYTES_PER_ELEMENT = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32, "q4_1": 20 / 32}

# seen in this project with the CPU backend: 20 GFLOP/s a core on the tiny model, 85 on a 35B-A3B.
# The lower one is assumed, so that an estimate is rather too long.
FLOPS_PER_CORE = 20e9


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that one server needs; `state` is the copy of a computed prefix that it keeps to restore."""

    weights: int
    kv_cells: int
    recurrent: int
    compute: int
    state: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv_cells + self.recurrent + self.compute + self.state

    def as_dict(self) -> dict[str, int]:
        return asdict(self) | {"total": self.total}


def memory_need(
    facts: ModelFacts, n_ctx: int, n_ubatch: int, cache_type_k: str, cache_type_v: str, state_tokens: int = 0
) -> MemoryNeed:
    """Memory of one server with one sequence.

    Args:
        n_ctx: context in tokens.
        n_ubatch: physical batch in tokens.
        state_tokens: longest prefix of which a state is kept, in tokens; 0 if none is.

    Compute buffers are estimated as the largest intermediate results of one physical batch: the
    logits of one token, the attention mask, and some twenty activations of the model's width.

    Raises:
        ModelError: an unknown cache type.
    """
    for key, kind in (("cache_type_k", cache_type_k), ("cache_type_v", cache_type_v)):
        if kind not in BYTES_PER_ELEMENT:
            raise ModelError(f"engine.run.{key}: {kind!r} is not one of {', '.join(BYTES_PER_ELEMENT)}")
    half = facts.kv_elements_per_cell / 2
    cell = half * (BYTES_PER_ELEMENT[cache_type_k] + BYTES_PER_ELEMENT[cache_type_v])
    state = int(state_tokens * cell) + facts.recurrent_bytes if state_tokens else 0
    compute = 4 * (facts.n_vocab + n_ubatch * n_ctx + 20 * n_ubatch * facts.n_embd) + 64 * 2**20
    return MemoryNeed(facts.weight_bytes, int(n_ctx * cell), facts.recurrent_bytes, compute, state)


def available_memory() -> int:
    """Bytes this process may use: the machine's, or the container's if that is less."""
    limit = psutil.virtual_memory().total
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = min(limit, int(Path(path).read_text().strip()))
        except (OSError, ValueError):
            continue
    return limit


def refuse_if_too_large(need: MemoryNeed, available: int) -> None:
    """Raise ModelError if the server would not fit into 90 % of the memory, and would swap."""
    if need.total > 0.9 * available:
        parts = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in asdict(need).items())
        raise ModelError(
            f"the experiment needs {need.total / 2**30:.1f} GiB ({parts}), this machine has "
            f"{available / 2**30:.1f} GiB; take a smaller model, shorter prefixes or a smaller cache type"
        )


def prefill_seconds(facts: ModelFacts, prefix: int, new: int, threads: int) -> float:
    """About how long `new` tokens take over `prefix` cells.

    2 FLOP a weight and token, and 4 FLOP a head element, cell and token for the attention.
    """
    attention = 4.0 * facts.n_attention_layers * facts.n_head * facts.head_dim * (prefix + new / 2)
    return new * (2.0 * facts.active_parameters + attention) / (threads * FLOPS_PER_CORE)


def describe_seconds(seconds: float) -> str:
    """Seconds in words, for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def estimate_record(need: MemoryNeed, seconds: dict[str, float]) -> dict[str, Any]:
    """What ``make plan`` prints, as data."""
    return {"memory_bytes": need.as_dict(), "seconds": {name: round(value, 1) for name, value in seconds.items()}}
