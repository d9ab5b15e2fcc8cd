"""Each sub-vector gets the nearest entry of the codebook, whatever the sizes and scales."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tqcli.kernels import vector_dequantise, vector_quantise

ENTRIES = (1, 2, 3, 16, 255, 256, 257, 1000, 1024, 1056, 4096)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def distances(x: np.ndarray, codebook: np.ndarray) -> np.ndarray:
    """Squared, [n, entries], in float64."""
    return np.sum((x[:, None].astype(np.float64) - codebook[None].astype(np.float64)) ** 2, axis=-1)


def assert_nearest(x: np.ndarray, codebook: np.ndarray, codes: np.ndarray) -> None:
    """Within float32 rounding: of entries so nearly as far, any will do."""
    apart = distances(x, codebook)
    least = apart.min(axis=1)
    chosen = apart[np.arange(len(x)), codes.astype(int)]
    size = np.sum(x.astype(np.float64) ** 2, axis=1) + np.sum(codebook.astype(np.float64) ** 2, axis=1).max()
    assert np.all(chosen - least <= 1e-6 * size)
    assert np.mean(codes == apart.argmin(axis=1)) > 0.9


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("sub_dim", [1, 2, 8, 16])
def test_the_nearest_entry(entries: int, sub_dim: int) -> None:
    x, codebook = normal(501, sub_dim), normal(entries, sub_dim, seed=1)
    codes = vector_quantise(mx.array(x), mx.array(codebook))
    assert codes.dtype == (mx.uint8 if entries <= 256 else mx.uint16)
    assert_nearest(x, codebook, np.array(codes))
    assert np.array_equal(np.array(vector_dequantise(codes, mx.array(codebook))), codebook[np.array(codes)])


def test_more_sub_vectors_than_one_block_of_scores() -> None:
    x, codebook = normal(3001, 4), normal(4096, 4, seed=1)
    codes = np.array(vector_quantise(mx.array(x), mx.array(codebook)))
    alone = [int(vector_quantise(mx.array(x[i : i + 1]), mx.array(codebook)).item()) for i in range(0, 3001, 250)]
    assert codes[::250].tolist() == alone
    assert_nearest(x[-200:], codebook, codes[-200:])


@given(
    entries=st.sampled_from(ENTRIES),
    sub_dim=st.integers(1, 9),
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_any_leading_shape(entries: int, sub_dim: int, shape: list[int], seed: int) -> None:
    x, codebook = normal(*shape, sub_dim, seed=seed), mx.array(normal(entries, sub_dim, seed=seed + 1))
    codes = vector_quantise(mx.array(x), codebook)
    assert codes.shape == tuple(shape)
    decoded = vector_dequantise(codes, codebook)
    assert decoded.shape == x.shape
    assert decoded.dtype == mx.float32
    if x.size:
        assert mx.array_equal(codes.flatten(), vector_quantise(mx.array(x).reshape(-1, sub_dim), codebook)).item()


@pytest.mark.parametrize("entries", [7, 256, 1024])
def test_a_codebook_a_head(entries: int) -> None:
    x, codebook = mx.array(normal(3, 63, 4)), mx.array(normal(3, entries, 4, seed=1))
    codes = vector_quantise(x, codebook)
    decoded = vector_dequantise(codes, codebook)
    for head in range(3):
        assert mx.array_equal(codes[head], vector_quantise(x[head], codebook[head])).item()
        assert mx.array_equal(decoded[head], codebook[head][codes[head]]).item()
    assert vector_quantise(mx.zeros((3, 0, 4)), codebook).shape == (3, 0)


@pytest.mark.parametrize("entries", [4, 256, 2048])
def test_entries_are_coded_as_themselves(entries: int) -> None:
    codebook = mx.array(normal(entries, 8))
    assert vector_quantise(codebook, codebook).tolist() == list(range(entries))


@pytest.mark.parametrize("copies", [2, 600])
def test_a_tie_goes_to_the_lower_entry(copies: int) -> None:
    codebook = mx.array([[1.0, 0.0], [-1.0, 0.0]] * copies)  # x = 0 and x = (0, 5) lie half-way
    x = mx.array([[0.0, 0.0], [0.0, 5.0], [-3.0, 1.0], [3.0, 1.0]])
    assert vector_quantise(x, codebook).tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-18, 1e18, 1e30, 1e38])
@pytest.mark.parametrize("entries", [200, 1024])
def test_any_scale_that_float32_holds(scale: float, entries: int) -> None:
    x, codebook = np.clip(normal(500, 8), -3, 3), np.clip(normal(entries, 8, seed=1), -3, 3)
    ordinary = np.array(vector_quantise(mx.array(x), mx.array(codebook)))
    codes = np.array(vector_quantise(mx.array(x) * scale, mx.array(codebook) * scale))
    assert np.mean(codes == ordinary) > 0.995


def test_vectors_far_larger_or_smaller_than_the_codebook() -> None:
    codebook = normal(256, 8)
    directions = normal(200, 8, seed=1)
    far = np.array(vector_quantise(mx.array(directions * 1e37), mx.array(codebook)))
    assert np.mean(far == np.argmax(directions @ codebook.T, axis=1)) > 0.99
    near = np.array(vector_quantise(mx.array(directions * 1e-37), mx.array(codebook)))
    assert set(near.tolist()) == {int(np.argmin(np.sum(codebook**2, axis=1)))}


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_other_float_dtypes_are_computed_in_float32(dtype: mx.Dtype) -> None:
    x, codebook = mx.array(normal(300, 4)).astype(dtype), mx.array(normal(256, 4, seed=1)).astype(dtype)
    wide = vector_quantise(x.astype(mx.float32), codebook.astype(mx.float32))
    assert mx.array_equal(vector_quantise(x, codebook), wide).item()


def test_wrong_arrays_are_refused() -> None:
    codebook = mx.zeros((4, 8))
    with pytest.raises(ValueError, match="int32"):
        vector_quantise(mx.zeros((3, 8), dtype=mx.int32), codebook)
    with pytest.raises(ValueError, match="7 elements"):
        vector_quantise(mx.zeros((3, 7)), codebook)
    with pytest.raises(ValueError, match=r"\(8,\)"):
        vector_quantise(mx.zeros((8,)), codebook)
    with pytest.raises(ValueError, match=r"\[2, n, sub_dim\]"):
        vector_quantise(mx.zeros((3, 5, 8)), mx.zeros((2, 4, 8)))
    with pytest.raises(ValueError, match="65536 entries, not 70000"):
        vector_quantise(mx.zeros((3, 1)), mx.zeros((70000, 1)))
    with pytest.raises(ValueError, match=r"\(0, 8\)"):
        vector_quantise(mx.zeros((3, 8)), mx.zeros((0, 8)))
    with pytest.raises(ValueError, match="uint32"):
        vector_dequantise(mx.zeros((3,), dtype=mx.uint32), codebook)
    with pytest.raises(ValueError, match=r"\[2, n\]"):
        vector_dequantise(mx.zeros((3, 5), dtype=mx.uint8), mx.zeros((2, 4, 8)))
