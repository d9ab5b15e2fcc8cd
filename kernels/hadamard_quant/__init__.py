"""Rotation, normalisation, scalar quantisation and packing of whole vectors in one operation, and back."""

from tqcli.kernels.hadamard_quant.launch import (
    rotate_quantise,
    rotate_quantise_planes,
    unrotate_dequantise,
    unrotate_dequantise_planes,
)

__all__ = [
    "rotate_quantise",
    "rotate_quantise_planes",
    "unrotate_dequantise",
    "unrotate_dequantise_planes",
]
