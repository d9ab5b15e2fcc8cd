"""Rotate-and-quantise in plain MLX operations: the specification."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from tqcli.kernels.bit_pack import pack_bits, unpack_bits
from tqcli.kernels.scalar_quant import scalar_dequantise, scalar_quantise

_BLOCK_ELEMENTS = 1 << 18
"""On a CPU the intermediate arrays of this many elements stay in its second-level cache: twice as fast."""
_BF16_MAX = 3.3895313892515355e38
_BF16_TINY = 2.0**-126


def rotate_quantise(
    x: mx.array, rotation: mx.array, codebook: mx.array, bits: int, unbiased: bool
) -> tuple[mx.array, mx.array | None]:
    """See `launch.rotate_quantise`."""
    *lead, d = x.shape
    thresholds = (codebook[1:] + codebook[:-1]) / 2
    words = -(-d * bits // 32)
    if x.size == 0:
        codes, scales = mx.zeros((*lead, words), dtype=mx.uint32), mx.zeros(tuple(lead), dtype=mx.bfloat16)
    else:

        def block(rows: mx.array) -> tuple[mx.array, mx.array]:
            return _encode_rows(rows, rotation, codebook, thresholds, bits, unbiased)

        codes, scales = _in_blocks(block, x.reshape(-1, d))
        codes, scales = codes.reshape(*lead, words), scales.reshape(lead)
    if words * 32 - d * bits < 16:
        return codes, scales
    slack = scales.view(mx.uint16).astype(mx.uint32) << 16
    return mx.concatenate([codes[..., :-1], codes[..., -1:] | slack[..., None]], axis=-1), None


def unrotate_dequantise(
    codes: mx.array, scales: mx.array | None, rotation: mx.array, codebook: mx.array, bits: int
) -> mx.array:
    """See `launch.unrotate_dequantise`."""
    d = rotation.shape[-1]
    if codes.size == 0:
        return mx.zeros((*codes.shape[:-1], d))
    if scales is None:
        scales = (codes[..., -1] >> 16).astype(mx.uint16).view(mx.bfloat16)
    y = scalar_dequantise(unpack_bits(codes, bits, d), codebook)
    return (y @ rotation) * scales.astype(mx.float32)[..., None]


def _encode_rows(
    x: mx.array, rotation: mx.array, codebook: mx.array, thresholds: mx.array, bits: int, unbiased: bool
) -> tuple[mx.array, mx.array]:
    """Rows [n, d] to packed codes [n, words] and scales [n]."""
    x = x.astype(mx.float32)
    # The largest element comes out first: squares then neither overflow nor vanish, whatever the finite input.
    largest = mx.max(mx.abs(x), axis=-1, keepdims=True)
    x = x / mx.where(largest == 0, 1, largest)
    rms = mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True))
    y = (x @ rotation.T) / mx.where(rms == 0, 1, rms)
    codes = scalar_quantise(y, thresholds)
    scale = rms[:, 0]
    if unbiased:
        overlap = mx.mean(y * scalar_dequantise(codes, codebook), axis=-1)
        scale = scale / mx.where(overlap == 0, 1, overlap)
    scale = scale * largest[:, 0]
    smallest = mx.where(largest[:, 0] == 0, 0, _BF16_TINY)
    scale = mx.where(mx.isnan(scale), scale, mx.clip(scale, smallest, _BF16_MAX))
    return pack_bits(codes, bits), scale.astype(mx.bfloat16)


def _in_blocks(f: Callable[[mx.array], tuple[mx.array, mx.array]], rows: mx.array) -> tuple[mx.array, mx.array]:
    """Applies f over blocks of rows where that is faster (a CPU), and over all rows at once elsewhere."""
    if mx.default_device() != mx.Device(mx.cpu):
        return f(rows)
    step = max(1, _BLOCK_ELEMENTS // rows.shape[1])
    parts = []
    for start in range(0, rows.shape[0], step):
        part = f(rows[start : start + step])
        mx.eval(part)
        parts.append(part)
    return mx.concatenate([p[0] for p in parts]), mx.concatenate([p[1] for p in parts])
