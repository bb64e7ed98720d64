"""Shapes of the models that can be generated, and of those that are only measured."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from fakeprefix.errors import ModelError

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

    def stored_as(self, weight_type: GGMLQuantizationType) -> GGMLQuantizationType:
        """The type that it is stored in: matrices in the weight type, everything else in F32.

        A matrix whose rows do not fill blocks is F16. An F64 or quantized vector has no kernel in the
        engine and kills it.
        """
        if self.kind != "matrix":
            return GGMLQuantizationType.F32
        block, _ = GGML_QUANT_SIZES[weight_type]
        return GGMLQuantizationType.F16 if self.dims[0] % block else weight_type

    def n_bytes(self, weight_type: GGMLQuantizationType) -> int:
        """Bytes of its numbers in a file."""
        block, size = GGML_QUANT_SIZES[self.stored_as(weight_type)]
        return self.n_elements // block * size


@dataclass(frozen=True)
class HybridShape:
    """Dimensions of a ``qwen35moe`` text model: gated attention, Gated DeltaNet and experts.

    Every `full_attention_interval`-th layer is attention, the others are recurrent.
    Source of names and meanings: ``src/models/qwen35moe.cpp`` of the pinned engine.
    """

    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_expert: int
    n_expert_used: int
    n_ff_expert: int
    n_ff_shared: int
    ssm_state: int
    ssm_key_heads: int
    ssm_value_heads: int
    ssm_conv: int = 4
    full_attention_interval: int = 4
    context_length: int = 262_144
    rope_freq_base: float = 10_000_000.0
    rope_dims: int = 64
    rope_sections: tuple[int, int, int, int] = (11, 11, 10, 0)
    tied_output: bool = True
    architecture: str = "qwen35moe"

    def is_recurrent(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_interval != 0

    @property
    def n_attention_layers(self) -> int:
        return sum(not self.is_recurrent(layer) for layer in range(self.n_layer))

    @property
    def ssm_inner(self) -> int:
        return self.ssm_state * self.ssm_value_heads

    @property
    def ssm_conv_channels(self) -> int:
        return 2 * self.ssm_state * self.ssm_key_heads + self.ssm_inner

    def metadata(self) -> dict[str, Any]:
        """GGUF keys (without the architecture prefix) and their values."""
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
            "expert_count": self.n_expert,
            "expert_used_count": self.n_expert_used,
            "expert_feed_forward_length": self.n_ff_expert,
            "expert_shared_feed_forward_length": self.n_ff_shared,
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

        embd, experts = self.n_embd, self.n_expert
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
        yield spec("ffn_gate_inp.weight", (embd, experts), "router")
        yield spec("ffn_gate_exps.weight", (embd, self.n_ff_expert, experts), "matrix")
        yield spec("ffn_up_exps.weight", (embd, self.n_ff_expert, experts), "matrix")
        yield spec("ffn_down_exps.weight", (self.n_ff_expert, embd, experts), "matrix")
        yield spec("ffn_gate_inp_shexp.weight", (embd,), "router")
        yield spec("ffn_gate_shexp.weight", (embd, self.n_ff_shared), "matrix")
        yield spec("ffn_up_shexp.weight", (embd, self.n_ff_shared), "matrix")
        yield spec("ffn_down_shexp.weight", (self.n_ff_shared, embd), "matrix")


@dataclass(frozen=True)
class AttentionShape:
    """Dimensions of a ``llama`` text model: attention in every layer, plain RoPE.

    Source of names and meanings: ``src/models/llama.cpp`` of the pinned engine.
    """

    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_ff: int
    context_length: int = 131_072
    rope_freq_base: float = 500_000.0
    architecture: str = "llama"

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    def metadata(self) -> dict[str, Any]:
        """GGUF keys (without the architecture prefix) and their values."""
        return {
            "block_count": self.n_layer,
            "context_length": self.context_length,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": self.rope_freq_base,
            "rope.dimension_count": self.head_dim,
        }

    def tensors(self, n_vocab: int) -> Iterator[TensorSpec]:
        """All tensors of the model, in file order."""
        embd, kv = self.n_embd, self.head_dim * self.n_head_kv
        yield TensorSpec("token_embd.weight", (embd, n_vocab), "matrix")
        yield TensorSpec("output_norm.weight", (embd,), "norm")
        for layer in range(self.n_layer):
            prefix = f"blk.{layer}."
            yield TensorSpec(prefix + "attn_norm.weight", (embd,), "norm")
            yield TensorSpec(prefix + "attn_q.weight", (embd, embd), "matrix")
            yield TensorSpec(prefix + "attn_k.weight", (embd, kv), "matrix")
            yield TensorSpec(prefix + "attn_v.weight", (embd, kv), "matrix")
            yield TensorSpec(prefix + "attn_output.weight", (embd, embd), "matrix")
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


@dataclass(frozen=True)
class Preset:
    """A synthetic model.

    Attributes:
        text, vision: shapes of the text model and its vision tower.
        weight_type, vision_weight_type: names of the types that their matrices are stored in.
        n_vocab: size of the vocabulary, padded from the one that the engine's tree ships.
    """

    text: TextShape
    vision: VisionShape
    weight_type: str = "Q8_0"
    vision_weight_type: str = "F16"
    n_vocab: int = 151_936
    note: str = field(default="", compare=False)


# Source: the published configuration and GGUF metadata of Holo3-35B-A3B
HOLO3_TEXT = HybridShape(
    n_layer=40,
    n_embd=2048,
    n_head=16,
    n_head_kv=2,
    head_dim=256,
    n_expert=256,
    n_expert_used=8,
    n_ff_expert=512,
    n_ff_shared=512,
    ssm_state=128,
    ssm_key_heads=16,
    ssm_value_heads=32,
    tied_output=False,
)
HOLO3_VISION = VisionShape(n_layer=27, n_embd=1152, n_head=16, n_ff=4304)
HOLO3_VOCABULARY = 248_320

PRESETS: dict[str, Preset] = {
    "tiny-hybrid": Preset(
        text=HybridShape(
            n_layer=8,
            n_embd=512,
            n_head=4,
            n_head_kv=2,
            head_dim=64,
            n_expert=8,
            n_expert_used=2,
            n_ff_expert=256,
            n_ff_shared=256,
            ssm_state=64,
            ssm_key_heads=4,
            ssm_value_heads=8,
        ),
        vision=VisionShape(n_layer=2, n_embd=256, n_head=4, n_ff=512),
        note="2 attention and 6 recurrent layers, runs anywhere",
    ),
    "small-hybrid": Preset(
        text=HybridShape(
            n_layer=16,
            n_embd=1024,
            n_head=8,
            n_head_kv=2,
            head_dim=256,
            n_expert=32,
            n_expert_used=4,
            n_ff_expert=512,
            n_ff_shared=512,
            ssm_state=128,
            ssm_key_heads=8,
            ssm_value_heads=16,
        ),
        vision=VisionShape(n_layer=6, n_embd=512, n_head=8, n_ff=1024),
        note="4 attention and 12 recurrent layers with the heads of a large model, about a billion weights, 4 GiB",
    ),
    "holo3-35b-a3b": Preset(
        HOLO3_TEXT,
        HOLO3_VISION,
        weight_type="Q2_K",
        n_vocab=HOLO3_VOCABULARY,
        note="the shape of Holo3-35B-A3B, 10 attention and 30 recurrent layers, about 12 GiB on disk and in memory",
    ),
    "holo3-35b-a3b-q4": Preset(
        HOLO3_TEXT,
        HOLO3_VISION,
        weight_type="Q4_K",
        n_vocab=HOLO3_VOCABULARY,
        note="the same in Q4_K, about 20 GiB on disk and in memory",
    ),
}


def preset_named(name: str) -> Preset:
    """The preset, or a clear refusal.

    Raises:
        ModelError: there is no such preset.
    """
    try:
        return PRESETS[name]
    except KeyError:
        raise ModelError(f"model.preset: {name!r} is not one of {', '.join(PRESETS)}") from None


# one for each memory type, as small as the engine allows: only positions are of interest
MICRO_SHAPES: dict[str, TextShape] = {
    "attention": AttentionShape(n_layer=2, n_embd=64, n_head=2, n_head_kv=1, n_ff=64),
    "recurrent": RecurrentShape(n_layer=2, n_embd=64, ssm_state=32, ssm_heads=4),
    "hybrid": HybridShape(
        n_layer=4,
        n_embd=64,
        n_head=2,
        n_head_kv=1,
        head_dim=64,
        n_expert=2,
        n_expert_used=1,
        n_ff_expert=32,
        n_ff_shared=32,
        ssm_state=64,
        ssm_key_heads=1,
        ssm_value_heads=2,
    ),
}
