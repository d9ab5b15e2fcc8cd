"""Packing of small integer codes into 32-bit words, and back."""

from tqcli.kernels.bit_pack.launch import pack_bits, unpack_bits, words_per_row

__all__ = ["pack_bits", "unpack_bits", "words_per_row"]
