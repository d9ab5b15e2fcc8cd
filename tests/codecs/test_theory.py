"""turboquant-mse reaches the error of the optimal scalar quantiser, and the papers' numbers (arXiv 2504.19874)."""

from functools import cache

import mlx.core as mx
import numpy as np
import pytest
from helpers import context, relative_mse, unit_vectors
from scipy import integrate, special, stats

from tqcli.codecs import lloyd_max
from tqcli.codecs.turboquant_mse import TurboQuantMSE

HEAD_DIMS = (64, 80, 96, 128, 256)
ROTATIONS = ("hadamard", "hadamard2", "hadamard3", "qr")
SEEDS = range(8)
# Lloyd-Max quantisers of the standard normal (Max, 1960), b = 1 to 8, and of the exact density, b = 1 to 4.
NORMAL = (0.363380, 0.117482, 0.034548, 0.009501, 0.002505, 0.000644, 0.000163, 0.0000412)
EXACT = {64: (0.35839, 0.11453, 0.03339, 0.00913), 128: (0.36089, 0.11600, 0.03397, 0.00931)}


@cache
def optimal_distortion(head_dim: int, bits: int) -> float:
    """Lloyd's algorithm on a coordinate x of a random unit vector, (x + 1) / 2 ~ Beta((d-1)/2, (d-1)/2).

    Cell masses come from the incomplete beta function, first moments from their closed form, the final error from
    numerical integration over each cell: nothing of the code under test.
    """
    a = (head_dim - 1) / 2
    beta = stats.beta(a, a, loc=-1, scale=2)
    levels = beta.ppf((np.arange(2**bits) + 0.5) / 2**bits)
    normaliser = special.gamma(head_dim / 2) / np.sqrt(np.pi) / special.gamma((head_dim - 1) / 2)

    def upper_moment(x: np.ndarray) -> np.ndarray:
        return normaliser * (1 - x**2) ** a / (2 * a)

    for _ in range(3000):
        edges = np.concatenate([[-1.0], (levels[1:] + levels[:-1]) / 2, [1.0]])
        levels = -np.diff(upper_moment(edges)) / np.diff(beta.cdf(edges))
    edges = np.concatenate([[-1.0], (levels[1:] + levels[:-1]) / 2, [1.0]])
    error = sum(
        integrate.quad(lambda x, c=c: (x - c) ** 2 * beta.pdf(x), low, high, epsabs=1e-12)[0]
        for c, low, high in zip(levels, edges[:-1], edges[1:], strict=True)
    )
    return float(error * head_dim)


@pytest.mark.parametrize("head_dim", sorted(EXACT))
def test_integration_agrees_with_the_table(head_dim: int) -> None:
    for bits, value in enumerate(EXACT[head_dim], start=1):
        assert optimal_distortion(head_dim, bits) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_codebook_is_optimal(head_dim: int, bits: int) -> None:
    assert lloyd_max.distortion(head_dim, bits) == pytest.approx(optimal_distortion(head_dim, bits), rel=1e-6)


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_codebook_tends_to_the_normal_one(bits: int) -> None:
    rounding = 6e-8 if bits == 8 else 6e-7  # of the published table
    assert lloyd_max.distortion(1_000_000, bits) == pytest.approx(NORMAL[bits - 1], abs=rounding, rel=0)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("rotation", ROTATIONS)
def test_relative_mse_is_within_two_percent_of_the_optimum(head_dim: int, rotation: str) -> None:
    ctx = context(head_dim, "values")
    for bits in (1, 2, 3, 4):
        codecs = [TurboQuantMSE(bits, "plain", rotation, seed) for seed in SEEDS]  # type: ignore[arg-type]
        errors = [relative_mse(codec, unit_vectors(head_dim, 4096, codec.seed), ctx) for codec in codecs]
        assert np.mean(errors) == pytest.approx(optimal_distortion(head_dim, bits), rel=0.02), bits


def sparse_vectors(head_dim: int, ones: int) -> np.ndarray:
    """Every one-hot vector, or 512 with two entries of random sign."""
    if ones == 1:
        return np.eye(head_dim, dtype=np.float32)
    rng = np.random.default_rng(head_dim)
    x = np.zeros((512, head_dim), dtype=np.float32)
    for row in x:
        row[rng.choice(head_dim, ones, replace=False)] = rng.choice([-1.0, 1.0], ones)
    return x


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("rotation", ["qr", "hadamard3"])
@pytest.mark.parametrize("ones", [1, 2])
def test_sparse_vectors_are_coded_as_well_as_random_ones(head_dim: int, rotation: str, ones: int) -> None:
    x, ctx = sparse_vectors(head_dim, ones), context(head_dim, "values")
    for bits in (1, 2, 3, 4):
        errors = [relative_mse(TurboQuantMSE(bits, "plain", rotation, s), x, ctx) for s in SEEDS]  # type: ignore[arg-type]
        assert np.mean(errors) <= 1.10 * optimal_distortion(head_dim, bits), bits


def test_three_rounds_hold_on_average_over_many_seeds() -> None:
    """At d = 64 the one-hot vectors of one seed share their fate, so that 8 seeds say little: 64 do."""
    x, ctx = sparse_vectors(64, 1), context(64, "values")
    errors = [relative_mse(TurboQuantMSE(4, "plain", "hadamard3", seed), x, ctx) for seed in range(64)]
    assert np.mean(errors) <= 1.10 * optimal_distortion(64, 4)


def test_one_round_has_a_bad_case_that_three_mend() -> None:
    x, ctx = sparse_vectors(128, 1), context(128, "values")
    one = np.mean([relative_mse(TurboQuantMSE(2, "plain", "hadamard", s), x, ctx) for s in SEEDS])
    assert one == pytest.approx(0.255, abs=0.02)


@pytest.mark.parametrize(
    ("bits", "plain", "unbiased"), [(1, 0.363, 0.568), (2, 0.115, 0.131), (3, 0.0342, 0.0353), (4, 0.0093, 0.0094)]
)
def test_unbiased_scale_removes_the_shrinkage_of_inner_products(bits: int, plain: float, unbiased: float) -> None:
    head_dim, ctx = 128, context(128, "values")
    slopes, variances = {}, {}
    for scale in ("plain", "unbiased"):
        at_self, spread = [], []
        for seed in SEEDS:
            x, q = unit_vectors(head_dim, 2048, seed), unit_vectors(head_dim, 2048, seed + 100)
            codec = TurboQuantMSE(bits, scale=scale, seed=seed)  # type: ignore[arg-type]
            decoded = np.array(codec.decode(codec.encode(mx.array(x)[None], ctx), ctx)[0])
            at_self.append(np.mean(np.sum(x * decoded, axis=1)))
            spread.append(head_dim * np.mean(np.sum(q * (decoded - x), axis=1) ** 2))
        slopes[scale], variances[scale] = np.mean(at_self), np.mean(spread)
    assert slopes["plain"] == pytest.approx(1 - optimal_distortion(head_dim, bits), rel=0.01)
    assert slopes["unbiased"] == pytest.approx(1, abs=0.002)
    assert variances["plain"] == pytest.approx(plain, rel=0.05)
    assert variances["unbiased"] == pytest.approx(unbiased, rel=0.05)


@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_theory_of_the_unbiased_scale_is_what_it_gives(head_dim: int, bits: int) -> None:
    ctx = context(head_dim, "values")
    codecs = [TurboQuantMSE(bits, scale="unbiased", seed=seed) for seed in SEEDS]
    errors = [relative_mse(codec, unit_vectors(head_dim, 4096, codec.seed), ctx) for codec in codecs]
    assert np.mean(errors) == pytest.approx(codecs[0].relative_mse_theory(head_dim), rel=0.02)
