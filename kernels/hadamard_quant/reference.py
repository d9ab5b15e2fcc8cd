"""Rotate-and-quantise in plain MLX operations: the specification."""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.bit_pack import words_per_row
from tqcli.kernels.bit_pack.reference import pack_bits, unpack_bits
from tqcli.kernels.blocks import BLOCK_ELEMENTS, on_cpu
from tqcli.kernels.hadamard_quant.matrix import hadamard_matrix
from tqcli.kernels.scalar_quant.reference import scalar_dequantise, scalar_quantise
from tqcli.kernels.scales import (
    has_embedded_scale,
    must_take_care,
    root_mean_square,
    stored_scale,
    take_out_largest,
)


def hadamard_quantise(
    x: mx.array,
    signs: mx.array,
    codebook: mx.array,
    thresholds: mx.array,
    bits: tuple[int, ...],
    unbiased: bool,
    offset: mx.array | None,
) -> tuple[tuple[mx.array, ...], mx.array | None]:
    """See `launch.hadamard_quantise`."""
    if offset is not None:
        x = x - offset.astype(mx.float32).reshape(offset.shape[-x.ndim :])
    return rotate_quantise(x, hadamard_matrix(signs), codebook, thresholds, bits, unbiased)


def hadamard_dequantise(
    planes: tuple[mx.array, ...],
    scales: mx.array | None,
    signs: mx.array,
    codebook: mx.array,
    bits: tuple[int, ...],
) -> mx.array:
    """See `launch.hadamard_dequantise`."""
    return unrotate_dequantise(planes, scales, hadamard_matrix(signs), codebook, bits)


def rotate_quantise(
    x: mx.array,
    rotation: mx.array,
    codebook: mx.array,
    thresholds: mx.array,
    bits: tuple[int, ...],
    unbiased: bool,
) -> tuple[tuple[mx.array, ...], mx.array | None]:
    """See `launch.rotate_quantise_planes`."""
    *lead, d = x.shape
    words = [words_per_row(d, b) for b in bits]
    if x.size == 0:
        planes = tuple(mx.zeros((*lead, w), dtype=mx.uint32) for w in words)
        scales = mx.zeros(tuple(lead), dtype=mx.bfloat16)
    else:
        rows = x.reshape(-1, d).astype(rotation.dtype)
        *packed, scales = _encode_rows(rows, rotation, codebook, thresholds, bits, unbiased)
        planes = tuple(p.reshape(*lead, w) for p, w in zip(packed, words, strict=True))
        scales = scales.reshape(lead)
    if not has_embedded_scale(d, bits[0]):
        return planes, scales
    slack = scales.view(mx.uint16).astype(mx.uint32) << 16
    first = mx.concatenate([planes[0][..., :-1], planes[0][..., -1:] | slack[..., None]], axis=-1)
    return (first, *planes[1:]), None


def unrotate_dequantise(
    planes: tuple[mx.array, ...],
    scales: mx.array | None,
    rotation: mx.array,
    codebook: mx.array,
    bits: tuple[int, ...],
) -> mx.array:
    """See `launch.unrotate_dequantise_planes`."""
    d = rotation.shape[-1]
    if planes[0].size == 0:
        return mx.zeros((*planes[0].shape[:-1], d), dtype=rotation.dtype)
    if scales is None:
        scales = (planes[0][..., -1] >> 16).astype(mx.uint16).view(mx.bfloat16)
    codes = unpack_bits(planes[0], bits[0], d)
    for plane, b in zip(planes[1:], bits[1:], strict=True):
        codes = (codes << b) | unpack_bits(plane, b, d)
    y = scalar_dequantise(codes, codebook)
    return (y @ rotation) * scales.astype(mx.float32)[..., None]


def _encode_rows(
    x: mx.array,
    rotation: mx.array,
    codebook: mx.array,
    thresholds: mx.array,
    bits: tuple[int, ...],
    unbiased: bool,
) -> list[mx.array]:
    """Rows [n, d] to packed planes [n, words] and, last, scales [n]."""
    n, d = x.shape
    step = max(1, BLOCK_ELEMENTS // d) if on_cpu() else n
    turned = x @ rotation.T  # of all rows at once: a product of few rows wastes its threads
    parts = []
    for start in range(0, n, step):
        y = turned[start : start + step]
        rms = root_mean_square(y)
        largest = None
        if must_take_care(rms):
            rows, largest = take_out_largest(x[start : start + step])
            y = rows @ rotation.T
            rms = root_mean_square(y)
        part = _quantise_rows(y, rms, largest, codebook, thresholds, bits, unbiased)
        if on_cpu():
            mx.eval(part)
        parts.append(part)
    return [mx.concatenate(list(arrays)) for arrays in zip(*parts, strict=True)]


def _quantise_rows(
    y: mx.array,
    rms: mx.array,
    largest: mx.array | None,
    codebook: mx.array,
    thresholds: mx.array,
    bits: tuple[int, ...],
    unbiased: bool,
) -> list[mx.array]:
    """Rotated rows [n, d] to packed planes and, last, scales, which are multiplied by `largest` [n, 1]."""
    y = y / mx.where(rms == 0, 1, rms)
    codes = scalar_quantise(y, thresholds)
    scale = rms
    if unbiased:
        overlap = mx.mean(y * scalar_dequantise(codes, codebook), axis=-1, keepdims=True)
        scale = scale / mx.where(overlap == 0, 1, overlap)
    return [*_pack_planes(codes, bits), stored_scale(scale, rms, largest)]


def _pack_planes(codes: mx.array, bits: tuple[int, ...]) -> list[mx.array]:
    """Codes of sum(bits) bits, cut into planes from the upper bits down, each packed by itself."""
    if len(bits) == 1:
        return [pack_bits(codes, bits[0])]
    planes, below = [], sum(bits)
    for b in bits:
        below -= b
        planes.append(pack_bits((codes >> below) & ((1 << b) - 1), b))
    return planes
