"""Checks shapes and ranges of bit packing and calls an implementation."""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.bit_pack import reference


def words_per_row(n: int, bits: int) -> int:
    """32-bit words that hold a row of `n` codes of `bits` bits; the last word is padded with zero bits."""
    return -(-n * bits // 32)


def pack_bits(codes: mx.array, bits: int) -> mx.array:
    """Packs uint8 `codes` [..., n], each below 2**bits, into uint32 [..., words_per_row(n, bits)].

    Code j takes the bits j * bits ... (j + 1) * bits - 1 of its row, counted from the lowest bit of word 0, so that a
    code may lie across two words. Raises `ValueError` for bits outside 1 to 8, another dtype or a scalar.
    """
    _check_bits(bits)
    if codes.dtype != mx.uint8 or codes.ndim < 1:
        raise ValueError(f"codes must be uint8 with at least one dimension, not {codes.dtype} of shape {codes.shape}")
    return reference.pack_bits(codes, bits)


def unpack_bits(words: mx.array, bits: int, n: int) -> mx.array:
    """The inverse of `pack_bits`: uint32 [..., words_per_row(n, bits)] to uint8 [..., n].

    Bits beyond the n codes are ignored. Raises `ValueError` for bits outside 1 to 8, another dtype or width.
    """
    _check_bits(bits)
    if words.dtype != mx.uint32 or words.ndim < 1:
        raise ValueError(f"words must be uint32 with at least one dimension, not {words.dtype} of shape {words.shape}")
    if words.shape[-1] != words_per_row(n, bits):
        raise ValueError(f"{n} codes of {bits} bits take {words_per_row(n, bits)} words a row, not {words.shape[-1]}")
    return reference.unpack_bits(words, bits, n)


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"bits must be 1 to 8, not {bits}")
