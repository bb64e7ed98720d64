"""Write a synthetic model: the right shapes, random weights, a real vocabulary."""

import logging
import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import quant_shape_to_byte_shape, quantize

from fakeprefix.errors import ModelError
from fakeprefix.machine.limits import available_memory
from fakeprefix.model.gguf_file import facts_of_preset
from fakeprefix.model.memory import memory_need, refuse_if_too_large
from fakeprefix.model.presets import MICRO_SHAPES, preset_named
from fakeprefix.model.shapes import TensorSpec, TextShape
from fakeprefix.model.tensor_types import stored_as
from fakeprefix.progress import Progress
from fakeprefix.storage import replacing

log = logging.getLogger(__name__)

Tokenizer = dict[str, tuple[Any, GGUFValueType, GGUFValueType | None]]

# ids that Qwen's tokenizers give these; the vocabulary in the engine's tree has padding in their place,
# so the marks around an image would be spelled out in a dozen tokens
VISION_MARKS = {151652: "<|vision_start|>", 151653: "<|vision_end|>", 151655: "<|image_pad|>"}
CONTROL_TOKEN, UNUSED_TOKEN = 3, 5
MICRO_VOCABULARY = 64
# tokens; a model that cannot even run with these is not worth writing, longer ones are checked by the plan
SHORTEST_CONTEXT = 1024
# of a matrix that is being quantized, 16 MiB
FLOATS_AT_ONCE = 2**22


def write_model(preset_name: str, dimensions: Mapping[str, int], seed: int, vocabulary: Path, model: Path) -> None:
    """Write the text model.

    Args:
        preset_name: key of `fakeprefix.model.presets.PRESETS`.
        dimensions: others than the preset's, see `preset_named`.
        seed: same seed, same bytes.
        vocabulary: a GGUF file whose ``tokenizer.*`` keys are copied.
        model: file to write; it appears only when it is complete.

    Raises:
        ModelError: unknown preset or dimension, no usable vocabulary, too little room on the disk, or too
            little memory to run the model with even a short context.
    """
    preset = preset_named(preset_name, dimensions)
    facts = facts_of_preset(preset_name, dimensions)
    tokenizer = padded(with_vision_marks(read_tokenizer(vocabulary)), preset.n_vocab)
    refuse_if_disk_is_small(preset_name, facts.weight_bytes, model.parent)
    refuse_if_too_large(memory_need(facts, SHORTEST_CONTEXT, 512, "f16", "f16"), available_memory())
    write_text_model(preset.text, preset_name, seed, tokenizer, model, GGMLQuantizationType[preset.weight_type])


def write_projector(preset_name: str, dimensions: Mapping[str, int], seed: int, mmproj: Path) -> None:
    """Write the vision tower that belongs to a model, see `write_model`.

    Raises:
        ModelError: unknown preset or dimension, or one without images.
    """
    preset = preset_named(preset_name, dimensions)
    if preset.vision is None:
        raise ModelError(f"model.preset: {preset_name} takes no images")
    width = preset.text.n_embd
    _write(
        mmproj,
        "clip",
        f"{preset_name} vision",
        seed,
        preset.vision.metadata(width),
        {},
        preset.vision.tensors(width),
        GGMLQuantizationType[preset.vision_weight_type],
    )


def write_text_model(
    shape: TextShape, name: str, seed: int, tokenizer: Tokenizer, path: Path, weight_type: GGMLQuantizationType
) -> None:
    """Write a text model of any shape with a given tokenizer."""
    metadata = {f"{shape.architecture}.{key}": value for key, value in shape.metadata().items()}
    tensors = shape.tensors(len(tokenizer["tokenizer.ggml.tokens"][0]))
    _write(path, shape.architecture, name, seed, metadata, tokenizer, tensors, weight_type)


def write_micro_model(kind: str, path: Path) -> None:
    """Write the smallest model with a memory of this kind, without a vocabulary.

    Args:
        kind: key of `MICRO_SHAPES`.
    """
    shape = MICRO_SHAPES[kind]
    metadata = {f"{shape.architecture}.{key}": value for key, value in shape.metadata().items()}
    metadata |= {f"{shape.architecture}.vocab_size": MICRO_VOCABULARY, "tokenizer.ggml.model": "none"}
    tensors = shape.tensors(MICRO_VOCABULARY)
    _write(path, shape.architecture, f"micro {kind}", 1, metadata, {}, tensors, GGMLQuantizationType.F16)


def with_vision_marks(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the marks around images as special tokens, where it has room for them."""
    tokens, kinds = _tokens(tokenizer)
    if len(tokens) <= max(VISION_MARKS) or VISION_MARKS[151652] in tokens:
        return tokenizer
    for number, mark in VISION_MARKS.items():
        tokens[number], kinds[number] = mark, CONTROL_TOKEN
    return _with_tokens(tokenizer, tokens, kinds)


def padded(tokenizer: Tokenizer, n_vocab: int) -> Tokenizer:
    """The tokenizer with unused tokens behind its own, as published models have, up to a size.

    One that is larger already, or smaller than any real vocabulary (a test's), is left as it is.
    """
    tokens, kinds = _tokens(tokenizer)
    if len(tokens) <= max(VISION_MARKS) or len(tokens) >= n_vocab:
        return tokenizer
    tokens += [f"<|unused_{number}|>" for number in range(len(tokens), n_vocab)]
    kinds += [UNUSED_TOKEN] * (n_vocab - len(kinds))
    return _with_tokens(tokenizer, tokens, kinds)


def _tokens(tokenizer: Tokenizer) -> tuple[list[str], list[int]]:
    """Copies of its tokens and of their types."""
    return list(tokenizer["tokenizer.ggml.tokens"][0]), list(tokenizer["tokenizer.ggml.token_type"][0])


def _with_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> Tokenizer:
    changed = dict(tokenizer)
    for key, values in (("tokens", tokens), ("token_type", kinds)):
        changed[f"tokenizer.ggml.{key}"] = (values, *tokenizer[f"tokenizer.ggml.{key}"][1:])
    return changed


def refuse_if_disk_is_small(preset_name: str, size: int, folder: Path) -> None:
    """Raise ModelError before anything is written if files of `size` bytes would not fit beside another GiB."""
    need, free = size + 2**30, shutil.disk_usage(folder).free
    if need > free:
        raise ModelError(
            f"model.preset: {preset_name} needs {need / 2**30:.1f} GiB in {folder}, there are "
            f"{free / 2**30:.1f} GiB; make room or take a smaller preset"
        )


def read_tokenizer(path: Path) -> Tokenizer:
    """The ``tokenizer.*`` keys of a GGUF file as ``{key: (value, type, element type)}``.

    Raises:
        ModelError: the file is not a GGUF file or has no token list.
    """
    try:
        reader = GGUFReader(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not a readable GGUF vocabulary ({error})") from error
    keys = {}
    for name, item in reader.fields.items():
        if name.startswith("tokenizer."):
            element = item.types[1] if len(item.types) > 1 else None
            keys[name] = (item.contents(), item.types[0], element)
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        if key not in keys:
            raise ModelError(f"{path}: has no {key}")
    return keys


def _write(
    path: Path,
    architecture: str,
    name: str,
    seed: int,
    metadata: dict[str, Any],
    tokenizer: Tokenizer,
    tensors: Iterable[TensorSpec],
    weight_type: GGMLQuantizationType,
) -> None:
    specs = list(tensors)
    with replacing(path) as temporary:
        writer = GGUFWriter(temporary, architecture)
        writer.add_name(f"synthetic {name}, seed {seed}")
        for key, value in metadata.items():
            _add_metadata(writer, key, value)
        for key, (value, kind, element) in tokenizer.items():
            writer.add_key_value(key, value, kind, sub_type=element)
        for spec in specs:
            kind = stored_as(spec, weight_type)
            shape = tuple(reversed(spec.dims))
            if kind == GGMLQuantizationType.F32:
                writer.add_tensor_info(spec.name, shape, np.dtype(np.float32), 4 * spec.n_elements)
            elif kind == GGMLQuantizationType.F16:
                writer.add_tensor_info(spec.name, shape, np.dtype(np.float16), 2 * spec.n_elements)
            else:
                byte_shape = quant_shape_to_byte_shape(shape, kind)
                writer.add_tensor_info(spec.name, byte_shape, np.dtype(np.uint8), prod(byte_shape), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        # one tensor at a time, the model is never in memory as a whole
        progress = Progress(f"writing {path.name}", sum(prod(spec.dims) for spec in specs), interval_s=15.0)
        for spec in specs:
            writer.write_tensor_data(tensor_data(spec, seed, weight_type))
            progress.advance(prod(spec.dims))
        writer.close()
    log.info("wrote %s, %.1f MB", path.name, path.stat().st_size / 1e6)


def _add_metadata(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def tensor_data(spec: TensorSpec, seed: int, weight_type: GGMLQuantizationType) -> np.ndarray:
    """Deterministic content of one tensor, in its stored type.

    Matrices are N(0, 1/n_in), so that activations keep unit variance; decays are negative and time
    steps lie in the range that trained models have, so that the recurrent state stays finite.
    """
    rng = np.random.default_rng([seed, crc32(spec.name.encode())])
    shape = tuple(reversed(spec.dims))
    kind = stored_as(spec, weight_type)
    if kind in K_QUANTS:
        return random_blocks(rng, shape, kind)
    if spec.kind == "norm":
        data = np.ones(shape)
    elif spec.kind == "zero":
        data = np.zeros(shape)
    elif spec.kind == "decay":
        # A of Mamba-2 and Gated DeltaNet: -exp(A_log) with A_log = log U(1, 16)
        data = -rng.uniform(1.0, 16.0, shape)
    elif spec.kind == "time_step":
        # softplus(bias) is the step, initialized to U(0.001, 0.1)
        data = np.log(np.expm1(rng.uniform(0.001, 0.1, shape)))
    else:
        return random_matrix(rng, shape, kind)
    # without the cast, NumPy's float64 would make F64 tensors, for which the engine has no kernel
    return np.ascontiguousarray(data, dtype=np.float32)


def random_matrix(rng: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType) -> np.ndarray:
    """N(0, 1/n_in) in a stored type; only a few rows at a time are in memory as floats.

    Args:
        shape: of the matrix in elements, rows last.
        kind: F16, F32 or a type that `gguf.quants.quantize` knows.

    Returns:
        Shape ``shape`` for F16 and F32, else bytes, shape ``(..., n_in / block * block bytes)``.
    """
    n_in = shape[-1]
    n_rows = prod(shape[:-1])
    at_once = max(1, FLOATS_AT_ONCE // n_in)
    stored: np.ndarray | None = None
    for first in range(0, n_rows, at_once):
        rows = rng.standard_normal((min(at_once, n_rows - first), n_in), dtype=np.float32) / np.float32(np.sqrt(n_in))
        part = quantize(rows, kind)
        if stored is None:
            stored = np.empty((n_rows, part.shape[-1]), part.dtype)
        stored[first : first + len(part)] = part
    if stored is None:
        raise ModelError(f"a matrix of shape {shape} has no rows")
    return stored.reshape(*shape[:-1], -1)


@dataclass(frozen=True)
class KQuant:
    """Where a K-quant block of 256 weights ``d s q - dmin m`` has its two F16 scales, and their sizes.

    Source: ``block_q2_K`` and ``block_q4_K`` in ``ggml/src/ggml-common.h``. If all other bytes are
    random, s and m are uniform in 0..`largest_scale` and q in 0..`largest_quant`.
    """

    scale_at: int
    minimum_at: int
    largest_scale: int
    largest_quant: int

    @property
    def minimum_ratio(self) -> float:
        """dmin / d with which the mean weight is 0: the mean of s q over that of m."""
        return self.largest_quant / 2

    @property
    def spread(self) -> float:
        """Standard deviation of the weights for d = 1."""

        def mean_square(largest: int) -> float:
            return largest * (2 * largest + 1) / 6

        s, q = self.largest_scale, self.largest_quant
        product = mean_square(s) * mean_square(q) - (s * q / 4) ** 2
        minimum = self.minimum_ratio**2 * (mean_square(s) - (s / 2) ** 2)
        return math.sqrt(product + minimum)


K_QUANTS = {
    GGMLQuantizationType.Q2_K: KQuant(scale_at=80, minimum_at=82, largest_scale=15, largest_quant=3),
    GGMLQuantizationType.Q4_K: KQuant(scale_at=0, minimum_at=2, largest_scale=63, largest_quant=15),
}


def random_blocks(rng: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType) -> np.ndarray:
    """Quantized random weights with mean 0 and variance 1/n_in, without quantizing any.

    Args:
        shape: of the matrix in elements, rows last; rows fill blocks.
        kind: key of `K_QUANTS`.

    Returns:
        Bytes, shape ``(..., n_in / block * block bytes)``.
    """
    layout = K_QUANTS[kind]
    byte_shape = quant_shape_to_byte_shape(shape, kind)
    _, size = GGML_QUANT_SIZES[kind]
    data = np.frombuffer(rng.bytes(prod(byte_shape)), dtype=np.uint8).copy().reshape(-1, size)
    scale = 1 / (layout.spread * math.sqrt(shape[-1]))
    for place, value in ((layout.scale_at, scale), (layout.minimum_at, scale * layout.minimum_ratio)):
        data[:, place : place + 2] = np.array([value], dtype="<f2").view(np.uint8)
    return data.reshape(byte_shape)
