"""Rotate-and-quantise against the same steps in NumPy float64."""

import mlx.core as mx
import numpy as np
import pytest

from tqcli.codecs.embedded import embedded_codebook, embedded_thresholds
from tqcli.codecs.lloyd_max import codebook
from tqcli.codecs.rotation import rotation_arrays, rotation_matrix
from tqcli.kernels import (
    has_embedded_scale,
    rotate_quantise,
    rotate_quantise_planes,
    unpack_bits,
    unrotate_dequantise,
    unrotate_dequantise_planes,
)


@pytest.mark.parametrize("head_dim", [64, 72, 80, 96, 128])
@pytest.mark.parametrize("bits", [1, 3, 4, 6])
def test_codes_are_those_of_numpy_but_at_decision_boundaries(head_dim: int, bits: int) -> None:
    rotation = rotation_matrix(rotation_arrays("hadamard", head_dim, 0), head_dim)
    levels = np.array(codebook(head_dim, bits))
    x = np.random.default_rng(bits).standard_normal((3, 63, head_dim)).astype(np.float32) * 7
    codes, _ = rotate_quantise(mx.array(x), rotation, mx.array(levels, dtype=mx.float32), bits, False)
    got = np.array(unpack_bits(codes, bits, head_dim))
    y = x.astype(np.float64) @ np.array(rotation, dtype=np.float64).T
    y /= np.sqrt(np.mean(y**2, axis=-1, keepdims=True))
    thresholds = (levels[1:] + levels[:-1]) / 2
    expected = np.searchsorted(thresholds, y)
    differs = got != expected
    distance = np.abs(y[..., None] - thresholds).min(axis=-1)
    assert np.all(distance[differs] < 1e-5)
    assert differs.mean() < 1e-3


@pytest.mark.parametrize(
    ("head_dim", "bits", "embedded"), [(80, 1, True), (80, 3, True), (80, 2, False), (128, 3, False)]
)
def test_the_scale_takes_the_slack_of_a_row_where_there_is_room(head_dim: int, bits: int, embedded: bool) -> None:
    assert has_embedded_scale(head_dim, bits) is embedded
    rotation = rotation_matrix(rotation_arrays("qr", head_dim, 0), head_dim)
    levels = mx.array(codebook(head_dim, bits), dtype=mx.float32)
    x = mx.random.normal((2, 7, head_dim), key=mx.random.key(0))
    codes, scales = rotate_quantise(x, rotation, levels, bits, True)
    assert (scales is None) is embedded
    decoded = unrotate_dequantise(codes, scales, rotation, levels, bits)
    assert decoded.shape == x.shape
    assert mx.mean((decoded - x) ** 2).item() < mx.mean(x**2).item()


def test_blocks_of_rows_give_what_single_rows_give() -> None:
    rotation = rotation_matrix(rotation_arrays("hadamard", 64, 0), 64)
    levels = mx.array(codebook(64, 4), dtype=mx.float32)
    x = mx.random.normal((5000, 64), key=mx.random.key(1))
    together, scales = rotate_quantise(x, rotation, levels, 4, False)
    assert scales is not None
    for row in (0, 4095, 4096, 4999):
        alone, scale = rotate_quantise(x[row : row + 1], rotation, levels, 4, False)
        assert scale is not None
        a, b = unpack_bits(alone, 4, 64), unpack_bits(together[row : row + 1], 4, 64)
        assert mx.sum(a != b).item() <= 1  # a value at a boundary may fall either way with the matrix product's shape
        assert mx.allclose(scale.astype(mx.float32), scales[row].astype(mx.float32), rtol=1e-2).item()


@pytest.mark.parametrize("head_dim", [64, 72, 80, 128])
@pytest.mark.parametrize("bits", [(1, 1), (2, 1), (3, 2), (4, 4)])
def test_planes_are_the_upper_and_the_lower_bits_of_the_codes(head_dim: int, bits: tuple[int, int]) -> None:
    rotation = rotation_matrix(rotation_arrays("hadamard", head_dim, 0), head_dim)
    levels = np.array(embedded_codebook(head_dim, *bits))
    thresholds = embedded_thresholds(np.array(codebook(head_dim, bits[0])), levels)
    table, limits = mx.array(levels, dtype=mx.float32), mx.array(thresholds, dtype=mx.float32)
    x = np.random.default_rng(bits).standard_normal((3, 63, head_dim)).astype(np.float32) * 7
    planes, scales = rotate_quantise_planes(mx.array(x), rotation, table, limits, bits, False)
    assert (scales is None) == has_embedded_scale(head_dim, bits[0])
    upper, lower = (np.array(unpack_bits(p, b, head_dim)) for p, b in zip(planes, bits, strict=True))
    y = x.astype(np.float64) @ np.array(rotation, dtype=np.float64).T
    rms = np.sqrt(np.mean(y**2, axis=-1, keepdims=True))
    differs = (upper.astype(int) << bits[1] | lower) != np.searchsorted(thresholds, y / rms)
    distance = np.abs((y / rms)[..., None] - thresholds).min(axis=-1)
    assert np.all(distance[differs] < 1e-5)
    assert differs.mean() < 1e-3
    decoded = unrotate_dequantise_planes(planes, scales, rotation, table, bits)
    expected = rms * (levels[upper.astype(int) << bits[1] | lower] @ np.array(rotation, dtype=np.float64))
    assert np.allclose(np.array(decoded), expected, rtol=0.004, atol=1e-4)  # the scale is a bfloat16


@pytest.mark.parametrize("head_dim", [64, 80])
def test_one_plane_between_midpoints_is_the_plain_operation(head_dim: int) -> None:
    rotation = rotation_matrix(rotation_arrays("hadamard", head_dim, 0), head_dim)
    levels = mx.array(codebook(head_dim, 3), dtype=mx.float32)
    x = mx.random.normal((2, 7, head_dim), key=mx.random.key(2))
    planes, scales = rotate_quantise_planes(x, rotation, levels, (levels[1:] + levels[:-1]) / 2, (3,), True)
    codes, expected = rotate_quantise(x, rotation, levels, 3, True)
    assert len(planes) == 1
    assert mx.array_equal(planes[0], codes).item()
    assert (scales is None) == (expected is None)
    assert scales is None or expected is None or mx.array_equal(scales, expected).item()


def test_no_vectors_give_planes_of_no_rows() -> None:
    levels = mx.array(codebook(64, 3), dtype=mx.float32)
    planes, scales = rotate_quantise_planes(
        mx.zeros((2, 0, 64)), mx.eye(64), levels, (levels[1:] + levels[:-1]) / 2, (2, 1), False
    )
    assert [p.shape for p in planes] == [(2, 0, 4), (2, 0, 2)]
    assert unrotate_dequantise_planes(planes, scales, mx.eye(64), levels, (2, 1)).shape == (2, 0, 64)


def test_wrong_planes_are_refused() -> None:
    x, rotation, levels, limits = mx.zeros((2, 64)), mx.eye(64), mx.zeros((16,)), mx.zeros((15,))
    with pytest.raises(ValueError, match=r"1 to 8 in all.*\(5, 4\)"):
        rotate_quantise_planes(x, rotation, levels, limits, (5, 4), False)
    with pytest.raises(ValueError, match=r"1 to 8 in all.*\(4, 0\)"):
        rotate_quantise_planes(x, rotation, levels, limits, (4, 0), False)
    with pytest.raises(ValueError, match=r"15 thresholds, float32, not .*\(14,\)"):
        rotate_quantise_planes(x, rotation, levels, limits[1:], (2, 2), False)
    with pytest.raises(ValueError, match="2 planes are needed"):
        unrotate_dequantise_planes([mx.zeros((2, 4), dtype=mx.uint32)], None, rotation, levels, (2, 2))


def test_wrong_shapes_are_refused() -> None:
    rotation, levels = mx.eye(64), mx.zeros((16,))
    with pytest.raises(ValueError, match="float array"):
        rotate_quantise(mx.zeros((64,)), rotation, levels, 4, False)
    with pytest.raises(ValueError, match="don't fit"):
        rotate_quantise(mx.zeros((2, 80)), rotation, levels, 4, False)
    with pytest.raises(ValueError, match="rows of 64 codes"):
        unrotate_dequantise(mx.zeros((2, 7), dtype=mx.uint32), None, rotation, levels, 4)
    with pytest.raises(ValueError, match="scales"):
        unrotate_dequantise(mx.zeros((2, 8), dtype=mx.uint32), None, rotation, levels, 4)
