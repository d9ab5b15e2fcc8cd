"""Checks shapes and ranges of scalar quantisation and calls an implementation."""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.scalar_quant import reference


def scalar_quantise(y: mx.array, thresholds: mx.array) -> mx.array:
    """Counts, for each element of `y` (float32 or float64, any shape), the thresholds strictly below it: uint8 codes.

    `thresholds` (float32 [levels - 1], ascending, at most 255) are the midpoints between neighbouring levels, so the
    code is that of the nearest level and a tie goes to the lower one. Raises `ValueError` for other dtypes or sizes.
    """
    if y.dtype not in (mx.float32, mx.float64) or thresholds.dtype != mx.float32:
        raise ValueError(f"y and thresholds must be float32, not {y.dtype} and {thresholds.dtype}")
    if thresholds.ndim != 1 or not 1 <= thresholds.size <= 255:
        raise ValueError(f"1 to 255 thresholds are needed in one dimension, not shape {thresholds.shape}")
    return reference.scalar_quantise(y, thresholds)


def scalar_dequantise(codes: mx.array, codebook: mx.array) -> mx.array:
    """Looks uint8 `codes` (any shape) up in `codebook` (float32 [levels]): float32 of the same shape.

    Raises `ValueError` for other dtypes. Codes must be below the number of levels.
    """
    if codes.dtype != mx.uint8 or codebook.dtype != mx.float32:
        raise ValueError(f"codes must be uint8 and the codebook float32, not {codes.dtype} and {codebook.dtype}")
    return reference.scalar_dequantise(codes, codebook)
