"""Compute operations that codecs call, one folder an operation.

Each folder holds `launch.py` (the public functions: shapes, checks, choice of implementation) and `reference.py` (plain
MLX operations, on any device: the specification).
"""

from tqcli.kernels.bit_pack import pack_bits, unpack_bits, words_per_row
from tqcli.kernels.hadamard_quant import SCALE_BITS, has_embedded_scale, rotate_quantise, unrotate_dequantise
from tqcli.kernels.scalar_quant import scalar_dequantise, scalar_quantise

__all__ = [
    "SCALE_BITS",
    "has_embedded_scale",
    "pack_bits",
    "rotate_quantise",
    "scalar_dequantise",
    "scalar_quantise",
    "unpack_bits",
    "unrotate_dequantise",
    "words_per_row",
]
