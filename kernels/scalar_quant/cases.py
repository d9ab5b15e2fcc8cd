"""Small launches of the scalar quantisation kernels with the outputs they must have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import mlx.core as mx
import numpy as np

from tqcli.kernels.runtime.case import Case, exactly
from tqcli.kernels.scalar_quant import reference
from tqcli.kernels.scalar_quant.launch import dequantise_launch, quantise_launch

_DTYPES = (mx.float32, mx.float16, mx.bfloat16)
_LEVELS = (2, 3, 8, 16, 100, 256)
_SHAPES = ((7, 63), (1, 1), (3, 80), (256,), (2, 2, 96), (300,))


def cases() -> Iterator[Case]:
    """Codebooks of 2 to 256 levels; elements between thresholds, on them, far out, infinite and NaN."""
    for n, (levels, shape) in enumerate(zip(_LEVELS, _SHAPES, strict=True)):
        rng = np.random.default_rng(levels)
        codebook = mx.array(np.sort(rng.standard_normal(levels)).astype(np.float32))
        thresholds = (codebook[1:] + codebook[:-1]) / 2
        y = (rng.standard_normal(shape) * 2).astype(np.float32).reshape(-1)
        special = np.array([*np.array(thresholds)[:20], np.nan, np.inf, -np.inf, -0.0])[: max(0, len(y) - 1)]
        y[: len(special)] = special
        for dtype in _DTYPES if n == 2 else (_DTYPES[n % 3],):
            yield _quantises(mx.array(y.reshape(shape)).astype(dtype), thresholds, n == 0)
            codes = mx.array(rng.integers(0, levels, shape).astype(np.uint8))
            yield _dequantises(codes, codebook, dtype, n == 0)


def _threads(in_parts: bool) -> dict[str, int]:
    """Fewer threads than elements, as a very large array has."""
    return {"threads": 256} if in_parts else {}


def _quantises(y: mx.array, thresholds: mx.array, in_parts: bool) -> Case:
    note = f"{thresholds.size} thresholds, {y.dtype} {list(y.shape)}"
    launch = replace(quantise_launch(y, thresholds, **_threads(in_parts)), note=note)
    return Case("scalar_quant", launch, lambda: [reference.scalar_quantise(y, thresholds)], exactly)


def _dequantises(codes: mx.array, codebook: mx.array, dtype: mx.Dtype, in_parts: bool) -> Case:
    note = f"{codebook.size} levels, {dtype} {list(codes.shape)}"
    launch = replace(dequantise_launch(codes, codebook, dtype, **_threads(in_parts)), note=note)
    return Case("scalar_quant", launch, lambda: [reference.scalar_dequantise(codes, codebook).astype(dtype)], exactly)
