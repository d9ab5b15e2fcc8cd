"""The orthonormal Hadamard matrices that MLX has: of m * 2**k rows, m = 1, 12, 20 or 28."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mlx.core as mx
import numpy as np


def has_hadamard(d: int) -> bool:
    """Whether `mx.hadamard_transform` is right for this size: m * 2**k, m = 1, 12, 20, 28; it fails for others."""
    odd = _odd_part(d)
    return odd == 1 or (odd in (3, 5, 7) and d % (4 * odd) == 0)


def core_size(d: int) -> int:
    """The m of a size that `has_hadamard`: the matrix is H_m (x) H_n with n = d / m, a power of two."""
    odd = _odd_part(d)
    return odd if odd == 1 else 4 * odd


@lru_cache(maxsize=64)
def core_signs(m: int, inverse: bool) -> mx.array:
    """H_m's rows (its columns if `inverse`) as uint32 [m]: bit a is set where element a is negative."""
    matrix = _hadamard(m)
    negative = (matrix.T if inverse else matrix) < 0
    return mx.array((negative << np.arange(m)).sum(axis=1).astype(np.uint32))


def hadamard_matrix(signs: mx.array) -> mx.array:
    """The matrix H S_r ... H S_1 of rounds of random signs: signs int8 [rounds, d], float32 [d, d], orthonormal."""
    return _rounds(np.array(signs).tobytes(), signs.shape[1])


@lru_cache(maxsize=32)
def _rounds(signs: bytes, d: int) -> mx.array:
    h = _hadamard(d)
    matrix: np.ndarray[Any, np.dtype[np.float64]] = np.eye(d)
    for round_signs in np.frombuffer(signs, dtype=np.int8).reshape(-1, d):
        matrix = h @ (round_signs[:, None] * matrix)
    return mx.array(matrix.astype(np.float32))


def _hadamard(d: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    # Row i of the transform of the identity is H e_i, so this is H transposed: for m = 20 and 28 H is not symmetric.
    # On the CPU: MLX's CUDA kernel doesn't compile for 20.
    return np.array(mx.hadamard_transform(mx.eye(d), stream=mx.cpu), dtype=np.float64).T


def _odd_part(d: int) -> int:
    odd = max(d, 1)
    while odd % 2 == 0:
        odd //= 2
    return odd
