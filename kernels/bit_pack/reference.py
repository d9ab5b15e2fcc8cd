"""Bit packing in plain MLX operations: the specification.

Eight codes fill exactly `bits` bytes. Neighbours are joined pairwise, 1 + 1 = 2, 2 + 2 = 4, ... codes at a time, in the
narrowest integer that holds them, until whole bytes are full. Little-endian machines only, as MLX itself.
"""

from __future__ import annotations

import mlx.core as mx

_CODES = 8
_WIDTHS = ((8, mx.uint8), (16, mx.uint16), (32, mx.uint32), (64, mx.uint64))


def pack_bits(codes: mx.array, bits: int) -> mx.array:
    """uint8 [..., n] to uint32 [..., ceil(n * bits / 32)]; see `launch.pack_bits`."""
    *lead, n = codes.shape
    n_bytes = -(-n * bits // 32) * 4
    if codes.size == 0:
        return mx.zeros((*lead, n_bytes // 4), dtype=mx.uint32)
    x = _pad_last(codes, -n % _CODES)
    width = bits
    while width % 8:
        x = x.astype(_holder(2 * width))
        x = x[..., 0::2] | (x[..., 1::2] << width)
        width *= 2
    joined = x.view(mx.uint8).reshape(*x.shape, -1)[..., : width // 8].reshape(*lead, -1)
    joined = joined[..., :n_bytes] if joined.shape[-1] >= n_bytes else _pad_last(joined, n_bytes - joined.shape[-1])
    return mx.contiguous(joined).view(mx.uint32)


def unpack_bits(words: mx.array, bits: int, n: int) -> mx.array:
    """uint32 [..., ceil(n * bits / 32)] to uint8 [..., n]; see `launch.unpack_bits`."""
    lead = words.shape[:-1]
    if n == 0 or words.size == 0:
        return mx.zeros((*lead, n), dtype=mx.uint8)
    width = bits
    while width % 8:
        width *= 2
    unit, holder = width // 8, _holder(width)
    x = mx.contiguous(words).view(mx.uint8)
    x = _pad_last(x, -x.shape[-1] % unit).reshape(*lead, -1, unit)
    x = mx.contiguous(_pad_last(x, holder.size - unit)).view(holder).squeeze(-1)
    while width > bits:
        width //= 2
        low, high = x & ((1 << width) - 1), x >> width
        x = mx.stack([low, high], axis=-1).reshape(*lead, -1).astype(_holder(width))
    return x[..., :n]


def _holder(width: int) -> mx.Dtype:
    return next(dtype for size, dtype in _WIDTHS if width <= size)


def _pad_last(x: mx.array, count: int) -> mx.array:
    return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count)]) if count else x
