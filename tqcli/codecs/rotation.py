"""Orthogonal rotations that spread a vector's energy evenly over its channels (TurboQuant, arXiv 2504.19874, sec. 3.1).

`hadamard`: H (s * x), one Walsh-Hadamard transform after random signs; `hadamard2` and `hadamard3` repeat it with
other signs; `qr`: a Haar-random matrix. Where no Hadamard matrix of the size is at hand, `qr` takes its place.
`none` leaves vectors as they are, to see what rotating does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import mlx.core as mx
import numpy as np

from tqcli.errors import InputError
from tqcli.kernels import (
    hadamard_dequantise,
    hadamard_matrix,
    hadamard_quantise,
    has_hadamard,
    rotate_quantise_planes,
    unrotate_dequantise_planes,
)

RotationKind = Literal["hadamard", "hadamard2", "hadamard3", "qr", "none"]
_ROUNDS = {"hadamard": 1, "hadamard2": 2, "hadamard3": 3}


def rotation_used(kind: RotationKind, head_dim: int) -> RotationKind:
    """The rotation that `kind` means for this head_dim: itself, or `qr` where no Hadamard matrix is at hand."""
    return kind if kind in ("qr", "none") or has_hadamard(head_dim) else "qr"


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
    return hadamard_matrix(arrays["signs"])


def quantise_rotated(
    x: mx.array,
    arrays: dict[str, mx.array],
    arithmetic: mx.Dtype,
    codebook: mx.array,
    thresholds: mx.array,
    bits: Sequence[int],
    unbiased: bool,
) -> tuple[tuple[mx.array, ...], mx.array | None]:
    """`kernels.rotate_quantise_planes` with the rotation that `rotation_arrays` gave, in the dtype `arithmetic`.

    Signs are taken as such where an operation does that: in float32, the product with a matrix being the same thing.
    """
    if "signs" in arrays and arithmetic == mx.float32:
        return hadamard_quantise(x, arrays["signs"], codebook, thresholds, bits, unbiased)
    rotation = rotation_matrix(arrays, x.shape[-1]).astype(arithmetic)
    return rotate_quantise_planes(x, rotation, codebook, thresholds, bits, unbiased)


def dequantise_rotated(
    planes: Sequence[mx.array],
    scales: mx.array | None,
    arrays: dict[str, mx.array],
    head_dim: int,
    arithmetic: mx.Dtype,
    codebook: mx.array,
    bits: Sequence[int],
) -> mx.array:
    """The inverse of `quantise_rotated`: [..., tokens, head_dim] of the dtype `arithmetic`."""
    if "signs" in arrays and arithmetic == mx.float32:
        return hadamard_dequantise(planes, scales, arrays["signs"], codebook, bits)
    rotation = rotation_matrix(arrays, head_dim).astype(arithmetic)
    return unrotate_dequantise_planes(planes, scales, rotation, codebook, bits)
