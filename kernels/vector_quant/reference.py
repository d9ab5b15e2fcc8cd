"""Vector quantisation in plain MLX operations: the specification.

The nearest entry c of x has the largest <x, c> - ||c||**2 / 2: one matrix product, with the squared norms as a further
column of the codebook, and a search for the largest of each sub-vector's scores.
"""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.bit_pack.reference import unpack_bits
from tqcli.kernels.blocks import on_cpu

_BLOCK_SCORES, _BLOCK_SCORES_GPU = 1 << 20, 1 << 24
"""Scores at a time: 4 MB on a CPU, whose search then reads them from its cache, and 64 MB on a GPU."""
_GROUP = 32
_GROUPED_FROM = 1024
"""Entries from which it is faster to look for the best group of `_GROUP` entries first, on a CPU."""
_NORMAL_MIN = 2.0**-126


def vector_quantise(x: mx.array, codebook: mx.array) -> mx.array:
    """See `launch.vector_quantise`."""
    entries, sub_dim = codebook.shape[-2:]
    dtype = mx.uint8 if entries <= 256 else mx.uint16
    if x.size == 0:
        return mx.zeros(x.shape[:-1], dtype=dtype)
    if codebook.ndim == 3:
        return mx.stack([_nearest(x[h], codebook[h]).astype(dtype) for h in range(x.shape[0])])
    return _nearest(x.reshape(-1, sub_dim), codebook).astype(dtype).reshape(x.shape[:-1])


def vector_dequantise(codes: mx.array, codebook: mx.array) -> mx.array:
    """See `launch.vector_dequantise`."""
    codebook = codebook.astype(mx.float32)
    if codebook.ndim == 2:
        return codebook[codes]
    heads, entries, sub_dim = codebook.shape
    first = (mx.arange(heads, dtype=mx.uint32) * entries)[:, None]
    return codebook.reshape(-1, sub_dim)[codes.astype(mx.uint32) + first]


def vector_scores(q: mx.array, words: mx.array, codebook: mx.array, bits: int) -> mx.array:
    """See `launch.vector_scores`."""
    head_dim, heads = q.shape[-1], words.shape[-3]
    codes = unpack_bits(words, bits, head_dim // codebook.shape[-1])
    entries = vector_dequantise(codes.reshape(*codes.shape[:-2], -1), codebook)
    keys = entries.reshape(*words.shape[:-1], head_dim).astype(q.dtype)
    return q @ mx.repeat(keys, q.shape[-3] // heads, axis=-3).swapaxes(-1, -2)


def _nearest(x: mx.array, codebook: mx.array) -> mx.array:
    """Indices [n] of the entries [entries, sub_dim] nearest to the rows x [n, sub_dim]."""
    # In units of a power of two near each row's or the codebook's largest element no square or product overflows or
    # vanishes, and nothing is rounded.
    x = x if x.dtype == mx.float64 else x.astype(mx.float32)
    codebook = codebook.astype(x.dtype)
    unit = _power_of_two(mx.max(mx.abs(codebook)))
    row_unit = mx.maximum(_power_of_two(mx.max(mx.abs(x), axis=-1, keepdims=True)), unit)
    codebook = codebook / unit
    half_norms = mx.sum(codebook * codebook, axis=-1, keepdims=True) / 2
    rows = mx.concatenate([x / row_unit, -unit / row_unit], axis=-1)
    table = mx.concatenate([codebook, half_norms], axis=-1)
    grouped = on_cpu() and table.shape[0] >= _GROUPED_FROM and table.shape[0] % _GROUP == 0
    rows, table = (mx.contiguous(rows.T), table) if grouped else (rows, mx.contiguous(table.T))
    step = max(1, (_BLOCK_SCORES if on_cpu() else _BLOCK_SCORES_GPU) // codebook.shape[0])
    parts = []
    for start in range(0, x.shape[0], step):
        block = slice(start, start + step)
        part = _largest_by_groups(rows[:, block], table) if grouped else _largest(rows[block], table)
        mx.eval(part)  # the block's scores are freed before the next one's are made
        parts.append(part)
    return mx.concatenate(parts)


def _largest(rows: mx.array, table: mx.array) -> mx.array:
    """Rows [n, d] and table [d, entries] to indices [n]."""
    return mx.argmax(rows @ table, axis=-1)


def _largest_by_groups(columns: mx.array, table: mx.array) -> mx.array:
    """As `_largest`, transposed: a maximum over rows of a matrix is a vector operation, an argmax isn't."""
    scores = (table @ columns).reshape(-1, _GROUP, columns.shape[1])
    group = mx.argmax(mx.max(scores, axis=1), axis=0)
    within = mx.argmax(mx.take_along_axis(scores, group[None, None], axis=0)[0], axis=0)
    return group * _GROUP + within


def _power_of_two(x: mx.array) -> mx.array:
    """The power of two at or below each x >= 0, float32; at least the smallest normal number."""
    exponent = x.astype(mx.float32).view(mx.uint32) & 0x7F800000
    return mx.maximum(exponent.view(mx.float32), _NORMAL_MIN)
