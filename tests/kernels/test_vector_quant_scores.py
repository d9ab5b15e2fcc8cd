"""Scores by look-up are inner products with the vectors that the codes stand for."""

import mlx.core as mx
import numpy as np
import pytest

from tqcli.kernels import pack_bits, vector_scores


def packed(lead: tuple[int, ...], parts: int, bits: int) -> tuple[np.ndarray, mx.array]:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (*lead, parts))
    return codes, pack_bits(mx.array(codes.astype(np.uint8 if bits <= 8 else np.uint16)), bits)


def normal(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(shape).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize(("sub_dim", "bits", "d"), [(2, 8, 80), (4, 5, 80), (8, 12, 64), (8, 10, 96), (16, 8, 96)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (14, 2), (2, 2)])
@pytest.mark.parametrize("a_head", [False, True])
def test_scores_are_inner_products(sub_dim: int, bits: int, d: int, heads: int, kv_heads: int, a_head: bool) -> None:
    codes, words = packed((kv_heads, 7), d // sub_dim, bits)
    shape = (kv_heads, 1 << bits, sub_dim) if a_head else (1 << bits, sub_dim)
    codebook, q = normal(*shape).astype(mx.bfloat16), normal(heads, 3, d)
    got = vector_scores(q, words, codebook, bits)
    books = np.broadcast_to(np.array(codebook.astype(mx.float32)), (kv_heads, 1 << bits, sub_dim)).astype(np.float64)
    keys = np.stack([book[own].reshape(7, d) for book, own in zip(books, codes, strict=True)])
    expected = np.array(q).astype(np.float64) @ keys.repeat(heads // kv_heads, axis=0).swapaxes(-1, -2)
    assert got.dtype == mx.float32
    assert np.allclose(np.array(got), expected, rtol=1e-5, atol=1e-4)


def test_a_batch_is_scored_row_by_row() -> None:
    _, words = packed((2, 3, 63), 8, 6)
    codebook, q = normal(3, 64, 8), normal(2, 9, 1, 64)
    got = vector_scores(q, words, codebook, 6)
    assert got.shape == (2, 9, 1, 63)
    for row in range(2):
        assert mx.allclose(got[row], vector_scores(q[row], words[row], codebook, 6), rtol=1e-5, atol=1e-5).item()


def test_no_tokens_and_no_queries() -> None:
    codebook = normal(16, 8)
    assert vector_scores(mx.zeros((2, 3, 64)), mx.zeros((1, 0, 1), dtype=mx.uint32), codebook, 4).shape == (2, 3, 0)
    assert vector_scores(mx.zeros((2, 0, 64)), mx.zeros((1, 5, 1), dtype=mx.uint32), codebook, 4).shape == (2, 0, 5)


def test_float64_queries_are_scored_in_float64() -> None:
    _, words = packed((1, 5), 8, 4)
    with mx.stream(mx.cpu):
        assert vector_scores(normal(1, 2, 64).astype(mx.float64), words, normal(16, 8), 4).dtype == mx.float64


def test_wrong_arrays_are_refused() -> None:
    q, words, codebook = mx.zeros((4, 3, 64)), mx.zeros((2, 5, 1), dtype=mx.uint32), mx.zeros((16, 8))
    with pytest.raises(ValueError, match="codes of 5 bits don't fit a codebook of 16 entries"):
        vector_scores(q, words, codebook, 5)
    with pytest.raises(ValueError, match="words must be uint32"):
        vector_scores(q, words.astype(mx.int32), codebook, 4)
    with pytest.raises(ValueError, match=r"q .*\(4, 64\) doesn't fit words"):
        vector_scores(q[:, 0], words, codebook, 4)
    with pytest.raises(ValueError, match="not rows of 128 elements in codes of 4 bits for 8 each"):
        vector_scores(mx.zeros((4, 3, 128)), mx.zeros((2, 5, 1), dtype=mx.uint32), codebook, 4)
    with pytest.raises(ValueError, match="don't agree on the heads"):
        vector_scores(mx.zeros((3, 3, 64)), words, codebook, 4)
    with pytest.raises(ValueError, match="don't agree on the heads"):
        vector_scores(q, words, mx.zeros((3, 16, 8)), 4)
