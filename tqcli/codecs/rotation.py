"""Orthogonal rotations that spread a vector's energy evenly over its channels (TurboQuant, arXiv 2504.19874, sec. 3.1).

`hadamard`: H (s * x), one Walsh-Hadamard transform after random signs; `hadamard2` and `hadamard3` repeat it with
other signs; `qr`: a Haar-random matrix. Where no Hadamard matrix of the size is at hand, `qr` takes its place.
`none` leaves vectors as they are, to see what rotating does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, get_args

import mlx.core as mx
import numpy as np

from tqcli.errors import InputError

RotationKind = Literal["hadamard", "hadamard2", "hadamard3", "qr", "none"]
_ROUNDS = {"hadamard": 1, "hadamard2": 2, "hadamard3": 3}


def rotation_used(kind: RotationKind, head_dim: int) -> RotationKind:
    """The rotation that `kind` means for this head_dim: itself, or `qr` where no Hadamard matrix is at hand."""
    return kind if kind in ("qr", "none") or has_hadamard(head_dim) else "qr"


def has_hadamard(head_dim: int) -> bool:
    """Whether `mx.hadamard_transform` is right for this size: m * 2**k, m = 1, 12, 20, 28; it fails for others."""
    odd = max(head_dim, 1)
    while odd % 2 == 0:
        odd //= 2
    return odd == 1 or (odd in (3, 5, 7) and head_dim % (4 * odd) == 0)


def rotation_remarks(kind: RotationKind, head_dim: int) -> list[str]:
    """That another rotation takes the place of `kind`, where it does."""
    used = rotation_used(kind, head_dim)
    if used == kind:
        return []
    return [f"rotation {kind} is {used} for {head_dim} channels: there is no Hadamard matrix of that size"]


def rotation_arrays(kind: RotationKind, head_dim: int, seed: int) -> dict[str, mx.array]:
    """What defines the rotation and is stored with the codes; nothing for `none`.

    `signs` int8 [rounds, head_dim], or `rotation` float32 [head_dim, head_dim] for `qr`: the Q of a Gaussian matrix's
    QR decomposition with R's diagonal made positive, which is Haar-distributed (Mezzadri, math-ph/0609050).
    """
    used = rotation_used(kind, head_dim)
    if used == "none":
        return {}
    # Each kind draws its own stream, so that comparing kinds at one seed doesn't share signs.
    rng = np.random.default_rng([seed, head_dim, _ROUNDS.get(used, 0)])
    if used == "qr":
        q, r = np.linalg.qr(rng.standard_normal((head_dim, head_dim)))
        return {"rotation": mx.array((q * np.sign(np.diag(r))).astype(np.float32))}
    signs = rng.integers(0, 2, (_ROUNDS[used], head_dim)) * 2 - 1
    return {"signs": mx.array(signs.astype(np.int8))}


def check_rotation(kind: str, seed: int) -> None:
    """Raises `InputError` for an unknown kind or a negative seed."""
    if kind not in get_args(RotationKind):
        raise InputError(f"rotation must be one of {', '.join(get_args(RotationKind))}, not {kind!r}")
    if seed < 0:
        raise InputError(f"seed must be 0 or more, not {seed}")


def shared_rotation(codec: str, kind: RotationKind, head_dim: int, seed: int) -> dict[str, mx.array]:
    """`rotation_arrays` under the names by which a codec shares them."""
    prefix = _prefix(codec, kind, head_dim, seed)
    return {prefix + part: array for part, array in rotation_arrays(kind, head_dim, seed).items()}


def take_rotation(
    shared: Mapping[str, mx.array], codec: str, kind: RotationKind, head_dim: int, seed: int
) -> dict[str, mx.array]:
    """The rotation's arrays out of what is shared. Raises `KeyError` if they aren't there."""
    used = rotation_used(kind, head_dim)
    if used == "none":
        return {}
    part = "rotation" if used == "qr" else "signs"
    return {part: shared[_prefix(codec, kind, head_dim, seed) + part]}


def _prefix(codec: str, kind: RotationKind, head_dim: int, seed: int) -> str:
    return f"{codec}.d{head_dim}.{rotation_used(kind, head_dim)}.seed{seed}."


def rotation_matrix(arrays: dict[str, mx.array], head_dim: int) -> mx.array:
    """The matrix R of y = R x, float32 [head_dim, head_dim], orthonormal, from `rotation_arrays`."""
    if not arrays:
        return mx.eye(head_dim)
    if "rotation" in arrays:
        return arrays["rotation"]
    return _hadamard_rounds(np.array(arrays["signs"]).tobytes(), arrays["signs"].shape[1])


@lru_cache(maxsize=32)
def _hadamard_rounds(signs: bytes, head_dim: int) -> mx.array:
    # Row i of the transform of the identity is H e_i, so this is H transposed: for m = 20 and 28 H is not symmetric.
    # On the CPU: MLX's CUDA kernel doesn't compile for 20.
    h = np.array(mx.hadamard_transform(mx.eye(head_dim), stream=mx.cpu), dtype=np.float64).T
    matrix: np.ndarray[Any, np.dtype[np.float64]] = np.eye(head_dim)
    for round_signs in np.frombuffer(signs, dtype=np.int8).reshape(-1, head_dim):
        matrix = h @ (round_signs[:, None] * matrix)
    return mx.array(matrix.astype(np.float32))
