"""Checks shapes and ranges of bit packing and calls an implementation."""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.bit_pack import reference

_BITS_AT_MOST = 16


def words_per_row(n: int, bits: int) -> int:
    """32-bit words that hold a row of `n` codes of `bits` bits; the last word is padded with zero bits."""
    return -(-n * bits // 32)


def pack_bits(codes: mx.array, bits: int) -> mx.array:
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
    return reference.pack_bits(codes, bits)


def unpack_bits(words: mx.array, bits: int, n: int) -> mx.array:
    """The inverse of `pack_bits`: uint32 [..., words_per_row(n, bits)] to uint8 [..., n], uint16 from 9 bits on.

    Bits beyond the n codes are ignored. Raises `ValueError` for bits outside 1 to 16, another dtype or width.
    """
    _code_dtype(bits)
    if words.dtype != mx.uint32 or words.ndim < 1:
        raise ValueError(f"words must be uint32 with at least one dimension, not {words.dtype} of shape {words.shape}")
    if words.shape[-1] != words_per_row(n, bits):
        raise ValueError(f"{n} codes of {bits} bits take {words_per_row(n, bits)} words a row, not {words.shape[-1]}")
    return reference.unpack_bits(words, bits, n)


def _code_dtype(bits: int) -> mx.Dtype:
    if not 1 <= bits <= _BITS_AT_MOST:
        raise ValueError(f"bits must be 1 to {_BITS_AT_MOST}, not {bits}")
    return mx.uint8 if bits <= 8 else mx.uint16


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
