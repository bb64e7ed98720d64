"""Write a synthetic model: the right shapes, random weights, a real vocabulary."""

import logging
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import quant_shape_to_byte_shape, quantize

from fakeprefix.errors import ModelError
from fakeprefix.model.gguf_file import describe_files
from fakeprefix.model.shapes import MICRO_SHAPES, TensorSpec, TextShape, preset_named
from fakeprefix.progress import Progress
from fakeprefix.storage import replacing, write_json

log = logging.getLogger(__name__)

Tokenizer = dict[str, tuple[Any, GGUFValueType, GGUFValueType | None]]

# ids that Qwen's tokenizers give these; the vocabulary in the engine's tree has padding in their place,
# so the marks around an image would be spelled out in a dozen tokens
VISION_MARKS = {151652: "<|vision_start|>", 151653: "<|vision_end|>", 151655: "<|image_pad|>"}
CONTROL_TOKEN = 3
MICRO_VOCABULARY = 64


def write_model(preset_name: str, seed: int, vocabulary: Path, model: Path, mmproj: Path) -> None:
    """Write the text model and its projector.

    Args:
        preset_name: key of `PRESETS`.
        seed: same seed, same bytes.
        vocabulary: a GGUF file whose ``tokenizer.*`` keys are copied.
        model, mmproj: files to write; each appears only when it is complete.

    Raises:
        ModelError: unknown preset, or no usable vocabulary.
    """
    preset = preset_named(preset_name)
    tokenizer = with_vision_marks(read_tokenizer(vocabulary))
    write_text_model(preset.text, preset_name, seed, tokenizer, model, GGMLQuantizationType[preset.weight_type])
    vision_type = GGMLQuantizationType[preset.vision_weight_type]
    tensors = preset.vision.tensors(preset.text.n_embd)
    _write(
        mmproj,
        "clip",
        f"{preset_name} vision",
        seed,
        preset.vision.metadata(preset.text.n_embd),
        {},
        tensors,
        vision_type,
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


def write_manifest(path: Path, preset_name: str, seed: int, model: Path, mmproj: Path) -> None:
    """Write what the two files are: preset, seed, sizes in bytes and sha256."""
    write_json(path, {"preset": preset_name, "seed": seed, **describe_files(model, mmproj)})


def with_vision_marks(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the marks around images as special tokens, where it has room for them."""
    tokens, kinds = (list(tokenizer[f"tokenizer.ggml.{key}"][0]) for key in ("tokens", "token_type"))
    if len(tokens) <= max(VISION_MARKS) or VISION_MARKS[151652] in tokens:
        return tokenizer
    for number, mark in VISION_MARKS.items():
        tokens[number], kinds[number] = mark, CONTROL_TOKEN
    changed = dict(tokenizer)
    for key, values in (("tokens", tokens), ("token_type", kinds)):
        changed[f"tokenizer.ggml.{key}"] = (values, *tokenizer[f"tokenizer.ggml.{key}"][1:])
    return changed


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
            kind = tensor_type(spec, weight_type)
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


def tensor_type(spec: TensorSpec, weight_type: GGMLQuantizationType) -> GGMLQuantizationType:
    """The type a tensor is stored in: matrices in the weight type, everything else in F32.

    An F64 or quantized vector has no kernel in the engine and kills it, see `tensor_data`.
    """
    block, _ = GGML_QUANT_SIZES[weight_type]
    if spec.kind != "matrix":
        return GGMLQuantizationType.F32
    if spec.dims[0] % block:
        return GGMLQuantizationType.F16
    return weight_type


def tensor_data(spec: TensorSpec, seed: int, weight_type: GGMLQuantizationType) -> np.ndarray:
    """Deterministic content of one tensor, in its stored type.

    Matrices are N(0, 1/n_in), so that activations keep unit variance; decays are negative and time
    steps lie in the range that trained models have, so that the recurrent state stays finite.
    """
    rng = np.random.default_rng([seed, crc32(spec.name.encode())])
    shape = tuple(reversed(spec.dims))
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
        data = rng.standard_normal(shape, dtype=np.float32) / np.sqrt(spec.dims[0])
    # without the cast, NumPy's float64 would make F64 tensors, for which the engine has no kernel
    data = np.ascontiguousarray(data, dtype=np.float32)
    kind = tensor_type(spec, weight_type)
    if kind == GGMLQuantizationType.F32:
        return data
    if kind == GGMLQuantizationType.F16:
        return data.astype(np.float16)
    return quantize(data, kind)
