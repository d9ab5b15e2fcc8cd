"""Checks shapes and ranges of rotate-and-quantise and calls an implementation."""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.bit_pack import words_per_row
from tqcli.kernels.hadamard_quant import reference

SCALE_BITS = 16


def has_embedded_scale(head_dim: int, bits: int) -> bool:
    """Whether a row of codes leaves 16 bits of its last word free, where the row's scale is then kept."""
    return words_per_row(head_dim, bits) * 32 - head_dim * bits >= SCALE_BITS


def rotate_quantise(
    x: mx.array, rotation: mx.array, codebook: mx.array, bits: int, unbiased: bool
) -> tuple[mx.array, mx.array | None]:
    """Codes vectors: y = rotation @ x / rms(x), each element to its nearest level, packed, with one scale a vector.

    x: float [..., tokens, d]; rotation: float32 [d, d], orthonormal; codebook: float32 [2**bits], ascending, for
    elements of unit variance. Returns uint32 codes [..., tokens, words] and bfloat16 scales [..., tokens], None where
    they lie in the last 16 bits of each row of codes (`has_embedded_scale`). The scale is rms(x) or, if `unbiased`,
    rms(x) * d / <y, level(y)>, which makes <q, decoded> unbiased. A zero vector has scale 0. NaN and inf give a
    non-finite scale. Raises `ValueError` for wrong shapes or dtypes.
    """
    d = x.shape[-1] if x.ndim >= 2 else 0
    if d < 1 or not mx.issubdtype(x.dtype, mx.floating):
        raise ValueError(f"x must be a float array [..., tokens, d], not {x.dtype} of shape {x.shape}")
    if rotation.shape != (d, d) or codebook.shape != (2**bits,):
        raise ValueError(f"rotation {rotation.shape} or codebook {codebook.shape} don't fit d = {d}, bits = {bits}")
    return reference.rotate_quantise(x, rotation, codebook, bits, unbiased)


def unrotate_dequantise(
    codes: mx.array, scales: mx.array | None, rotation: mx.array, codebook: mx.array, bits: int
) -> mx.array:
    """The inverse of `rotate_quantise`: float32 [..., tokens, d] = scale * rotation.T @ level(code).

    Raises `ValueError` where the codes' width doesn't fit the rotation, or scales are given or missing wrongly.
    """
    d = rotation.shape[-1]
    if codes.dtype != mx.uint32 or codes.ndim < 2 or codes.shape[-1] != words_per_row(d, bits):
        raise ValueError(f"codes {codes.dtype} {codes.shape} are not rows of {d} codes of {bits} bits")
    if (scales is None) != has_embedded_scale(d, bits):
        raise ValueError(f"d = {d}, bits = {bits}: scales must be {'absent' if scales is not None else 'given'}")
    return reference.unrotate_dequantise(codes, scales, rotation, codebook, bits)
