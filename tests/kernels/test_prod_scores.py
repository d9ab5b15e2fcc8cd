"""Scores of two halves are the inner products with what both halves decode to."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from tqcli.kernels import prod_scores, unrotate_dequantise, unsketch
from tqcli.kernels.prod_scores.cases import coded


def normal(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(shape).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize(("d", "bits", "m"), [(64, 2, 64), (80, 3, 100), (80, 1, 48), (96, 5, 33)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (14, 2), (2, 2)])
def test_scores_are_inner_products_with_the_decoded_halves(
    d: int, bits: int, m: int, heads: int, kv_heads: int
) -> None:
    first, left = coded(normal(kv_heads, 7, d), bits, m)
    q = normal(heads, 3, d).astype(mx.bfloat16)
    got = prod_scores(q, first, left)
    decoded = unrotate_dequantise(first.codes, first.scales, first.rotation, first.codebook, bits)
    decoded = decoded + unsketch(left.signs, left.scales, left.sketch, left.gain)
    vectors = np.array(decoded).astype(np.float64).repeat(heads // kv_heads, axis=0)
    expected = np.array(q.astype(mx.float32)) @ vectors.swapaxes(-1, -2)
    assert got.dtype == mx.float32
    assert np.allclose(np.array(got), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_a_batch_is_scored_row_by_row() -> None:
    first, left = coded(normal(2, 3, 63, 64), 3, 64)
    q = normal(2, 9, 1, 64)
    got = prod_scores(q, first, left)
    assert got.shape == (2, 9, 1, 63)
    for row in range(2):
        own = replace(first, codes=first.codes[row], scales=None if first.scales is None else first.scales[row])
        signed = replace(left, signs=left.signs[row], scales=left.scales[row])
        assert mx.allclose(got[row], prod_scores(q[row], own, signed), rtol=1e-5, atol=1e-4).item()


def test_no_tokens() -> None:
    first, left = coded(normal(2, 1, 64), 2, 64)
    first = replace(first, codes=first.codes[:, :0], scales=None if first.scales is None else first.scales[:, :0])
    left = replace(left, signs=left.signs[:, :0], scales=left.scales[:, :0])
    assert prod_scores(normal(4, 3, 64), first, left).shape == (4, 3, 0)


def test_wrong_arrays_are_refused() -> None:
    first, left = coded(normal(2, 5, 64), 2, 64)
    q = normal(4, 3, 64)
    with pytest.raises(ValueError, match=r"q .*\(3, 3, 64\) doesn't fit signs"):
        prod_scores(normal(3, 3, 64), first, left)
    with pytest.raises(ValueError, match="3 bits don't fit a codebook"):
        prod_scores(q, replace(first, bits=3), left)
    with pytest.raises(ValueError, match=r"rotation \(32, 32\)"):
        prod_scores(q, replace(first, rotation=mx.eye(32)), left)
    with pytest.raises(ValueError, match="are not rows of 64 codes of 2 bits"):
        prod_scores(q, replace(first, codes=first.codes[..., 1:]), left)
    with pytest.raises(ValueError, match="scales must be given"):
        prod_scores(q, replace(first, scales=None), left)
    with pytest.raises(ValueError, match="not rows of 64 bits"):
        prod_scores(q, first, replace(left, signs=left.signs[..., 1:]))
    with pytest.raises(ValueError, match="don't fit signs"):
        prod_scores(q, first, replace(left, scales=left.scales[:, 1:]))
    with pytest.raises(ValueError, match="gain must be finite, not inf"):
        prod_scores(q, first, replace(left, gain=float("inf")))
