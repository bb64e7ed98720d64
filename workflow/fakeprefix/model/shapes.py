"""Shapes of the models that can be generated: which tensors and keys a model of such dimensions has."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

TensorKind = Literal["matrix", "norm", "router", "decay", "time_step", "convolution", "zero"]


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model file.

    Attributes:
        name: the name that the engine looks for.
        dims: dimensions in the engine's order, fastest first (a matrix is ``(n_in, n_out)``).
        kind: what the numbers have to look like; matrices are quantized, the rest stays F32.
    """

    name: str
    dims: tuple[int, ...]
    kind: TensorKind

    @property
    def n_elements(self) -> int:
        total = 1
        for dim in self.dims:
            total *= dim
        return total


@dataclass(frozen=True)
class HybridShape:
    """Dimensions of a ``qwen35moe`` text model: gated attention, Gated DeltaNet and experts.

    Without experts (`n_expert` is 0, `n_ff` is not) it is a ``qwen35``. Every
    `full_attention_interval`-th layer is attention, the others are recurrent.
    Source of names and meanings: ``src/models/qwen35moe.cpp`` and ``qwen35.cpp`` of the pinned engine.
    """

    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    ssm_state: int
    ssm_key_heads: int
    ssm_value_heads: int
    n_ff: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    n_ff_shared: int = 0
    ssm_conv: int = 4
    full_attention_interval: int = 4
    context_length: int = 262_144
    rope_freq_base: float = 10_000_000.0
    rope_dims: int = 64
    rope_sections: tuple[int, int, int, int] = (11, 11, 10, 0)
    tied_output: bool = True

    @property
    def architecture(self) -> str:
        return "qwen35moe" if self.n_expert else "qwen35"

    def is_recurrent(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_interval != 0

    @property
    def ssm_inner(self) -> int:
        return self.ssm_state * self.ssm_value_heads

    @property
    def ssm_conv_channels(self) -> int:
        return 2 * self.ssm_state * self.ssm_key_heads + self.ssm_inner

    def metadata(self) -> dict[str, Any]:
        """GGUF keys (without the architecture prefix) and their values."""
        experts = {
            "expert_count": self.n_expert,
            "expert_used_count": self.n_expert_used,
            "expert_feed_forward_length": self.n_ff_expert,
            "expert_shared_feed_forward_length": self.n_ff_shared,
        }
        return {
            "block_count": self.n_layer,
            "context_length": self.context_length,
            "embedding_length": self.n_embd,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": self.rope_freq_base,
            "rope.dimension_count": self.rope_dims,
            "rope.dimension_sections": list(self.rope_sections),
            **(experts if self.n_expert else {"feed_forward_length": self.n_ff}),
            "ssm.conv_kernel": self.ssm_conv,
            "ssm.state_size": self.ssm_state,
            "ssm.group_count": self.ssm_key_heads,
            "ssm.time_step_rank": self.ssm_value_heads,
            "ssm.inner_size": self.ssm_inner,
            "full_attention_interval": self.full_attention_interval,
        }

    def tensors(self, n_vocab: int) -> Iterator[TensorSpec]:
        """All tensors of the model, in file order."""
        yield TensorSpec("token_embd.weight", (self.n_embd, n_vocab), "matrix")
        yield TensorSpec("output_norm.weight", (self.n_embd,), "norm")
        if not self.tied_output:
            yield TensorSpec("output.weight", (self.n_embd, n_vocab), "matrix")
        for layer in range(self.n_layer):
            yield from self._layer_tensors(f"blk.{layer}.", self.is_recurrent(layer))

    def _layer_tensors(self, prefix: str, recurrent: bool) -> Iterator[TensorSpec]:
        def spec(name: str, dims: tuple[int, ...], kind: TensorKind) -> TensorSpec:
            return TensorSpec(prefix + name, dims, kind)

        embd = self.n_embd
        yield spec("attn_norm.weight", (embd,), "norm")
        yield spec("post_attention_norm.weight", (embd,), "norm")
        if recurrent:
            yield spec("attn_qkv.weight", (embd, self.ssm_conv_channels), "matrix")
            yield spec("attn_gate.weight", (embd, self.ssm_inner), "matrix")
            yield spec("ssm_conv1d.weight", (self.ssm_conv, self.ssm_conv_channels), "convolution")
            yield spec("ssm_dt.bias", (self.ssm_value_heads,), "time_step")
            yield spec("ssm_a", (self.ssm_value_heads,), "decay")
            yield spec("ssm_beta.weight", (embd, self.ssm_value_heads), "matrix")
            yield spec("ssm_alpha.weight", (embd, self.ssm_value_heads), "matrix")
            yield spec("ssm_norm.weight", (self.ssm_state,), "norm")
            yield spec("ssm_out.weight", (self.ssm_inner, embd), "matrix")
        else:
            # the query projection carries the output gate as well
            yield spec("attn_q.weight", (embd, 2 * self.head_dim * self.n_head), "matrix")
            yield spec("attn_k.weight", (embd, self.head_dim * self.n_head_kv), "matrix")
            yield spec("attn_v.weight", (embd, self.head_dim * self.n_head_kv), "matrix")
            yield spec("attn_output.weight", (self.head_dim * self.n_head, embd), "matrix")
            yield spec("attn_q_norm.weight", (self.head_dim,), "norm")
            yield spec("attn_k_norm.weight", (self.head_dim,), "norm")
        for name, dims, kind in self._feed_forward_tensors():
            yield spec(name, dims, kind)

    def _feed_forward_tensors(self) -> Iterator[tuple[str, tuple[int, ...], TensorKind]]:
        embd, experts, ff = self.n_embd, self.n_expert, self.n_ff
        if not experts:
            yield "ffn_gate.weight", (embd, ff), "matrix"
            yield "ffn_up.weight", (embd, ff), "matrix"
            yield "ffn_down.weight", (ff, embd), "matrix"
            return
        yield "ffn_gate_inp.weight", (embd, experts), "router"
        yield "ffn_gate_exps.weight", (embd, self.n_ff_expert, experts), "matrix"
        yield "ffn_up_exps.weight", (embd, self.n_ff_expert, experts), "matrix"
        yield "ffn_down_exps.weight", (self.n_ff_expert, embd, experts), "matrix"
        yield "ffn_gate_inp_shexp.weight", (embd,), "router"
        yield "ffn_gate_shexp.weight", (embd, self.n_ff_shared), "matrix"
        yield "ffn_up_shexp.weight", (embd, self.n_ff_shared), "matrix"
        yield "ffn_down_shexp.weight", (self.n_ff_shared, embd), "matrix"


@dataclass(frozen=True)
class AttentionShape:
    """Dimensions of a ``llama`` text model: attention in every layer, plain RoPE.

    With norms of queries and keys (`qk_norm`) it is a ``qwen3``. Source of names and meanings:
    ``src/models/llama.cpp`` and ``qwen3.cpp`` of the pinned engine.
    """

    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    qk_norm: bool = False
    context_length: int = 131_072
    rope_freq_base: float = 500_000.0

    @property
    def architecture(self) -> str:
        return "qwen3" if self.qk_norm else "llama"

    def metadata(self) -> dict[str, Any]:
        """GGUF keys (without the architecture prefix) and their values."""
        return {
            "block_count": self.n_layer,
            "context_length": self.context_length,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": self.rope_freq_base,
            "rope.dimension_count": self.head_dim,
        }

    def tensors(self, n_vocab: int) -> Iterator[TensorSpec]:
        """All tensors of the model, in file order."""
        embd, queries, kv = self.n_embd, self.head_dim * self.n_head, self.head_dim * self.n_head_kv
        yield TensorSpec("token_embd.weight", (embd, n_vocab), "matrix")
        yield TensorSpec("output_norm.weight", (embd,), "norm")
        for layer in range(self.n_layer):
            prefix = f"blk.{layer}."
            yield TensorSpec(prefix + "attn_norm.weight", (embd,), "norm")
            yield TensorSpec(prefix + "attn_q.weight", (embd, queries), "matrix")
            yield TensorSpec(prefix + "attn_k.weight", (embd, kv), "matrix")
            yield TensorSpec(prefix + "attn_v.weight", (embd, kv), "matrix")
            yield TensorSpec(prefix + "attn_output.weight", (queries, embd), "matrix")
            if self.qk_norm:
                yield TensorSpec(prefix + "attn_q_norm.weight", (self.head_dim,), "norm")
                yield TensorSpec(prefix + "attn_k_norm.weight", (self.head_dim,), "norm")
            yield TensorSpec(prefix + "ffn_norm.weight", (embd,), "norm")
            yield TensorSpec(prefix + "ffn_gate.weight", (embd, self.n_ff), "matrix")
            yield TensorSpec(prefix + "ffn_up.weight", (embd, self.n_ff), "matrix")
            yield TensorSpec(prefix + "ffn_down.weight", (self.n_ff, embd), "matrix")


@dataclass(frozen=True)
class RecurrentShape:
    """Dimensions of a ``mamba2`` text model: a recurrent state in every layer, no attention.

    Source of names and meanings: ``src/models/mamba2.cpp`` of the pinned engine, which wants an
    inner size of twice the width.
    """

    n_layer: int
    n_embd: int
    ssm_state: int
    ssm_heads: int
    ssm_conv: int = 4
    context_length: int = 131_072
    architecture: str = "mamba2"

    @property
    def ssm_inner(self) -> int:
        return 2 * self.n_embd

    def metadata(self) -> dict[str, Any]:
        """GGUF keys (without the architecture prefix) and their values."""
        return {
            "block_count": self.n_layer,
            "context_length": self.context_length,
            "embedding_length": self.n_embd,
            "feed_forward_length": 0,
            "attention.head_count": self.ssm_heads,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "ssm.conv_kernel": self.ssm_conv,
            "ssm.inner_size": self.ssm_inner,
            "ssm.state_size": self.ssm_state,
            "ssm.time_step_rank": self.ssm_heads,
            "ssm.group_count": 1,
        }

    def tensors(self, n_vocab: int) -> Iterator[TensorSpec]:
        """All tensors of the model, in file order."""
        embd, channels = self.n_embd, self.ssm_inner + 2 * self.ssm_state
        yield TensorSpec("token_embd.weight", (embd, n_vocab), "matrix")
        yield TensorSpec("output_norm.weight", (embd,), "norm")
        for layer in range(self.n_layer):
            prefix = f"blk.{layer}."
            yield TensorSpec(prefix + "attn_norm.weight", (embd,), "norm")
            yield TensorSpec(prefix + "ssm_in.weight", (embd, self.ssm_inner + channels + self.ssm_heads), "matrix")
            yield TensorSpec(prefix + "ssm_conv1d.weight", (self.ssm_conv, channels), "convolution")
            yield TensorSpec(prefix + "ssm_conv1d.bias", (channels,), "zero")
            yield TensorSpec(prefix + "ssm_dt.bias", (self.ssm_heads,), "time_step")
            yield TensorSpec(prefix + "ssm_a", (1, self.ssm_heads), "decay")
            yield TensorSpec(prefix + "ssm_d", (1, self.ssm_heads), "norm")
            yield TensorSpec(prefix + "ssm_norm.weight", (self.ssm_inner, 1), "norm")
            yield TensorSpec(prefix + "ssm_out.weight", (self.ssm_inner, embd), "matrix")


TextShape = HybridShape | AttentionShape | RecurrentShape


@dataclass(frozen=True)
class VisionShape:
    """Dimensions of a ``qwen3vl_merger`` vision tower.

    Source: ``tools/mtmd/clip.cpp`` and ``tools/mtmd/models/qwen3vl.cpp`` of the pinned engine.
    """

    n_layer: int
    n_embd: int
    n_head: int
    n_ff: int
    patch: int = 16
    merge: int = 2
    image_size: int = 768

    def metadata(self, projection_dim: int) -> dict[str, Any]:
        """GGUF keys (complete) and their values."""
        return {
            "clip.has_vision_encoder": True,
            "clip.projector_type": "qwen3vl_merger",
            "clip.use_gelu": True,
            "clip.vision.image_size": self.image_size,
            "clip.vision.patch_size": self.patch,
            "clip.vision.embedding_length": self.n_embd,
            "clip.vision.feed_forward_length": self.n_ff,
            "clip.vision.block_count": self.n_layer,
            "clip.vision.attention.head_count": self.n_head,
            "clip.vision.attention.layer_norm_epsilon": 1e-6,
            "clip.vision.projection_dim": projection_dim,
            "clip.vision.spatial_merge_size": self.merge,
            "clip.vision.image_mean": [0.5, 0.5, 0.5],
            "clip.vision.image_std": [0.5, 0.5, 0.5],
            "clip.vision.is_deepstack_layers": [False] * self.n_layer,
        }

    def tensors(self, projection_dim: int) -> Iterator[TensorSpec]:
        """All tensors of the projector file, in file order."""
        embd, merged = self.n_embd, self.n_embd * self.merge**2
        yield TensorSpec("v.patch_embd.weight", (self.patch, self.patch, 3, embd), "matrix")
        yield TensorSpec("v.patch_embd.weight.1", (self.patch, self.patch, 3, embd), "matrix")
        yield TensorSpec("v.patch_embd.bias", (embd,), "zero")
        yield TensorSpec("v.position_embd.weight", (embd, (self.image_size // self.patch) ** 2), "router")
        yield TensorSpec("v.post_ln.weight", (embd,), "norm")
        yield TensorSpec("v.post_ln.bias", (embd,), "zero")
        for layer in range(self.n_layer):
            prefix = f"v.blk.{layer}."
            yield TensorSpec(prefix + "attn_qkv.weight", (embd, 3 * embd), "matrix")
            yield TensorSpec(prefix + "attn_qkv.bias", (3 * embd,), "zero")
            yield TensorSpec(prefix + "attn_out.weight", (embd, embd), "matrix")
            yield TensorSpec(prefix + "attn_out.bias", (embd,), "zero")
            yield TensorSpec(prefix + "ln1.weight", (embd,), "norm")
            yield TensorSpec(prefix + "ln1.bias", (embd,), "zero")
            yield TensorSpec(prefix + "ln2.weight", (embd,), "norm")
            yield TensorSpec(prefix + "ln2.bias", (embd,), "zero")
            yield TensorSpec(prefix + "ffn_up.weight", (embd, self.n_ff), "matrix")
            yield TensorSpec(prefix + "ffn_up.bias", (self.n_ff,), "zero")
            yield TensorSpec(prefix + "ffn_down.weight", (self.n_ff, embd), "matrix")
            yield TensorSpec(prefix + "ffn_down.bias", (embd,), "zero")
        yield TensorSpec("mm.0.weight", (merged, merged), "matrix")
        yield TensorSpec("mm.0.bias", (merged,), "zero")
        yield TensorSpec("mm.2.weight", (merged, projection_dim), "matrix")
        yield TensorSpec("mm.2.bias", (projection_dim,), "zero")
