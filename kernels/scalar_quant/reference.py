"""Scalar quantisation in plain MLX operations: the specification."""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
import numpy as np

_COMPARE_AT_MOST = 31
"""Up to 5 bits comparing with every threshold is quickest; beyond, a table narrows it to one threshold first."""
_BUCKETS_AT_MOST = 1 << 16


def scalar_quantise(y: mx.array, thresholds: mx.array) -> mx.array:
    """Floats to uint8 codes; see `launch.scalar_quantise`."""
    if y.dtype != mx.float64:
        y = y.astype(mx.float32)  # a threshold would be rounded to a narrower dtype
    table = _buckets(np.array(thresholds)) if thresholds.size > _COMPARE_AT_MOST else None
    if table is None:
        first, *others = cast(list[float], thresholds.tolist())
        codes = (y > first).view(mx.uint8)  # a bool is a byte of 0 or 1: no copy
        for threshold in others:
            codes = codes + (y > threshold).view(mx.uint8)
        return codes
    low, step, below, nearest = table
    place = mx.clip((y - low) / step, 0, below.size - 1)
    bucket = mx.where(mx.isnan(place), 0, place).astype(mx.uint32)
    return below[bucket] + (y > nearest[bucket]).astype(mx.uint8)


def scalar_dequantise(codes: mx.array, codebook: mx.array) -> mx.array:
    """uint8 codes to float32 levels; see `launch.scalar_dequantise`."""
    return codebook[codes]


def _buckets(
    thresholds: np.ndarray[Any, np.dtype[np.float32]],
) -> tuple[float, float, mx.array, mx.array] | None:
    """A uniform grid over the thresholds, at most one of them within reach of a bucket.

    Returns the grid's start and step, the number of thresholds below each bucket, and the one to compare with. A bucket
    reaches a quarter of a step beyond its ends, so that rounding in the bucket's number can't change a code. None where
    thresholds lie too close together for a small table.
    """
    low, high = float(thresholds[0]), float(thresholds[-1])
    step = float(np.min(np.diff(thresholds))) / 2
    if high - low > step * _BUCKETS_AT_MOST:
        return None
    edges = low + step * np.arange(int(np.ceil((high - low) / step)) + 2)
    below = np.searchsorted(thresholds, edges - step / 4)
    nearest = np.append(thresholds, np.float32(np.inf))[below]
    return low, step, mx.array(below.astype(np.uint8)), mx.array(nearest)
