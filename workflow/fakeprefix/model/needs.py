"""How much memory and about how long: said before anything is built."""

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fakeprefix.errors import ModelError
from fakeprefix.model.gguf_file import ModelFacts

BYTES_PER_ELEMENT = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32, "q4_1": 20 / 32}


@dataclass(frozen=True)
class Speed:
    """What one core of an ordinary server does with the CPU backend, in FLOP a second.

    Attributes:
        weights: multiplying with quantized matrices, many tokens at once.
        attention: reading keys and values.
        decode: multiplying with matrices, one token at a time, which memory bounds.
        decode_attention: reading keys and values for one token, which has another kernel.
    """

    weights: float
    attention: float
    decode: float
    decode_attention: float


# by the model's width; seen in this project with the synthetic models on two cores of a shared machine
SPEEDS = {512: Speed(18e9, 7e9, 1.7e9, 1.8e9), 2048: Speed(40e9, 22e9, 20e9, 2.1e9)}
# a server reads its weights from the page cache, in bytes a second, and needs some time in any case
LOAD_BYTES_PER_S, START_S = 1.5e9, 3.0
# both builds without a compiler cache, in seconds of one core
BUILD_CORE_S = 2040.0
# the contract tests on the tiny model
CONTRACT_S = 120.0
# reading the vocabulary and writing it again; then matrices with so many bytes a second, random blocks
# twice as fast and quantized ones half as fast
VOCABULARY_S, WRITE_BYTES_PER_S = 20.0, 90e6


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


def gpu_part(need: MemoryNeed, n_layers: int, n_gpu_layers: int) -> MemoryNeed:
    """What of it lies on GPUs: as many layers with their cells and states, and compute buffers of its own.

    Args:
        n_layers: of the model.
        n_gpu_layers: ``engine.run.n_gpu_layers``; the output matrix counts as one more, as in the engine.
    """
    layers = min(n_gpu_layers, n_layers) / n_layers
    weights = min(n_gpu_layers, n_layers + 1) / (n_layers + 1)
    return MemoryNeed(
        int(need.weights * weights), int(need.kv_cells * layers), int(need.recurrent * layers), need.compute
    )


def host_part(need: MemoryNeed, on_gpu: MemoryNeed) -> MemoryNeed:
    """What is left for the host; both have compute buffers, and kept states are the host's."""
    return replace(
        need,
        weights=need.weights - on_gpu.weights,
        kv_cells=need.kv_cells - on_gpu.kv_cells,
        recurrent=need.recurrent - on_gpu.recurrent,
    )


def available_memory() -> int:
    """Bytes this process may use: the machine's, or the container's if that is less."""
    limit = psutil.virtual_memory().total
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = min(limit, int(Path(path).read_text().strip()))
        except (OSError, ValueError):
            continue
    return limit


def refuse_if_too_large(need: MemoryNeed, available: int, on_gpu: bool = False) -> None:
    """Raise ModelError if the server would not fit into 90 % of a memory: it would swap, or not load."""
    if need.total > 0.9 * available:
        parts = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in asdict(need).items())
        owner = "GPU memory that was found is" if on_gpu else "this machine has"
        remedy = "fewer engine.run.n_gpu_layers, " if on_gpu else ""
        raise ModelError(
            f"the experiment needs {need.total / 2**30:.1f} GiB ({parts}), {owner} "
            f"{available / 2**30:.1f} GiB; take {remedy}a smaller model, shorter prefixes or a smaller cache type"
        )


def speed_of(facts: ModelFacts) -> Speed:
    """Interpolated in the logarithm of the model's width; outside of the known widths the nearest one's."""
    widths = sorted(SPEEDS)

    def at(name: str) -> float:
        logs = [math.log(getattr(SPEEDS[width], name)) for width in widths]
        return math.exp(np.interp(math.log(facts.n_embd), [math.log(width) for width in widths], logs))

    return Speed(*(at(item.name) for item in fields(Speed)))


def attention_flops(facts: ModelFacts) -> float:
    """4 FLOP a head element: what one new token does with one cell, over all layers."""
    return 4.0 * facts.n_attention_layers * facts.n_head * facts.head_dim


def prefill_seconds(facts: ModelFacts, prefix: int, new: int, threads: int) -> float:
    """About how long `new` tokens take over `prefix` cells on a CPU: 2 FLOP a weight and token, and the attention."""
    speed = speed_of(facts)
    token = 2.0 * facts.active_parameters / speed.weights
    token += attention_flops(facts) * (prefix + new / 2) / speed.attention
    return new * token / threads


def decode_seconds(facts: ModelFacts, depth: int, tokens: int, threads: int) -> float:
    """About how long decoding `tokens` one after another takes behind `depth` cells on a CPU."""
    speed = speed_of(facts)
    token = 2.0 * facts.active_parameters / speed.decode
    token += attention_flops(facts) * depth / speed.decode_attention
    return tokens * token / threads


def start_seconds(facts: ModelFacts, warm_up: int, threads: int) -> float:
    """About how long it takes until a server has started and has computed `warm_up` tokens."""
    return START_S + facts.weight_bytes / LOAD_BYTES_PER_S + prefill_seconds(facts, 0, warm_up, threads)


def estimate_record(
    need: MemoryNeed, on_gpu: MemoryNeed | None, gpu_available: int | None, seconds: dict[str, float]
) -> dict[str, Any]:
    """What ``make plan`` prints, as data; `seconds` by stage, in their order.

    Args:
        on_gpu: the part of `need` that lies on GPUs, None without a GPU.
        gpu_available: bytes that the GPUs have, None where that is not known.
    """
    record: dict[str, Any] = {"memory_bytes": need.as_dict()}
    if on_gpu is not None:
        record |= {"gpu_memory_bytes": on_gpu.as_dict(), "gpu_available_bytes": gpu_available}
    return record | {"seconds": {name: round(value, 1) for name, value in seconds.items()}}
