"""Checks shapes and ranges of rotate-and-quantise and calls an implementation."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from tqcli.kernels.bit_pack import words_per_row
from tqcli.kernels.hadamard_quant import reference
from tqcli.kernels.scales import has_embedded_scale


def rotate_quantise(
    x: mx.array, rotation: mx.array, codebook: mx.array, bits: int, unbiased: bool
) -> tuple[mx.array, mx.array | None]:
    """Codes vectors: y = rotation @ x / rms(x), each element to its nearest level, packed, with one scale a vector.

    x: float [..., tokens, d]; rotation: float32 [d, d], orthonormal; codebook: float32 [2**bits], ascending, for
    elements of unit variance. Returns uint32 codes [..., tokens, words] and bfloat16 scales [..., tokens], None where
    they lie in the last 16 bits of each row of codes (`has_embedded_scale`). The scale is rms(x) or, if `unbiased`,
    rms(x) * d / <y, level(y)>, which makes <q, decoded> unbiased. A zero vector has scale 0. NaN and inf give a
    non-finite scale. A float64 rotation makes all arithmetic float64. Raises `ValueError` for wrong shapes or dtypes.
    """
    (codes,), scales = rotate_quantise_planes(
        x, rotation, codebook, (codebook[1:] + codebook[:-1]) / 2, (bits,), unbiased
    )
    return codes, scales


def rotate_quantise_planes(
    x: mx.array, rotation: mx.array, codebook: mx.array, thresholds: mx.array, bits: Sequence[int], unbiased: bool
) -> tuple[tuple[mx.array, ...], mx.array | None]:
    """As `rotate_quantise` with explicit thresholds, the codes cut into planes of `bits` bits, the upper bits first.

    An element's code, of sum(bits) bits, is the number of `thresholds` (float32 [2**sum(bits) - 1], ascending) strictly
    below it. Returns the planes, each uint32 [..., tokens, words of its own bits], and the scales, which lie in the
    first plane where that leaves room. Raises `ValueError` as `rotate_quantise` does, or if sum(bits) isn't 1 to 8.
    """
    d = x.shape[-1] if x.ndim >= 2 else 0
    if d < 1 or not mx.issubdtype(x.dtype, mx.floating):
        raise ValueError(f"x must be a float array [..., tokens, d], not {x.dtype} of shape {x.shape}")
    _check_tables(rotation, d, codebook, bits)
    if thresholds.shape != (codebook.size - 1,):
        raise ValueError(f"{codebook.size} levels have {codebook.size - 1} thresholds, not shape {thresholds.shape}")
    return reference.rotate_quantise(x, rotation, codebook, thresholds, tuple(bits), unbiased)


def unrotate_dequantise(
    codes: mx.array, scales: mx.array | None, rotation: mx.array, codebook: mx.array, bits: int
) -> mx.array:
    """The inverse of `rotate_quantise`: [..., tokens, d] of the rotation's dtype = scale * rotation.T @ level(code).

    Raises `ValueError` where the codes' width doesn't fit the rotation, or scales are given or missing wrongly.
    """
    return unrotate_dequantise_planes((codes,), scales, rotation, codebook, (bits,))


def unrotate_dequantise_planes(
    planes: Sequence[mx.array], scales: mx.array | None, rotation: mx.array, codebook: mx.array, bits: Sequence[int]
) -> mx.array:
    """The inverse of `rotate_quantise_planes`; codebook: float32 [2**sum(bits)]. Raises as `unrotate_dequantise`.

    The first planes alone, with a codebook of 2**(their bits) levels, give a coarser reconstruction.
    """
    d = rotation.shape[-1]
    _check_tables(rotation, d, codebook, bits)
    if len(planes) != len(bits):
        raise ValueError(f"{len(bits)} planes are needed for bits {tuple(bits)}, not {len(planes)}")
    for codes, b in zip(planes, bits, strict=True):
        if codes.dtype != mx.uint32 or codes.ndim < 2 or codes.shape[-1] != words_per_row(d, b):
            raise ValueError(f"codes {codes.dtype} {codes.shape} are not rows of {d} codes of {b} bits")
    if (scales is None) != has_embedded_scale(d, bits[0]):
        raise ValueError(f"d = {d}, bits = {bits[0]}: scales must be {'absent' if scales is not None else 'given'}")
    return reference.unrotate_dequantise(tuple(planes), scales, rotation, codebook, tuple(bits))


def _check_tables(rotation: mx.array, d: int, codebook: mx.array, bits: Sequence[int]) -> None:
    total = sum(bits)
    if not bits or min(bits) < 1 or total > 8:
        raise ValueError(f"bits must be 1 to 8 in all, at least 1 a plane, not {tuple(bits)}")
    if rotation.shape != (d, d) or codebook.shape != (2**total,):
        raise ValueError(f"rotation {rotation.shape} or codebook {codebook.shape} don't fit d = {d}, bits = {total}")
