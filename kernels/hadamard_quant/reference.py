"""Rotate-and-quantise in plain MLX operations: the specification."""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.bit_pack import pack_bits, unpack_bits
from tqcli.kernels.scalar_quant import scalar_dequantise, scalar_quantise

_BLOCK_ELEMENTS = 1 << 18
"""On a CPU the intermediate arrays of this many elements stay in its second-level cache: twice as fast."""
_BF16_MAX = 3.3895313892515355e38
_BF16_TINY = 2.0**-133
_RMS_LOW, _RMS_HIGH = 1e-12, 1e12


def rotate_quantise(
    x: mx.array, rotation: mx.array, codebook: mx.array, bits: int, unbiased: bool
) -> tuple[mx.array, mx.array | None]:
    """See `launch.rotate_quantise`."""
    *lead, d = x.shape
    words = -(-d * bits // 32)
    if x.size == 0:
        codes, scales = mx.zeros((*lead, words), dtype=mx.uint32), mx.zeros(tuple(lead), dtype=mx.bfloat16)
    else:
        codes, scales = _encode_rows(x.reshape(-1, d).astype(mx.float32), rotation, codebook, bits, unbiased)
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
    x: mx.array, rotation: mx.array, codebook: mx.array, bits: int, unbiased: bool
) -> tuple[mx.array, mx.array]:
    """Rows [n, d] float32 to packed codes [n, words] and scales [n]."""
    n, d = x.shape
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    step = max(1, _BLOCK_ELEMENTS // d) if on_cpu else n
    turned = x @ rotation.T  # of all rows at once: a product of few rows wastes its threads
    parts = []
    for start in range(0, n, step):
        y = turned[start : start + step]
        rms = _rms(y)
        largest = None
        # On a GPU asking would stall it, and the careful way is right for any row.
        if not on_cpu or not _squares_fit(rms):
            # The largest element comes out first: squares then neither overflow nor vanish, whatever the finite input.
            rows = x[start : start + step]
            largest = mx.max(mx.abs(rows), axis=-1, keepdims=True)
            y = (rows / mx.where(largest == 0, 1, largest)) @ rotation.T
            rms = _rms(y)
        part = _quantise_rows(y, rms, largest, codebook, bits, unbiased)
        if on_cpu:
            mx.eval(part)
        parts.append(part)
    return mx.concatenate([p[0] for p in parts]), mx.concatenate([p[1] for p in parts])


def _quantise_rows(
    y: mx.array, rms: mx.array, largest: mx.array | None, codebook: mx.array, bits: int, unbiased: bool
) -> tuple[mx.array, mx.array]:
    """Rotated rows [n, d] to packed codes and scales, which are multiplied by `largest` [n, 1]."""
    y = y / mx.where(rms == 0, 1, rms)
    codes = scalar_quantise(y, (codebook[1:] + codebook[:-1]) / 2)
    scale = rms
    if unbiased:
        overlap = mx.mean(y * scalar_dequantise(codes, codebook), axis=-1, keepdims=True)
        scale = scale / mx.where(overlap == 0, 1, overlap)
    if largest is not None:
        scale = scale * largest
    scale = mx.where(mx.isnan(scale), scale, mx.clip(scale, mx.where(rms == 0, 0, _BF16_TINY), _BF16_MAX))
    return pack_bits(codes, bits), scale[:, 0].astype(mx.bfloat16)


def _rms(y: mx.array) -> mx.array:
    return mx.sqrt(mx.mean(y * y, axis=-1, keepdims=True))


def _squares_fit(rms: mx.array) -> bool:
    """Whether every row's root mean square is far from float32's limits, so that no square overflowed or vanished."""
    return bool((mx.all(rms > _RMS_LOW) & mx.all(rms < _RMS_HIGH)).item())
