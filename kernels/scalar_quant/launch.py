"""Checks shapes and ranges of scalar quantisation and calls an implementation."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

from tqcli.kernels.runtime import Kernel, Launch, chosen, run
from tqcli.kernels.scalar_quant import reference

_FLOATS = (mx.float16, mx.bfloat16, mx.float32, mx.float64)
_GROUP = 256
_THREADS_AT_MOST = 1 << 30

QUANTISE = Kernel(
    "scalar_quantise",
    Path(__file__).with_name("scalar_quantise.metal"),
    ("y", "thresholds", "sizes"),
    ("codes",),
    ("BITS",),
    ("nearest.h",),
)
DEQUANTISE = Kernel(
    "scalar_dequantise",
    Path(__file__).with_name("scalar_dequantise.metal"),
    ("codes", "codebook", "sizes"),
    ("y",),
    ("T",),
)


def scalar_quantise(y: mx.array, thresholds: mx.array, backend: str | None = None) -> mx.array:
    """Counts, for each element of `y` (a float, any shape), the thresholds strictly below it: uint8 codes.

    `thresholds` (float32 [levels - 1], ascending, at most 255) are the midpoints between neighbouring levels, so the
    code is that of the nearest level and a tie goes to the lower one. 16-bit floats are compared as float32. NaN has
    code 0. Raises `ValueError` for other dtypes or sizes.
    """
    if y.dtype not in _FLOATS or thresholds.dtype != mx.float32:
        raise ValueError(f"y must be a float and thresholds float32, not {y.dtype} and {thresholds.dtype}")
    if thresholds.ndim != 1 or not 1 <= thresholds.size <= 255:
        raise ValueError(f"1 to 255 thresholds are needed in one dimension, not shape {thresholds.shape}")
    taken = chosen("scalar_quantise", y.size, backend, _unsupported(y.size, y.dtype))
    return reference.scalar_quantise(y, thresholds) if taken == "mlx" else run(quantise_launch(y, thresholds), taken)[0]


def scalar_dequantise(
    codes: mx.array, codebook: mx.array, dtype: mx.Dtype = mx.float32, backend: str | None = None
) -> mx.array:
    """Looks uint8 `codes` (any shape) up in `codebook` (float32 [levels]): a float `dtype` of the same shape.

    Raises `ValueError` for other dtypes. Codes must be below the number of levels.
    """
    if codes.dtype != mx.uint8 or codebook.dtype != mx.float32:
        raise ValueError(f"codes must be uint8 and the codebook float32, not {codes.dtype} and {codebook.dtype}")
    if dtype not in _FLOATS:
        raise ValueError(f"levels are read as a float dtype, not {dtype}")
    taken = chosen("scalar_dequantise", codes.size, backend, _unsupported(codes.size, dtype))
    if taken == "mlx":
        return reference.scalar_dequantise(codes, codebook).astype(dtype)
    return run(dequantise_launch(codes, codebook, dtype), taken)[0]


def quantise_launch(y: mx.array, thresholds: mx.array, threads: int = _THREADS_AT_MOST) -> Launch:
    """The launch that codes `y`, not empty, by about so many threads at most."""
    bits = thresholds.size.bit_length()
    missing = 2**bits - 1 - thresholds.size  # the kernel halves a full tree; nothing is above infinity
    if missing:
        thresholds = mx.concatenate([thresholds, mx.full((missing,), float("inf"))])
    sizes, grid = _by_elements(y.size, threads)
    inputs = [y if y.ndim else y[None], thresholds, sizes]
    return Launch(QUANTISE, inputs, {"BITS": bits}, grid, (_GROUP, 1, 1), [y.shape], [mx.uint8])


def dequantise_launch(codes: mx.array, codebook: mx.array, dtype: mx.Dtype, threads: int = _THREADS_AT_MOST) -> Launch:
    """The launch that looks up `codes`, not empty, by about so many threads at most."""
    sizes, grid = _by_elements(codes.size, threads)
    inputs = [codes if codes.ndim else codes[None], codebook, sizes]
    return Launch(DEQUANTISE, inputs, {"T": dtype}, grid, (_GROUP, 1, 1), [codes.shape], [dtype])


def _by_elements(elements: int, at_most: int) -> tuple[mx.array, tuple[int, int, int]]:
    """The input `sizes` (elements, threads) and the grid."""
    threads = -(-min(elements, at_most) // _GROUP) * _GROUP
    return mx.array([elements, threads], dtype=mx.int64), (threads, 1, 1)


def _unsupported(size: int, dtype: mx.Dtype) -> str | None:
    """Why the kernels can't take so many elements of a dtype."""
    if size == 0:
        return "there is nothing to do"
    return "a GPU has no float64" if dtype == mx.float64 else None
