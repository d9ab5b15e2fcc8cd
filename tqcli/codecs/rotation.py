"""Orthogonal rotations that spread a vector's energy evenly over its channels (TurboQuant, arXiv 2504.19874, sec. 3.1).

`hadamard`: H (s * x), one Walsh-Hadamard transform after random signs; `hadamard2` and `hadamard3` repeat it with
other signs; `qr`: a Haar-random matrix. Where no Hadamard matrix of the size is at hand, `qr` takes its place.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import mlx.core as mx
import numpy as np

RotationKind = Literal["hadamard", "hadamard2", "hadamard3", "qr"]
_ROUNDS = {"hadamard": 1, "hadamard2": 2, "hadamard3": 3}


def rotation_used(kind: RotationKind, head_dim: int) -> RotationKind:
    """The rotation that `kind` means for this head_dim: itself, or `qr` where no Hadamard matrix is at hand."""
    return kind if kind == "qr" or has_hadamard(head_dim) else "qr"


def has_hadamard(head_dim: int) -> bool:
    """Whether `mx.hadamard_transform` is right for this size: m * 2**k, m = 1, 12, 20, 28; it fails for others."""
    odd = max(head_dim, 1)
    while odd % 2 == 0:
        odd //= 2
    return odd == 1 or (odd in (3, 5, 7) and head_dim % (4 * odd) == 0)


def rotation_arrays(kind: RotationKind, head_dim: int, seed: int) -> dict[str, mx.array]:
    """What defines the rotation and is stored with the codes.

    `signs` int8 [rounds, head_dim], or `rotation` float32 [head_dim, head_dim] for `qr`: the Q of a Gaussian matrix's
    QR decomposition with R's diagonal made positive, which is Haar-distributed (Mezzadri, math-ph/0609050).
    """
    used = rotation_used(kind, head_dim)
    # Each kind draws its own stream, so that comparing kinds at one seed doesn't share signs.
    rng = np.random.default_rng([seed, head_dim, _ROUNDS.get(used, 0)])
    if used == "qr":
        q, r = np.linalg.qr(rng.standard_normal((head_dim, head_dim)))
        return {"rotation": mx.array((q * np.sign(np.diag(r))).astype(np.float32))}
    signs = rng.integers(0, 2, (_ROUNDS[used], head_dim)) * 2 - 1
    return {"signs": mx.array(signs.astype(np.int8))}


def rotation_matrix(arrays: dict[str, mx.array]) -> mx.array:
    """The matrix R of y = R x, float32 [head_dim, head_dim], orthonormal, from `rotation_arrays`."""
    if "rotation" in arrays:
        return arrays["rotation"]
    return _hadamard_rounds(np.array(arrays["signs"]).tobytes(), arrays["signs"].shape[1])


@lru_cache(maxsize=32)
def _hadamard_rounds(signs: bytes, head_dim: int) -> mx.array:
    # Row i of the transform of the identity is H e_i, so this is H transposed: for m = 20 and 28 H is not symmetric.
    h = np.array(mx.hadamard_transform(mx.eye(head_dim)), dtype=np.float64).T
    matrix: np.ndarray[Any, np.dtype[np.float64]] = np.eye(head_dim)
    for round_signs in np.frombuffer(signs, dtype=np.int8).reshape(-1, head_dim):
        matrix = h @ (round_signs[:, None] * matrix)
    return mx.array(matrix.astype(np.float32))
