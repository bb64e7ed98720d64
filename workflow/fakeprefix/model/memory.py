"""How much memory a server needs, said before anything is built."""

from dataclasses import asdict, dataclass, replace

from fakeprefix.errors import ModelError
from fakeprefix.model.gguf_file import ModelFacts

BYTES_PER_ELEMENT = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32, "q4_1": 20 / 32}


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
