"""Checks shapes and ranges of bit packing and calls an implementation."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

from tqcli.kernels.bit_pack import reference
from tqcli.kernels.runtime import Kernel, Launch, chosen, run, too_large

_BITS_AT_MOST = 16
_GROUP = 256
_THREADS_AT_MOST = 1 << 30
_INT32_MAX = 2**31 - 1

PACK = Kernel(
    "bit_pack", Path(__file__).with_name("bit_pack.metal"), ("codes", "sizes"), ("packed",), ("BITS",), ("bits.h",)
)
UNPACK = Kernel(
    "bit_unpack",
    Path(__file__).with_name("bit_unpack.metal"),
    ("packed", "sizes"),
    ("codes",),
    ("T", "BITS"),
    ("bits.h",),
)


def words_per_row(n: int, bits: int) -> int:
    """32-bit words that hold a row of `n` codes of `bits` bits; the last word is padded with zero bits."""
    return -(-n * bits // 32)


def pack_bits(codes: mx.array, bits: int, backend: str | None = None) -> mx.array:
    """Packs `codes` [..., n], each below 2**bits, into uint32 [..., words_per_row(n, bits)].

    Codes are uint8 for up to 8 bits and uint16 for 9 to 16. Code j takes the bits j * bits ... (j + 1) * bits - 1 of
    its row, counted from the lowest bit of word 0, so that a code may lie across two words. Raises `ValueError` for
    bits outside 1 to 16, another dtype or a scalar.
    """
    dtype = _code_dtype(bits)
    if codes.dtype != dtype or codes.ndim < 1:
        raise ValueError(
            f"codes of {bits} bits must be {_name(dtype)} with at least one dimension, "
            f"not {codes.dtype} of shape {codes.shape}"
        )
    n = codes.shape[-1]
    taken = chosen("bit_pack", codes.size, backend, _unsupported(codes.size, n, n, words_per_row(n, bits)))
    return reference.pack_bits(codes, bits) if taken == "mlx" else run(pack_launch(codes, bits), taken)[0]


def unpack_bits(words: mx.array, bits: int, n: int, backend: str | None = None) -> mx.array:
    """The inverse of `pack_bits`: uint32 [..., words_per_row(n, bits)] to uint8 [..., n], uint16 from 9 bits on.

    Bits beyond the n codes are ignored. Raises `ValueError` for bits outside 1 to 16, another dtype or width.
    """
    _code_dtype(bits)
    if words.dtype != mx.uint32 or words.ndim < 1:
        raise ValueError(f"words must be uint32 with at least one dimension, not {words.dtype} of shape {words.shape}")
    if words.shape[-1] != words_per_row(n, bits):
        raise ValueError(f"{n} codes of {bits} bits take {words_per_row(n, bits)} words a row, not {words.shape[-1]}")
    taken = chosen("bit_unpack", words.size, backend, _unsupported(words.size, words.shape[-1], n, n))
    return reference.unpack_bits(words, bits, n) if taken == "mlx" else run(unpack_launch(words, bits, n), taken)[0]


def pack_launch(codes: mx.array, bits: int, threads: int = _THREADS_AT_MOST) -> Launch:
    """The launch that packs `codes`, not empty, by about so many threads at most."""
    *lead, n = codes.shape
    words = words_per_row(n, bits)
    sizes, grid = _by_rows(codes.size // n, n, words, words, threads)
    return Launch(PACK, [codes, sizes], {"BITS": bits}, grid, (_GROUP, 1, 1), [(*lead, words)], [mx.uint32])


def unpack_launch(words: mx.array, bits: int, n: int, threads: int = _THREADS_AT_MOST) -> Launch:
    """The launch that unpacks `words`, not empty, to n codes a row, by about so many threads at most."""
    *lead, width = words.shape
    sizes, grid = _by_rows(words.size // width, n, width, n, threads)
    dtype = _code_dtype(bits)
    return Launch(UNPACK, [words, sizes], {"T": dtype, "BITS": bits}, grid, (_GROUP, 1, 1), [(*lead, n)], [dtype])


def _by_rows(rows: int, n: int, words: int, columns: int, threads: int) -> tuple[mx.array, tuple[int, int, int]]:
    """The input `sizes` (n, words, rows, rows at a time) and the grid, a thread for each column of so many rows."""
    step = _rows_at_once(rows, columns, threads)
    return mx.array([n, words, rows, step], dtype=mx.int32), _grid(step, columns)


def _rows_at_once(rows: int, columns: int, threads: int) -> int:
    return max(1, min(rows, threads // columns))


def _grid(step: int, columns: int) -> tuple[int, int, int]:
    return -(-step * columns // _GROUP) * _GROUP, 1, 1


def _unsupported(size: int, width: int, n: int, columns: int) -> str | None:
    """Why the kernels can't take so many elements in rows of `width`, of n codes, with `columns` threads a row."""
    if size == 0:
        return "there is nothing to do"
    rows = size // width
    if max(rows, n) > _INT32_MAX:
        return "2**31 rows, or codes in a row, or more"
    return too_large(_grid(_rows_at_once(rows, columns, _THREADS_AT_MOST), columns), (_GROUP, 1, 1))


def _code_dtype(bits: int) -> mx.Dtype:
    if not 1 <= bits <= _BITS_AT_MOST:
        raise ValueError(f"bits must be 1 to {_BITS_AT_MOST}, not {bits}")
    return mx.uint8 if bits <= 8 else mx.uint16


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
