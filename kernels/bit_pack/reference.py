"""Bit packing in plain MLX operations: the specification.

Eight codes fill exactly `bits` bytes. Neighbours are joined pairwise, 1 + 1 = 2, 2 + 2 = 4, ... codes at a time, in the
narrowest integer that holds them, until whole bytes are full. Little-endian machines only, as MLX itself.
"""

from __future__ import annotations

import mlx.core as mx

_CODES = 8
_WIDTHS = ((8, mx.uint8), (16, mx.uint16), (32, mx.uint32), (64, mx.uint64))
_WIDEST = 64


def pack_bits(codes: mx.array, bits: int) -> mx.array:
    """uint8 or uint16 [..., n] to uint32 [..., ceil(n * bits / 32)]; see `launch.pack_bits`."""
    *lead, n = codes.shape
    n_bytes = -(-n * bits // 32) * 4
    if codes.size == 0:
        return mx.zeros((*lead, n_bytes // 4), dtype=mx.uint32)
    x = _pad_last(codes, -n % _CODES)
    width = bits
    while width % 8:
        low, high = x[..., 0::2], x[..., 1::2]
        width *= 2
        if width > _WIDEST:
            x = _join_wide(low, high, width // 2)
        else:
            x = low.astype(_holder(width)) | (high.astype(_holder(width)) << (width // 2))
    joined = mx.contiguous(x).view(mx.uint8).reshape(*lead, -1, 16 if width > _WIDEST else x.itemsize)
    joined = joined[..., : width // 8].reshape(*lead, -1)
    joined = joined[..., :n_bytes] if joined.shape[-1] >= n_bytes else _pad_last(joined, n_bytes - joined.shape[-1])
    return mx.contiguous(joined).view(mx.uint32)


def unpack_bits(words: mx.array, bits: int, n: int) -> mx.array:
    """uint32 [..., ceil(n * bits / 32)] to uint8 or uint16 [..., n]; see `launch.unpack_bits`."""
    lead = words.shape[:-1]
    if n == 0 or words.size == 0:
        return mx.zeros((*lead, n), dtype=_holder(bits))
    width = bits
    while width % 8:
        width *= 2
    unit = width // 8
    x = mx.contiguous(words).view(mx.uint8)
    x = _pad_last(x, -x.shape[-1] % unit).reshape(*lead, -1, unit)
    if width > _WIDEST:
        width //= 2
        x = _part_wide(mx.contiguous(_pad_last(x, 16 - unit)).view(mx.uint64), width).reshape(*lead, -1)
    else:
        holder = _holder(width)
        x = mx.contiguous(_pad_last(x, holder.size - unit)).view(holder).squeeze(-1)
    while width > bits:
        width //= 2
        low, high = x & _mask(width, x.dtype), x >> width
        x = mx.stack([low, high], axis=-1).reshape(*lead, -1).astype(_holder(width))
    return x[..., :n]


def _join_wide(low: mx.array, high: mx.array, width: int) -> mx.array:
    """Pairs of `width` bits each, 2 * width > 64, as pairs of 64-bit words, the lower word first."""
    return mx.stack([low | (high << width), high >> (_WIDEST - width)], axis=-1)


def _part_wide(words: mx.array, width: int) -> mx.array:
    """The inverse: uint64 [..., 2] to the lower and the upper `width` bits, uint64 [..., 2]."""
    low, high = words[..., 0], words[..., 1]
    mask = _mask(width, mx.uint64)
    return mx.stack([low & mask, ((low >> width) | (high << (_WIDEST - width))) & mask], axis=-1)


def _mask(width: int, dtype: mx.Dtype) -> mx.array:
    return mx.array((1 << width) - 1, dtype=dtype)


def _holder(width: int) -> mx.Dtype:
    return next(dtype for size, dtype in _WIDTHS if width <= size)


def _pad_last(x: mx.array, count: int) -> mx.array:
    return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count)]) if count else x
