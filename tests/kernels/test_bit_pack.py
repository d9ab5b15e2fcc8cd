"""Packed rows are the codes' bits, one after the other, lowest first."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tqcli.kernels import pack_bits, unpack_bits, words_per_row

WIDTHS = (1, 5, 7, 31, 32, 33, 63, 64, 72, 80, 96, 128, 576)


def code_type(bits: int) -> type[np.uint8] | type[np.uint16]:
    return np.uint8 if bits <= 8 else np.uint16


def as_number(row: list[int], bits: int) -> int:
    return sum(value << (index * bits) for index, value in enumerate(row))


@pytest.mark.parametrize("bits", range(1, 17))
@pytest.mark.parametrize("n", WIDTHS)
def test_row_is_one_little_endian_number(bits: int, n: int) -> None:
    codes = np.random.default_rng(n).integers(0, 2**bits, (2, 3, n)).astype(code_type(bits))
    words = pack_bits(mx.array(codes), bits)
    assert words.dtype == mx.uint32
    assert words.shape == (2, 3, words_per_row(n, bits))
    rows = np.array(words).reshape(6, -1).tolist()
    for row, packed in zip(codes.reshape(6, n).tolist(), rows, strict=True):
        assert as_number(packed, 32) == as_number(row, bits)
    back = unpack_bits(words, bits, n)
    assert back.dtype == mx.array(codes).dtype
    assert mx.array_equal(back, mx.array(codes)).item()


@pytest.mark.parametrize("bits", range(1, 17))
@pytest.mark.parametrize("n", [1, 7, 31, 80])
def test_the_largest_code_fills_its_bits_and_no_other(bits: int, n: int) -> None:
    codes = mx.full((1, n), 2**bits - 1, dtype=mx.array(code_type(bits)(0)).dtype)
    words = pack_bits(codes, bits)
    assert as_number(words[0].tolist(), 32) == 2 ** (n * bits) - 1
    assert mx.array_equal(unpack_bits(words, bits, n), codes).item()


@given(bits=st.integers(1, 16), rows=st.integers(0, 4), n=st.integers(0, 130), seed=st.integers(0, 99))
def test_round_trip(bits: int, rows: int, n: int, seed: int) -> None:
    codes = mx.array(np.random.default_rng(seed).integers(0, 2**bits, (rows, n)).astype(code_type(bits)))
    back = unpack_bits(pack_bits(codes, bits), bits, n)
    assert back.shape == codes.shape
    assert mx.array_equal(back, codes).item()


def test_nothing_beyond_the_last_word() -> None:
    assert [words_per_row(80, bits) for bits in range(1, 9)] == [3, 5, 8, 10, 13, 15, 18, 20]
    assert [words_per_row(8, bits) for bits in range(9, 17)] == [3, 3, 3, 3, 4, 4, 4, 4]


@pytest.mark.parametrize("bits", [0, 17, -1])
def test_bits_out_of_range_are_named(bits: int) -> None:
    with pytest.raises(ValueError, match=f"not {bits}"):
        pack_bits(mx.zeros((4,), dtype=mx.uint8), bits)


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        pack_bits(mx.zeros((4,)), 2)
    with pytest.raises(ValueError, match="uint8"):
        pack_bits(mx.zeros((4,), dtype=mx.uint16), 8)
    with pytest.raises(ValueError, match="codes of 9 bits must be uint16"):
        pack_bits(mx.zeros((4,), dtype=mx.uint8), 9)
    with pytest.raises(ValueError, match="uint32"):
        unpack_bits(mx.zeros((4,)), 2, 4)
    with pytest.raises(ValueError, match="take 2 words"):
        unpack_bits(mx.zeros((3,), dtype=mx.uint32), 4, 16)
