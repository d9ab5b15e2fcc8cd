"""Small launches of vector quantisation's kernels, with what they must give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from tqcli.kernels.bit_pack.reference import pack_bits
from tqcli.kernels.runtime.case import Case, Outputs, close, exactly
from tqcli.kernels.vector_quant import reference
from tqcli.kernels.vector_quant.launch import (
    dequantise_launch,
    quantise_launch,
    scores_launch,
    tables_launch,
)

Array = np.ndarray[Any, np.dtype[Any]]
_FLOAT32_ERROR = 1e-6
"""Of a squared distance, in terms of the squared norms."""


def cases() -> Iterator[Case]:
    """Sub-vectors of every size in use, codebooks up to 4,096 entries, one of all heads and one a head."""
    for heads, n, sub_dim, entries, split, dtype in (
        (1, 7, 2, 256, False, mx.float32),
        (1, 3, 2, 4096, True, mx.float16),
        (3, 63, 4, 16, False, mx.bfloat16),
        (1, 5, 4, 1000, True, mx.float32),
        (1, 130, 8, 256, False, mx.float16),
        (2, 9, 8, 257, True, mx.bfloat16),
        (1, 1, 8, 4096, True, mx.float32),
        (1, 31, 16, 300, False, mx.float32),
        (1, 6, 16, 300, True, mx.bfloat16),
        (1, 1, 1, 3, True, mx.float32),
    ):
        book = (heads, entries, sub_dim) if heads > 1 else (entries, sub_dim)
        yield _quantise(_normal(heads, n, sub_dim).astype(dtype), _normal(*book).astype(mx.bfloat16), split)
    for split in (False, True):
        yield _quantise(mx.array([[[0.0, 0.0], [0.0, 5.0], [-3.0, 1.0]]]), mx.array([[1.0, 0], [-1.0, 0]] * 200), split)
        yield _quantise(_extremes(), _normal(40, 4), split)
        yield _quantise(_normal(1, 9, 8) * 1e-30, _normal(70, 8) * 1e-30, split)
    for heads, n, sub_dim, entries in ((1, 7, 2, 256), (3, 63, 4, 16), (2, 5, 8, 4096), (1, 100, 16, 300)):
        codes = np.random.default_rng(n).integers(0, entries, (heads, n))
        book = (heads, entries, sub_dim) if heads > 1 else (entries, sub_dim)
        yield _dequantise(mx.array(codes.astype(np.uint8 if entries <= 256 else np.uint16)), _normal(*book))
    for heads, books, queries, tokens, d, sub_dim, bits in (
        (1, 1, 1, 1, 64, 8, 8),
        (2, 2, 3, 63, 64, 8, 4),
        (4, 2, 7, 7, 80, 4, 5),
        (1, 1, 9, 300, 96, 8, 6),
        (2, 1, 2, 5, 128, 8, 12),
        (1, 1, 14, 33, 32, 2, 7),
    ):
        yield from _scores(heads, books, queries, tokens, d, sub_dim, bits)


@dataclass(frozen=True)
class NearlyNearest:
    """Differs where a code is another one though its entry is clearly farther away.

    rows [heads, n, sub_dim], books [heads, entries, sub_dim]: float64. Outputs are those of `quantise_launch`.
    """

    rows: Array
    books: Array

    @staticmethod
    def of(x: mx.array, codebook: mx.array) -> NearlyNearest:
        """For sub-vectors x [heads, n, sub_dim] and one codebook or one a head."""
        return NearlyNearest(_wide(x), np.broadcast_to(_wide(codebook), (x.shape[0], *codebook.shape[-2:])))

    def __call__(self, outputs: Outputs, expected: Outputs) -> str | None:
        got, wanted = outputs[0], expected[0]
        if got.shape != wanted.shape:
            return f"shape {got.shape}, not {wanted.shape}"
        for head, i in np.argwhere(got != wanted):
            row, book = self.rows[head, i], self.books[head]
            code, right = int(got[head, i]), int(wanted[head, i])
            if code >= len(book):
                return f"code {code} at {[int(head), int(i)]}, not {right}: there are {len(book)} entries"
            apart = [float(np.sum((row - book[c]) ** 2)) for c in (code, right)]
            size = np.sum(row**2) + np.sum(book**2, axis=-1).max()
            if not abs(apart[0] - apart[1]) <= _FLOAT32_ERROR * size:
                return f"code {code} at {[int(head), int(i)]}, not {right}: {apart[0]:.7g} away, not {apart[1]:.7g}"
        return None

    def boundary_codes(self, outputs: Outputs, expected: Outputs) -> tuple[int, int]:
        """How many codes differ, and of how many."""
        return int(np.sum(outputs[0] != expected[0])), outputs[0].size


def _quantise(x: mx.array, codebook: mx.array, split: bool) -> Case:
    def expected() -> list[mx.array]:
        return [reference.vector_quantise(x if codebook.ndim == 3 else x[0], codebook).reshape(x.shape[:-1])]

    return Case("vector_quant", quantise_launch(x, codebook, split), expected, NearlyNearest.of(x, codebook))


def _dequantise(codes: mx.array, codebook: mx.array) -> Case:
    return Case(
        "vector_quant",
        dequantise_launch(codes, codebook),
        lambda: [reference.vector_dequantise(codes, codebook).reshape(*codes.shape, -1)],
        exactly,
    )


def _scores(heads: int, books: int, queries: int, tokens: int, d: int, sub_dim: int, bits: int) -> Iterator[Case]:
    q, parts = _normal(heads, queries, d), d // sub_dim
    codebook = _normal(books, 1 << bits, sub_dim).astype(mx.bfloat16)
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (heads, tokens, parts))
    words = pack_bits(mx.array(codes.astype(np.uint8 if bits <= 8 else np.uint16)), bits)
    launch = tables_launch(q, codebook)
    blocks, at_once = launch.output_shapes[0][1], launch.output_shapes[0][-1]
    padded = mx.pad(q, [(0, 0), (0, blocks * at_once - queries), (0, 0)])
    sub_queries = padded.reshape(heads, blocks, at_once, parts, sub_dim).transpose(0, 1, 3, 2, 4)
    entries = mx.concatenate([codebook.astype(mx.float32)] * (heads // books))[:, None, None]
    tables = mx.contiguous(entries @ sub_queries.swapaxes(-1, -2))
    yield Case("vector_quant", launch, lambda: [tables], close(rtol=1e-5, atol=1e-5))
    wide = mx.concatenate([codebook] * (heads // books))
    yield Case(
        "vector_quant",
        scores_launch(tables, words, queries, bits),
        lambda: [reference.vector_scores(q, words, wide, bits)],
        close(rtol=1e-5, atol=1e-4),
    )


def _extremes() -> mx.array:
    """Sub-vectors far larger and smaller than a codebook, infinity and NaN: [1, 6, 4]."""
    x = np.array(_normal(1, 6, 4))
    x[0] *= np.array([1e37, 1e30, 1e-30, 1e-37, 1, 1], dtype=np.float32)[:, None]
    x[0, 4, 2], x[0, 5, 1] = np.inf, np.nan
    return mx.array(x)


def _normal(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(shape).standard_normal(shape).astype(np.float32))


def _wide(x: mx.array) -> Array:
    return np.array(x.astype(mx.float32)).astype(np.float64)
