"""What goes into the kernels besides codes: queries turned to where keys were coded, tables, and back again."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import numpy as np

from tqcli.kernels.attend.readers import Levels, Offset, Reader, Vectors
from tqcli.kernels.runtime.kernel import unused

FINE = 64
"""Positions that one entry of the coarse table of turns covers."""


def coded_queries(q: mx.array, reader: Reader) -> mx.array:
    """Queries q' of q [vectors, rows, head_dim]: <q', y> is the inner product with what y stands for, but for offsets.

    float32 [vectors, rows, dims].
    """
    q = q if reader.gains is None else q * reader.gains.astype(mx.float32)
    return q if reader.matrix is None else q @ reader.matrix.T


def offset_terms(q: mx.array, offset: Offset | None) -> mx.array:
    """float32 [vectors, rows, 2 * pairs + 1]: a_0, b_0, a_1, ... and c of <q, offset at t>, the same for every token:

    the sum of a_i cos(t f_i) + b_i sin(t f_i), and c.
    """
    if offset is None:
        return mx.zeros((*q.shape[:2], 1))
    mean = offset.mean.astype(mx.float32)
    pairs = len(offset.frequencies)
    dims = 2 * pairs
    constant = q[..., dims:] @ mean[..., dims:].swapaxes(-1, -2) if dims < q.shape[-1] else mx.zeros((*q.shape[:2], 1))
    if not pairs:
        return constant
    (q1, q2), (m1, m2) = (_pairs(x, dims, offset.interleaved) for x in (q, mean))
    turning = mx.stack([q1 * m1 + q2 * m2, q2 * m1 - q1 * m2], axis=-1)
    return mx.concatenate([turning.reshape(*q.shape[:2], dims), constant], axis=-1)


def products(queries: mx.array, vectors: Vectors) -> mx.array:
    """Every query's products with every entry: [vectors, rows, dims / sub_dim, entries], from `coded_queries`."""
    n, rows, dims = queries.shape
    parts = dims // vectors.sub_dim
    book = vectors.codebook.astype(mx.float32)
    flat = queries.reshape(n, rows * parts, vectors.sub_dim) @ book.swapaxes(-1, -2)
    return flat.reshape(n, rows, parts, book.shape[-2])


def restored(sums: mx.array, shares: mx.array, reader: Reader) -> mx.array:
    """Weighted sums of y [vectors, rows, dims] and of the weights [vectors, rows, 1] to sums of the vectors."""
    x = sums if reader.matrix is None else sums @ reader.matrix
    x = x if reader.gains is None else x * reader.gains.astype(mx.float32)
    return x if reader.offset is None else x + shares * reader.offset.mean.astype(mx.float32)


def key_table(reader: Reader) -> mx.array:
    """The levels of a key reader of kind `Levels`, and behind them those of its sketch."""
    assert isinstance(reader.packed, Levels)
    levels = reader.packed.levels
    return levels if reader.sketch is None else mx.concatenate([levels, reader.sketch.levels])


def turn_tables(frequencies: tuple[float, ...], tokens: int) -> tuple[mx.array, mx.array]:
    """Cosine and sine of t * f_i for t = 0, 64, 128, ... up to `tokens`, and for t = 0 ... 63.

    float32 [coarse, pairs, 2] and [pairs, 64, 2], the angles taken in float64; unused ones without frequencies.
    """
    if not frequencies:
        return unused(), unused()
    coarse = 1 << max(0, -(-tokens // FINE) - 1).bit_length()  # few sizes, so that the tables are made seldom
    return _turn_tables(frequencies, coarse)


@lru_cache(maxsize=64)
def _turn_tables(frequencies: tuple[float, ...], coarse: int) -> tuple[mx.array, mx.array]:
    f = np.array(frequencies)
    far, near = np.arange(coarse)[:, None] * FINE * f, f[:, None] * np.arange(FINE)
    of = [np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32) for angles in (far, near)]
    return mx.array(of[0]), mx.array(of[1])


def _pairs(x: mx.array, dims: int, interleaved: bool) -> tuple[mx.array, mx.array]:
    if interleaved:
        return x[..., 0:dims:2], x[..., 1:dims:2]
    return x[..., : dims // 2], x[..., dims // 2 : dims]
