"""Compute operations that codecs call, one folder an operation.

Each folder holds `launch.py` (the public functions: shapes, checks, choice of implementation) and `reference.py` (plain
MLX operations, on any device: the specification).
"""

from tqcli.kernels.bit_pack import pack_bits, unpack_bits, words_per_row
from tqcli.kernels.hadamard_quant import (
    hadamard_dequantise,
    hadamard_matrix,
    hadamard_quantise,
    has_hadamard,
    rotate_quantise,
    rotate_quantise_planes,
    unrotate_dequantise,
    unrotate_dequantise_planes,
)
from tqcli.kernels.prod_scores import Residuals, Rotated, prod_scores
from tqcli.kernels.qjl import sketch_scores, sketch_signs, unsketch
from tqcli.kernels.scalar_quant import scalar_dequantise, scalar_quantise
from tqcli.kernels.scales import SCALE_BITS, has_embedded_scale
from tqcli.kernels.vector_quant import vector_dequantise, vector_quantise, vector_scores

__all__ = [
    "SCALE_BITS",
    "Residuals",
    "Rotated",
    "hadamard_dequantise",
    "hadamard_matrix",
    "hadamard_quantise",
    "has_embedded_scale",
    "has_hadamard",
    "pack_bits",
    "prod_scores",
    "rotate_quantise",
    "rotate_quantise_planes",
    "scalar_dequantise",
    "scalar_quantise",
    "sketch_scores",
    "sketch_signs",
    "unpack_bits",
    "unrotate_dequantise",
    "unrotate_dequantise_planes",
    "unsketch",
    "vector_dequantise",
    "vector_quantise",
    "vector_scores",
    "words_per_row",
]
