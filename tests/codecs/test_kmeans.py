"""k-means finds codebooks as good as the known ones, and any input gives some codebook."""

import mlx.core as mx
import numpy as np
import pytest

from tqcli.codecs.kmeans import kmeans
from tqcli.kernels import vector_dequantise, vector_quantise

# Mean squared error an element of N(0, 1) by sub_dim and code_bits: 60 iterations, many samples.
GAUSSIAN = {(8, 8): 0.324, (8, 12): 0.172, (4, 8): 0.098, (4, 12): 0.0266, (2, 8): 0.0080}
SAMPLES, HELD_OUT = 400_000, 100_000


def normal(count: int, sub_dim: int, seed: int) -> mx.array:
    return mx.array(np.random.default_rng([seed, sub_dim]).standard_normal((count, sub_dim)).astype(np.float32))


def error(x: mx.array, codebook: mx.array) -> float:
    return mx.mean((vector_dequantise(vector_quantise(x, codebook), codebook) - x) ** 2).item()


@pytest.mark.parametrize(("sub_dim", "code_bits"), GAUSSIAN)
def test_gaussian_vectors_reach_the_known_error(sub_dim: int, code_bits: int) -> None:
    codebook = kmeans(normal(SAMPLES, sub_dim, 0), 2**code_bits, 60, seed=0, tolerance=0)
    assert error(normal(HELD_OUT, sub_dim, 1), codebook) == pytest.approx(GAUSSIAN[sub_dim, code_bits], rel=0.05)


@pytest.mark.parametrize(("sub_dim", "code_bits"), [(8, 8), (4, 8), (2, 8)])
def test_stopping_early_costs_little(sub_dim: int, code_bits: int) -> None:
    codebook = kmeans(normal(65536, sub_dim, 0), 2**code_bits, 60, seed=0)
    assert error(normal(HELD_OUT, sub_dim, 1), codebook) == pytest.approx(GAUSSIAN[sub_dim, code_bits], rel=0.05)


def test_more_iterations_lower_the_error() -> None:
    x = normal(20_000, 4, 0)
    errors = [error(x, kmeans(x, 64, iterations, 0, tolerance=0)) for iterations in (1, 2, 5, 20)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.95 * errors[0]


def test_separate_clusters_are_found() -> None:
    centres = np.random.default_rng(5).uniform(-100, 100, (16, 3))
    rng = np.random.default_rng(6)
    x = centres[rng.integers(0, 16, 5000)] + 0.01 * rng.standard_normal((5000, 3))
    codebook = np.array(kmeans(mx.array(x.astype(np.float32)), 16, 60, seed=0))
    apart = np.linalg.norm(codebook[:, None] - centres[None], axis=-1)
    assert apart.min(axis=0).max() < 0.01


def test_rare_vectors_far_away_get_entries() -> None:
    """A few large vectors, as attention sinks are, make most of the error until they have entries of their own."""
    x = np.array(normal(20_000, 4, 0))
    x[:20] *= 1000
    codebook = kmeans(mx.array(x), 256, 60, seed=0)
    assert error(mx.array(x[20:]), codebook) < 0.2
    assert error(mx.array(x[:20]), codebook) < 0.05 * float(np.mean(x[:20] ** 2))


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    x = normal(5000, 4, 0)
    first, second, other = (np.array(kmeans(x, 32, 9, seed)) for seed in (3, 3, 4))
    assert first.tobytes() == second.tobytes()
    assert first.tobytes() != other.tobytes()


@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_no_more_vectors_than_entries_are_kept_exactly(count: int) -> None:
    x = normal(count, 3, 0)
    codebook = kmeans(x, 8, 60, 0)
    assert codebook.shape == (8, 3)
    assert mx.array_equal(codebook[:count], x).item()
    assert mx.isfinite(codebook).all().item()


def test_fewer_different_vectors_than_entries() -> None:
    x = mx.array(np.repeat(np.array(normal(5, 3, 0)), 40, axis=0))
    codebook = kmeans(x, 8, 60, 0)
    assert codebook.shape == (8, 3)
    assert error(x, codebook) < 1e-12
    assert not mx.any(kmeans(mx.zeros((100, 3)), 8, 60, 0)).item()


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30, 1e38])
def test_vectors_of_any_finite_size(scale: float) -> None:
    x = mx.clip(normal(3000, 4, 0), -3, 3)
    codebook = np.array(kmeans(x * scale, 16, 20, 0))
    assert np.all(np.isfinite(codebook))
    assert codebook.dtype == np.float32
    relative = error(x, mx.array((codebook.astype(np.float64) / scale).astype(np.float32)))
    assert relative == pytest.approx(error(x, kmeans(x, 16, 20, 0)), rel=0.1)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_other_float_dtypes_are_computed_in_float32(dtype: mx.Dtype) -> None:
    x = normal(2000, 4, 0).astype(dtype)
    assert mx.array_equal(kmeans(x, 16, 5, 0), kmeans(x.astype(mx.float32), 16, 5, 0)).item()
