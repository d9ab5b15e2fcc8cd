"""Turning vectors by a layer's rotary position embedding, and back (RoFormer, arXiv 2104.09864, section 3.2)."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.codecs.context import RotaryParameters


def turn(x: mx.array, positions: NDArray[np.int64], rotary: RotaryParameters, inverse: bool = False) -> mx.array:
    """R_t x for each token (R_t^-1 x if `inverse`): x [..., tokens or 1, head_dim], positions [tokens]; float32.

    The same angles serve both directions, so turning back restores x to float32 rounding.
    """
    cos, sin = _angles(positions.tobytes(), rotary)
    sin = -sin if inverse else sin
    x = x.astype(mx.float32)
    dims, half = rotary.dims, rotary.dims // 2
    if rotary.interleaved:
        first, second = x[..., 0:dims:2], x[..., 1:dims:2]
    else:
        first, second = x[..., :half], x[..., half:dims]
    a, b = first * cos - second * sin, first * sin + second * cos
    if rotary.interleaved:
        turned = mx.stack([a, b], axis=-1).reshape(*a.shape[:-1], dims)
    else:
        turned = mx.concatenate([a, b], axis=-1)
    if dims == x.shape[-1]:
        return turned
    rest = mx.broadcast_to(x[..., dims:], (*turned.shape[:-1], x.shape[-1] - dims))
    return mx.concatenate([turned, rest], axis=-1)


@lru_cache(maxsize=64)
def _angles(positions: bytes, rotary: RotaryParameters) -> tuple[mx.array, mx.array]:
    """Cosines and sines [tokens, dims / 2], the angles taken in float64: at position 100,000 float32 is off by 1 %."""
    angles = np.frombuffer(positions, dtype=np.int64)[:, None] * np.array(rotary.frequencies)
    return mx.array(np.cos(angles).astype(np.float32)), mx.array(np.sin(angles).astype(np.float32))
