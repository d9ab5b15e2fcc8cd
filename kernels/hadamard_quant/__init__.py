"""Rotation, normalisation, scalar quantisation and packing of whole vectors in one operation, and back."""

from tqcli.kernels.hadamard_quant.launch import (
    hadamard_dequantise,
    hadamard_quantise,
    rotate_quantise,
    rotate_quantise_planes,
    unrotate_dequantise,
    unrotate_dequantise_planes,
)
from tqcli.kernels.hadamard_quant.matrix import hadamard_matrix, has_hadamard

__all__ = [
    "hadamard_dequantise",
    "hadamard_matrix",
    "hadamard_quantise",
    "has_hadamard",
    "rotate_quantise",
    "rotate_quantise_planes",
    "unrotate_dequantise",
    "unrotate_dequantise_planes",
]
