"""About how long it takes: said before anything is built."""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fakeprefix.model.gguf_file import ModelFacts
from fakeprefix.model.memory import MemoryNeed


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
