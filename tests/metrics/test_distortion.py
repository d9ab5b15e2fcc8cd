"""Distortion measures against their definitions in float64."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tqcli.metrics.bootstrap import ratio_interval
from tqcli.metrics.distortion import measure_distortion, ratio, snr_db


@given(
    heads=st.integers(1, 3),
    tokens=st.integers(1, 63),
    head_dim=st.sampled_from([64, 80, 96]),
    scale=st.sampled_from([1e-20, 1.0, 1e20]),
    seed=st.integers(0, 20),
)
def test_definitions(heads: int, tokens: int, head_dim: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((heads, tokens, head_dim)) * scale).astype(np.float32)
    y = (x * (1 + 0.1 * rng.standard_normal(x.shape))).astype(np.float32)
    found = measure_distortion(mx.array(x), mx.array(y))
    a, b = x.astype(np.float64), y.astype(np.float64)
    error, energy = ((a - b) ** 2).sum(-1), (a**2).sum(-1)
    assert found.relative_mse == pytest.approx(error.sum() / energy.sum(), rel=1e-4)
    assert found.worst == pytest.approx((error / energy).max(-1), rel=1e-3)
    cosine = (a * b).sum(-1) / np.sqrt(energy * (b**2).sum(-1))
    assert found.cosine == pytest.approx(cosine.sum(-1), rel=1e-4)
    assert found.vectors == tokens


def test_identical_and_zero_vectors() -> None:
    x = mx.concatenate([mx.zeros((1, 2, 8)), mx.ones((1, 2, 8))], axis=1)
    same = measure_distortion(x, x)
    assert same.relative_mse == 0
    assert same.cosine.tolist() == [4]
    assert same.worst.tolist() == [0]
    assert measure_distortion(x, x + 1).worst.tolist() == [np.inf]
    assert measure_distortion(x[:, :0], x[:, :0]).relative_mse == 0


def test_what_the_codec_coded_is_what_is_left_after_the_offset() -> None:
    x = mx.random.normal((2, 9, 16), key=mx.random.key(0)) + 5
    found = measure_distortion(x, x, mx.full((2, 1, 16), 5.0), slice(2, 7))
    expected = ((np.array(x)[:, 2:7] - 5.0) ** 2).sum((1, 2))
    assert found.coded_energy == pytest.approx(expected, rel=1e-5)


def test_scalar_helpers() -> None:
    assert ratio(0, 0) == 0
    assert ratio(1, 0) == float("inf")
    assert snr_db(0.01) == pytest.approx(20)
    assert snr_db(0) == float("inf")


def test_the_interval_covers_the_true_ratio_about_95_times_in_100() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        energy = rng.uniform(1, 2, 30)
        error = energy * 0.1 * rng.uniform(0.5, 1.5, 30)
        interval = ratio_interval(error, energy, seed=trial)
        assert interval is not None
        covered += interval[0] <= 0.1 <= interval[1]
    assert 0.88 <= covered / 300 <= 0.99


def test_one_window_has_no_interval() -> None:
    assert ratio_interval(np.array([1.0]), np.array([2.0])) is None
    assert ratio_interval(np.array([1.0, 1.0]), np.array([2.0, 0.0])) is None


def test_one_huge_vector_hides_nothing_of_the_others() -> None:
    x = mx.random.normal((1, 9, 16), key=mx.random.key(1))
    huge = mx.concatenate([mx.full((1, 1, 16), 1e25), x], axis=1)
    alone, beside = (measure_distortion(a, a * 1.1) for a in (x, huge))
    assert beside.cosine == pytest.approx(alone.cosine + 1)
    assert beside.worst == pytest.approx(alone.worst, rel=1e-5)
    changed = measure_distortion(huge, mx.concatenate([huge[:, :1], x * 0], axis=1))
    assert changed.worst.tolist() == [1]
    assert changed.cosine == pytest.approx(1)
