"""A code is the number of thresholds strictly below the element, for any number of thresholds."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tqcli.codecs.lloyd_max import codebook
from tqcli.kernels import scalar_dequantise, scalar_quantise


def midpoints(head_dim: int, bits: int) -> np.ndarray:
    levels = np.array(codebook(head_dim, bits), dtype=np.float32)
    return (levels[1:] + levels[:-1]) / 2


@pytest.mark.parametrize("bits", range(1, 9))
def test_equals_binary_search_even_at_the_thresholds(bits: int) -> None:
    thresholds = midpoints(80, bits)
    rng = np.random.default_rng(bits)
    near = [thresholds, np.nextafter(thresholds, np.float32(9)), np.nextafter(thresholds, np.float32(-9))]
    far = np.array([0.0, -0.0, 1e-30, 50.0, -50.0, np.inf, -np.inf], dtype=np.float32)
    y = np.concatenate([*near, far, rng.standard_normal(5000).astype(np.float32)])
    codes = np.array(scalar_quantise(mx.array(y), mx.array(thresholds)))
    assert np.array_equal(codes, np.searchsorted(thresholds, y, side="left"))


@given(bits=st.integers(1, 8), head_dim=st.sampled_from([32, 80, 96, 576]), seed=st.integers(0, 50))
def test_the_level_found_is_the_nearest(bits: int, head_dim: int, seed: int) -> None:
    levels = np.array(codebook(head_dim, bits), dtype=np.float32)
    y = np.random.default_rng(seed).standard_normal((7, 63)).astype(np.float32) * 2
    codes = scalar_quantise(mx.array(y), mx.array(midpoints(head_dim, bits)))
    found = np.array(scalar_dequantise(codes, mx.array(levels)))
    nearest = np.abs(y[..., None] - levels).min(axis=-1)
    assert np.allclose(np.abs(y - found), nearest, atol=1e-6)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("bits", [3, 7])
def test_narrow_floats_are_compared_as_float32(dtype: mx.Dtype, bits: int) -> None:
    thresholds = midpoints(80, bits)
    y = mx.array(np.concatenate([thresholds, np.random.default_rng(0).standard_normal(500)])).astype(dtype)
    codes = np.array(scalar_quantise(y, mx.array(thresholds)))
    assert np.array_equal(codes, np.searchsorted(thresholds, np.array(y.astype(mx.float32)), side="left"))


@pytest.mark.parametrize("bits", range(1, 9))
def test_nan_has_code_0(bits: int) -> None:
    y = mx.array([np.nan, -np.nan, 0.5])
    codes = scalar_quantise(y, mx.array(midpoints(80, bits)))
    assert codes.tolist() == [0, 0, int(np.searchsorted(midpoints(80, bits), 0.5))]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_levels_are_read_in_the_dtype_asked_for(dtype: mx.Dtype) -> None:
    levels = mx.array(codebook(80, 3), dtype=mx.float32)
    codes = mx.array([[0, 7, 3]], dtype=mx.uint8)
    read = scalar_dequantise(codes, levels, dtype)
    assert read.dtype == dtype
    assert mx.array_equal(read, levels[codes].astype(dtype)).item()


def test_thresholds_too_close_for_a_table_still_work() -> None:
    thresholds = np.sort(np.concatenate([[0.0, 1e-7], np.linspace(1, 60, 61)])).astype(np.float32)
    y = np.array([-1.0, 5e-8, 2e-7, 30.5, 99.0], dtype=np.float32)
    codes = np.array(scalar_quantise(mx.array(y), mx.array(thresholds)))
    assert codes.tolist() == np.searchsorted(thresholds, y).tolist()


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="int32"):
        scalar_quantise(mx.zeros((4,), dtype=mx.int32), mx.zeros((3,)))
    with pytest.raises(ValueError, match="float32, not"):
        scalar_quantise(mx.zeros((4,)), mx.zeros((3,), dtype=mx.float16))
    with pytest.raises(ValueError, match="thresholds"):
        scalar_quantise(mx.zeros((4,)), mx.zeros((256,)))
    with pytest.raises(ValueError, match="uint8"):
        scalar_dequantise(mx.zeros((4,)), mx.zeros((2,)))
    with pytest.raises(ValueError, match="int8"):
        scalar_dequantise(mx.zeros((4,), dtype=mx.uint8), mx.zeros((2,)), mx.int8)
