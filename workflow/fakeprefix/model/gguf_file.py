"""What a GGUF file says about itself, read before anything is built or measured."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader
from gguf.constants import MODEL_ARCH_NAMES

from fakeprefix.errors import ModelError
from fakeprefix.model.presets import preset_named
from fakeprefix.model.tensor_types import n_bytes
from fakeprefix.model.vision import ImageGeometry
from fakeprefix.storage import sha256_file

GGUF_MAGIC = b"GGUF"
SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True)
class ModelFacts:
    """Everything about a model that planning needs.

    Attributes:
        architecture: name of the architecture.
        n_embd: width of the residual stream; a projector must produce the same.
        n_ctx_train: largest context in tokens.
        n_attention_layers, n_recurrent_layers: layers with KV cells, layers with a recurrent state.
        kv_elements_per_cell: elements of K and V together that one token occupies, over all layers.
        recurrent_bytes: bytes of the recurrent state of one sequence.
        weight_bytes: size of the model files in bytes, the projector included.
        active_parameters: weights that take part in computing one token.
        n_head, head_dim: of the attention layers.
        n_vocab: size of the vocabulary.
        n_expert: experts of a layer, 0 without.
        image: geometry of images, None without a projector.
    """

    architecture: str
    n_embd: int
    n_ctx_train: int
    n_attention_layers: int
    n_recurrent_layers: int
    kv_elements_per_cell: int
    recurrent_bytes: int
    weight_bytes: int
    active_parameters: int
    n_head: int
    head_dim: int
    n_vocab: int
    n_expert: int = 0
    image: ImageGeometry | None = None

    @property
    def n_layers(self) -> int:
        return self.n_attention_layers + self.n_recurrent_layers

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ModelFacts":
        image = values.get("image")
        return cls(**{**values, "image": ImageGeometry(**image) if image else None})


def facts_of_preset(name: str, shape: Mapping[str, int] | None = None, n_vocab: int | None = None) -> ModelFacts:
    """Facts of a synthetic model that need not exist yet.

    Args:
        name: key of `fakeprefix.model.presets.PRESETS`.
        shape: other dimensions than the preset's, see `preset_named`.
        n_vocab: size of the vocabulary, if another one than the preset's.

    Raises:
        ModelError: no such preset or dimension.
    """
    preset = preset_named(name, shape)
    text, vision = preset.text, preset.vision
    n_vocab = n_vocab or preset.n_vocab
    tensors = list(text.tensors(n_vocab))
    weights = sum(n_bytes(tensor, GGMLQuantizationType[preset.weight_type]) for tensor in tensors)
    image = None
    if vision is not None:
        vision_type = GGMLQuantizationType[preset.vision_weight_type]
        weights += sum(n_bytes(tensor, vision_type) for tensor in vision.tensors(text.n_embd))
        image = ImageGeometry(vision.patch, vision.merge)
    keys = Keys(f"model.preset: {name}", text.architecture, text.metadata())
    return _facts(keys, [(tensor.name, tensor.n_elements) for tensor in tensors], n_vocab, weights, image)


def facts_of_files(model: Path, mmproj: Path | None) -> ModelFacts:
    """Facts of the user's files.

    Raises:
        ModelError: not a GGUF file, a later shard, an architecture that the engine does not know, or
            a projector that does not belong to the model.
    """
    shards = _shards(model)
    fields = _metadata(shards[0])
    architecture = fields.get("general.architecture", "")
    if architecture not in MODEL_ARCH_NAMES.values() or architecture == "clip":
        raise ModelError(f"model.path: {model}: architecture {architecture!r} is not supported")
    own = {key.removeprefix(f"{architecture}."): value for key, value in fields.items()}
    keys = Keys(f"model.path: {model}", architecture, own)
    tensors = [tensor for shard in shards for tensor in GGUFReader(shard).tensors]
    n_vocab = next((int(t.shape[1]) for t in tensors if t.name == "token_embd.weight"), 0)
    image, projector_bytes = (None, 0)
    if mmproj is not None:
        image, projector_bytes = _projector(mmproj, keys.value("embedding_length")), mmproj.stat().st_size
    weights = sum(shard.stat().st_size for shard in shards) + projector_bytes
    return _facts(keys, [(t.name, int(t.n_elements)) for t in tensors], n_vocab, weights, image)


@dataclass(frozen=True)
class Keys:
    """GGUF keys of a model without the architecture's prefix; `source` is for error messages."""

    source: str
    architecture: str
    values: Mapping[str, Any]

    def value(self, key: str, default: Any = None) -> Any:
        found = self.values.get(key, default)
        if found is None:
            raise ModelError(f"{self.source}: has no {self.architecture}.{key}")
        return found

    def recurrent_layers(self) -> set[int]:
        n_layer = self.value("block_count")
        if interval := self.values.get("full_attention_interval"):
            return {layer for layer in range(n_layer) if (layer + 1) % interval}
        if "ssm.state_size" in self.values:
            heads = self.values.get("attention.head_count_kv", 0)
            heads = heads if isinstance(heads, list) else [heads] * n_layer
            return {layer for layer, n in enumerate(heads) if not n}
        return set()


def _facts(
    keys: Keys,
    tensors: Sequence[tuple[str, int]],
    n_vocab: int,
    weight_bytes: int,
    image: ImageGeometry | None,
) -> ModelFacts:
    """Facts from keys and tensors.

    Args:
        tensors: name and number of elements of each.
    """
    value = keys.value
    n_layer, n_embd = value("block_count"), value("embedding_length")
    n_head = _largest(value("attention.head_count", 0))
    head_dim = value("attention.key_length", n_embd // n_head if n_head else 0)
    head_dim_v = value("attention.value_length", head_dim)
    recurrent = keys.recurrent_layers()
    heads_kv = value("attention.head_count_kv", n_head)
    heads_kv = heads_kv if isinstance(heads_kv, list) else [heads_kv] * n_layer
    kv_heads = sum(n for layer, n in enumerate(heads_kv) if layer not in recurrent)
    state = value("ssm.state_size", 0) * value("ssm.inner_size", 0)
    channels = value("ssm.inner_size", 0) + 2 * value("ssm.group_count", 0) * value("ssm.state_size", 0)
    state += (value("ssm.conv_kernel", 1) - 1) * channels
    experts, used = value("expert_count", 0), value("expert_used_count", 0)
    active = sum(
        n_elements * (used / experts if experts and "_exps" in name else 1)
        for name, n_elements in tensors
        if not name.startswith("token_embd")
    )
    return ModelFacts(
        architecture=keys.architecture,
        n_embd=n_embd,
        n_ctx_train=value("context_length"),
        n_attention_layers=n_layer - len(recurrent),
        n_recurrent_layers=len(recurrent),
        kv_elements_per_cell=kv_heads * (head_dim + head_dim_v),
        recurrent_bytes=4 * len(recurrent) * state,
        weight_bytes=weight_bytes,
        active_parameters=int(active),
        n_head=n_head,
        head_dim=head_dim,
        n_vocab=n_vocab,
        n_expert=experts,
        image=image,
    )


def describe_files(model: Path, mmproj: Path | None) -> dict[str, Any]:
    """Names, sizes in bytes and digests of all files of a model."""
    files = _shards(model) + ([mmproj] if mmproj else [])
    return {"files": [{"name": f.name, "bytes": f.stat().st_size, "sha256": sha256_file(f)} for f in files]}


def _projector(mmproj: Path, n_embd: int) -> ImageGeometry:
    fields = _metadata(mmproj, "model.mmproj")
    if fields.get("general.architecture") != "clip":
        raise ModelError(f"model.mmproj: {mmproj}: is a {fields.get('general.architecture')!r} model, not a projector")
    width = fields.get("clip.vision.projection_dim")
    if width != n_embd:
        raise ModelError(
            f"model.mmproj: {mmproj}: produces embeddings of width {width}, the model's is {n_embd}; "
            "the two files do not belong together"
        )
    return ImageGeometry(fields["clip.vision.patch_size"], fields.get("clip.vision.spatial_merge_size", 2))


def _shards(model: Path) -> list[Path]:
    match = SHARD.search(model.name)
    if not match:
        return [model]
    number, count = int(match[1]), int(match[2])
    if number != 1:
        raise ModelError(f"model.path: {model} is part {number} of {count}; name the first part")
    shards = [
        model.with_name(f"{model.name[: match.start()]}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)
    ]
    if missing := [shard for shard in shards if not shard.is_file()]:
        raise ModelError(f"model.path: {missing[0]} is missing, the model has {count} parts")
    return shards


def _metadata(path: Path, key: str = "model.path") -> dict[str, Any]:
    if not path.is_file():
        raise ModelError(f"{key}: {path}: no such file")
    with path.open("rb") as file:
        if file.read(4) != GGUF_MAGIC:
            raise ModelError(f"{key}: {path}: is not a GGUF file")
    try:
        reader = GGUFReader(path)
        return {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
    except (ValueError, IndexError, KeyError) as error:
        raise ModelError(f"{key}: {path}: is a damaged GGUF file ({error})") from error


def _largest(value: int | list[int]) -> int:
    return max(value) if isinstance(value, list) else value
