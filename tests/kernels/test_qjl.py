"""One-bit sketches against the same steps in NumPy float64."""

import mlx.core as mx
import numpy as np
import pytest

from tqcli.kernels import sketch_scores, sketch_signs, unpack_bits, unsketch


def random_sketch(m: int, d: int) -> mx.array:
    return mx.array(np.random.default_rng([m, d]).standard_normal((m, d)).astype(np.float32))


@pytest.mark.parametrize("m", [1, 7, 33, 64, 100, 256])
@pytest.mark.parametrize("d", [4, 64, 72, 80, 96])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32], ids=str)
def test_signs_and_scales_are_those_of_numpy(m: int, d: int, dtype: mx.Dtype) -> None:
    s = random_sketch(m, d)
    x = (mx.random.normal((2, 7, d), key=mx.random.key(m)) * 7).astype(dtype)
    signs, scales = sketch_signs(x, s)
    assert signs.shape == (2, 7, -(-m // 32))
    assert signs.dtype == mx.uint32
    assert scales.shape == (2, 7)
    assert scales.dtype == mx.bfloat16
    exact = np.array(x.astype(mx.float32), dtype=np.float64)
    projected = exact @ np.array(s, dtype=np.float64).T
    differs = np.array(unpack_bits(signs, 1, m)) != (projected >= 0)
    assert np.all(np.abs(projected[differs]) < 1e-4)
    rms = np.sqrt(np.mean(exact**2, axis=-1))
    assert np.allclose(np.array(scales.astype(mx.float32)), rms, rtol=2**-8)


def test_bits_beyond_the_signs_are_zero() -> None:
    signs, _ = sketch_signs(mx.ones((1, 3, 8)), mx.ones((33, 8)))
    assert np.array(signs).tolist() == [[[0xFFFFFFFF, 1]] * 3]


def test_the_sign_of_zero_is_plus() -> None:
    x = mx.array([[[0.0, 0.0], [-0.0, 0.0], [0.0, 5.0], [0.0, -5.0]]])
    signs, scales = sketch_signs(x, mx.array([[1.0, 0.0], [-1.0, 0.0]]))
    assert np.array(signs).ravel().tolist() == [3, 3, 3, 3]
    assert scales[0, :2].tolist() == [0, 0]


@pytest.mark.parametrize("value", [3e38, 1e30, 1e-30, 1e-38, 1e-40])
def test_signs_do_not_depend_on_the_magnitude(value: float) -> None:
    """float32 holds neither the square of these nor, for the largest, their sum."""
    s = random_sketch(100, 64)
    x = np.random.default_rng(0).choice([-1.0, 1.0], (1, 9, 64)).astype(np.float32)
    expected, _ = sketch_signs(mx.array(x), s)
    signs, scales = sketch_signs(mx.array((x.astype(np.float64) * value).astype(np.float32)), s)
    assert mx.array_equal(signs, expected).item()
    assert np.allclose(np.array(scales.astype(mx.float32)), value, rtol=2**-8, atol=2.0**-133)


def test_a_vector_of_nan_or_infinity_has_a_non_finite_scale() -> None:
    x = mx.array([[[mx.nan, 1.0], [mx.inf, 1.0], [2.0, 2.0]]])
    _, scales = sketch_signs(x, random_sketch(5, 2))
    assert mx.isfinite(scales).tolist() == [[False, False, True]]


@pytest.mark.parametrize(("m", "d"), [(1, 64), (33, 80), (256, 64)])
def test_scores_are_inner_products_with_the_signs(m: int, d: int) -> None:
    s, gain = random_sketch(m, d), 0.37
    x = mx.random.normal((2, 63, d), key=mx.random.key(0))
    q = mx.random.normal((2, 5, d), key=mx.random.key(1)).astype(mx.bfloat16)
    signs, scales = sketch_signs(x, s)
    got = sketch_scores(q, signs, scales, s, gain)
    matrix = np.array(s, dtype=np.float64)
    plus_minus = np.array(unpack_bits(signs, 1, m)) * 2.0 - 1
    vectors = plus_minus @ matrix * gain * np.array(scales.astype(mx.float32))[..., None]
    expected = np.array(q.astype(mx.float32), dtype=np.float64) @ vectors.swapaxes(-1, -2)
    assert got.dtype == mx.float32
    assert np.allclose(np.array(got), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    decoded = np.array(unsketch(signs, scales, s, gain))
    assert np.allclose(decoded, vectors, rtol=1e-5, atol=1e-5 * np.abs(vectors).max())


def test_blocks_of_rows_give_what_single_rows_give() -> None:
    """On a CPU 9,000 rows of 128 signs take several blocks."""
    s = random_sketch(128, 64)
    x = mx.random.normal((3, 3000, 64), key=mx.random.key(1))
    q = mx.random.normal((3, 2, 64), key=mx.random.key(2))
    signs, scales = sketch_signs(x, s)
    scores, decoded = sketch_scores(q, signs, scales, s, 1.0), unsketch(signs, scales, s, 1.0)
    for row in (0, 681, 682, 683, 2047, 2048, 2999):
        one = slice(row, row + 1)
        alone, scale = sketch_signs(x[:, one], s)
        # A projection next to 0 may fall either way with the matrix product's shape.
        assert mx.sum(unpack_bits(alone, 1, 128) != unpack_bits(signs[:, one], 1, 128)).item() <= 1
        assert mx.allclose(scale.astype(mx.float32), scales[:, one].astype(mx.float32), rtol=1e-2).item()
        own = sketch_scores(q, signs[:, one], scales[:, one], s, 1.0)
        assert mx.allclose(own, scores[:, :, one], atol=1e-2, rtol=1e-4).item()
        assert mx.allclose(unsketch(signs[:, one], scales[:, one], s, 1.0), decoded[:, one], atol=1e-3).item()


def test_no_tokens_and_no_queries() -> None:
    s = random_sketch(40, 64)
    signs, scales = sketch_signs(mx.zeros((2, 0, 64)), s)
    assert signs.shape == (2, 0, 2)
    assert scales.shape == (2, 0)
    assert sketch_scores(mx.zeros((2, 5, 64)), signs, scales, s, 1.0).shape == (2, 5, 0)
    assert unsketch(signs, scales, s, 1.0).shape == (2, 0, 64)
    signs, scales = sketch_signs(mx.ones((2, 3, 64)), s)
    assert sketch_scores(mx.zeros((2, 0, 64)), signs, scales, s, 1.0).shape == (2, 0, 3)


def test_wrong_shapes_and_values_are_refused() -> None:
    s = random_sketch(40, 64)
    signs, scales = sketch_signs(mx.ones((2, 3, 64)), s)
    q = mx.zeros((2, 5, 64))
    with pytest.raises(ValueError, match="float array"):
        sketch_signs(mx.zeros((64,)), s)
    with pytest.raises(ValueError, match=r"float32 \[m, 80\]"):
        sketch_signs(mx.zeros((2, 80)), s)
    with pytest.raises(ValueError, match=r"not mlx\.core\.float16"):
        sketch_signs(mx.zeros((2, 64)), s.astype(mx.float16))
    with pytest.raises(ValueError, match="rows of 40 bits"):
        sketch_scores(q, signs[..., :1], scales, s, 1.0)
    with pytest.raises(ValueError, match="scales"):
        sketch_scores(q, signs, scales[:, :2], s, 1.0)
    with pytest.raises(ValueError, match=r"q .*\(3, 5, 64\) doesn't fit signs"):
        sketch_scores(mx.zeros((3, 5, 64)), signs, scales, s, 1.0)
    with pytest.raises(ValueError, match="gain must be finite, not nan"):
        unsketch(signs, scales, s, float("nan"))
