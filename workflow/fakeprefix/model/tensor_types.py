"""In which type a tensor is stored, and how many bytes that takes."""

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from fakeprefix.model.shapes import TensorSpec


def stored_as(spec: TensorSpec, weight_type: GGMLQuantizationType) -> GGMLQuantizationType:
    """The type of a tensor: matrices in the weight type, everything else in F32.

    A matrix whose rows do not fill blocks is F16. An F64 or quantized vector has no kernel in the
    engine and kills it.
    """
    if spec.kind != "matrix":
        return GGMLQuantizationType.F32
    block, _ = GGML_QUANT_SIZES[weight_type]
    return GGMLQuantizationType.F16 if spec.dims[0] % block else weight_type


def n_bytes(spec: TensorSpec, weight_type: GGMLQuantizationType) -> int:
    """Bytes of a tensor's numbers in a file."""
    block, size = GGML_QUANT_SIZES[stored_as(spec, weight_type)]
    return int(spec.n_elements // block * size)
