"""Rotation, normalisation, scalar quantisation and packing of whole vectors in one operation, and back."""

from tqcli.kernels.hadamard_quant.launch import (
    SCALE_BITS,
    has_embedded_scale,
    rotate_quantise,
    rotate_quantise_planes,
    unrotate_dequantise,
    unrotate_dequantise_planes,
)

__all__ = [
    "SCALE_BITS",
    "has_embedded_scale",
    "rotate_quantise",
    "rotate_quantise_planes",
    "unrotate_dequantise",
    "unrotate_dequantise_planes",
]
