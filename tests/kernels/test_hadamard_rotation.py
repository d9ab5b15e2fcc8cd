"""Quantising by signs and a Hadamard transform is quantising by the matrix that they are."""

import mlx.core as mx
import numpy as np
import pytest

from tqcli.codecs.lloyd_max import codebook
from tqcli.codecs.rotation import rotation_arrays, rotation_matrix
from tqcli.kernels import (
    hadamard_dequantise,
    hadamard_matrix,
    hadamard_quantise,
    has_hadamard,
    rotate_quantise_planes,
    unrotate_dequantise_planes,
)
from tqcli.kernels.hadamard_quant.matrix import core_signs, core_size


def levels_of(head_dim: int, bits: int) -> tuple[mx.array, mx.array]:
    levels = mx.array(codebook(head_dim, bits), dtype=mx.float32)
    return levels, (levels[1:] + levels[:-1]) / 2


def signs_of(head_dim: int, rounds: int) -> mx.array:
    return mx.array(np.random.default_rng(rounds).choice([-1, 1], (rounds, head_dim)).astype(np.int8))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
@pytest.mark.parametrize(("head_dim", "rounds"), [(32, 1), (80, 2), (96, 1), (128, 3)])
@pytest.mark.parametrize("bits", [(3,), (2, 2)])
def test_same_bytes_as_with_the_matrix(dtype: mx.Dtype, head_dim: int, rounds: int, bits: tuple[int, ...]) -> None:
    signs, (levels, limits) = signs_of(head_dim, rounds), levels_of(head_dim, sum(bits))
    x = mx.random.normal((3, 7, head_dim), key=mx.random.key(0)).astype(dtype)
    matrix = hadamard_matrix(signs)
    planes, scales = hadamard_quantise(x, signs, levels, limits, bits, True)
    expected, expected_scales = rotate_quantise_planes(x, matrix, levels, limits, bits, True)
    assert all(mx.array_equal(a, b).item() for a, b in zip(planes, expected, strict=True))
    assert (scales is None) == (expected_scales is None)
    assert scales is None or expected_scales is None or mx.array_equal(scales, expected_scales).item()
    decoded = hadamard_dequantise(planes, scales, signs, levels, bits)
    assert mx.array_equal(decoded, unrotate_dequantise_planes(planes, scales, matrix, levels, bits)).item()
    narrow = hadamard_dequantise(planes, scales, signs, levels, bits, dtype)
    assert narrow.dtype == dtype
    assert mx.array_equal(narrow, decoded.astype(dtype)).item()


@pytest.mark.parametrize("shape", [(1, 1, 64), (3, 1, 64), (1, 7, 64), (3, 7, 64)])
def test_an_offset_is_subtracted_first(shape: tuple[int, ...]) -> None:
    signs, (levels, limits) = signs_of(64, 1), levels_of(64, 4)
    x = mx.random.normal((2, 3, 7, 64), key=mx.random.key(0)).astype(mx.bfloat16)
    offset = mx.random.normal(shape, key=mx.random.key(1)).astype(mx.bfloat16)
    (codes,), scales = hadamard_quantise(x, signs, levels, limits, (4,), False, offset)
    centred = x.astype(mx.float32) - offset.astype(mx.float32)
    (expected,), expected_scales = hadamard_quantise(centred, signs, levels, limits, (4,), False)
    assert scales is not None
    assert expected_scales is not None
    assert mx.array_equal(codes, expected).item()
    assert mx.array_equal(scales, expected_scales).item()


def test_vectors_of_two_dimensions_are_one_head() -> None:
    signs, (levels, limits) = signs_of(64, 1), levels_of(64, 4)
    x, offset = mx.random.normal((7, 64), key=mx.random.key(0)), mx.ones((1, 1, 64))
    (codes,), _ = hadamard_quantise(x, signs, levels, limits, (4,), False, offset)
    (expected,), _ = hadamard_quantise(x - 1, signs, levels, limits, (4,), False)
    assert mx.array_equal(codes, expected).item()


@pytest.mark.parametrize("bits", [2, 3, 6, 8])
def test_vectors_that_are_not_finite_have_no_scale_and_disturb_no_other(bits: int) -> None:
    signs, (levels, limits) = signs_of(64, 1), levels_of(64, bits)
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    x[1, 3], x[3, 0] = np.inf, np.nan
    planes, scales = hadamard_quantise(mx.array(x), signs, levels, limits, (bits,), True)
    assert scales is not None
    assert mx.isnan(scales).tolist() == [False, True, False, True, False]
    decoded = np.array(hadamard_dequantise(planes, scales, signs, levels, (bits,)))
    assert np.isnan(decoded[[1, 3]]).all()
    assert np.isfinite(decoded[[0, 2, 4]]).all()


@pytest.mark.parametrize("head_dim", [1, 2, 12, 28, 40, 64, 80, 96, 112, 256])
def test_the_matrix_is_the_core_times_butterflies(head_dim: int) -> None:
    assert has_hadamard(head_dim)
    m = core_size(head_dim)
    butterflies = np.ones((1, 1))
    while len(butterflies) < head_dim // m:
        butterflies = np.block([[butterflies, butterflies], [butterflies, -butterflies]])
    matrix = np.array(hadamard_matrix(mx.ones((1, head_dim), dtype=mx.int8)))
    for inverse in (False, True):
        rows = np.array(core_signs(m, inverse))
        core = 1 - 2.0 * ((rows[:, None] >> np.arange(m, dtype=np.uint32)) & 1)
        expected = np.kron(core, butterflies) / np.sqrt(head_dim)
        assert np.allclose(matrix.T if inverse else matrix, expected, atol=1e-6)


@pytest.mark.parametrize("head_dim", [72, 120, 576])
def test_sizes_without_a_matrix_are_refused(head_dim: int) -> None:
    levels, limits = levels_of(64, 2)
    with pytest.raises(ValueError, match=f"no Hadamard matrix of d = {head_dim}"):
        hadamard_quantise(mx.zeros((2, head_dim)), signs_of(head_dim, 1), levels, limits, (2,), False)


def test_wrong_arguments_are_refused() -> None:
    signs, (levels, limits) = signs_of(64, 1), levels_of(64, 3)
    x = mx.zeros((3, 7, 64))
    with pytest.raises(ValueError, match="signs must be int8"):
        hadamard_quantise(x, signs.astype(mx.int32), levels, limits, (3,), False)
    with pytest.raises(ValueError, match=r"signs must be .*\(4, 64\)"):
        hadamard_quantise(x, signs_of(64, 4), levels, limits, (3,), False)
    with pytest.raises(ValueError, match="one or two planes, not 3"):
        hadamard_quantise(x, signs, levels, limits, (1, 1, 1), False)
    with pytest.raises(ValueError, match=r"offset .*\(2, 1, 64\) can't"):
        hadamard_quantise(x, signs, levels, limits, (3,), False, mx.zeros((2, 1, 64)))
    with pytest.raises(ValueError, match=r"offset .*\(64,\) can't"):
        hadamard_quantise(x, signs, levels, limits, (3,), False, mx.zeros((64,)))
    planes, scales = hadamard_quantise(x, signs, levels, limits, (3,), False)
    with pytest.raises(ValueError, match="float64"):
        hadamard_dequantise(planes, scales, signs, levels, (3,), mx.float64)
    with pytest.raises(ValueError, match="levels must be float32 for bits = 3"):
        hadamard_quantise(x, signs, mx.zeros((8,), dtype=mx.float64), limits, (3,), False)
    with pytest.raises(ValueError, match="7 thresholds, float32, not"):
        hadamard_quantise(x, signs, levels, limits.astype(mx.float16), (3,), False)


def test_planes_and_scales_of_other_vectors_are_refused() -> None:
    """The plain operations would broadcast them, and a kernel would read beyond their ends."""
    signs, (levels, limits) = signs_of(64, 1), levels_of(64, 4)
    planes, scales = hadamard_quantise(mx.zeros((5, 64)), signs, levels, limits, (2, 2), False)
    assert scales is not None
    for wrong in (scales[:1], scales[None], scales.view(mx.uint16)):
        with pytest.raises(ValueError, match=r"scales .* don't fit codes \(5, 4\)"):
            hadamard_dequantise(planes, wrong, signs, levels, (2, 2))
    with pytest.raises(ValueError, match=r"planes \(5, 4\) and \(1, 4\) are not of the same vectors"):
        hadamard_dequantise((planes[0], planes[1][:1]), scales, signs, levels, (2, 2))


def test_no_vectors_give_no_rows() -> None:
    signs, (levels, limits) = signs_of(80, 1), levels_of(80, 3)
    planes, scales = hadamard_quantise(mx.zeros((2, 0, 80)), signs, levels, limits, (3,), False)
    assert planes[0].shape == (2, 0, 8)
    assert hadamard_dequantise(planes, scales, signs, levels, (3,)).shape == (2, 0, 80)


def test_a_codecs_rotation_is_this_matrix() -> None:
    arrays = rotation_arrays("hadamard2", 96, 5)
    assert mx.array_equal(rotation_matrix(arrays, 96), hadamard_matrix(arrays["signs"])).item()
