"""Inner-product measures against their definitions in float64."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tqcli.metrics.heads import concatenate, pool
from tqcli.metrics.inner_products import InnerProducts, measure_inner_products, norms


def measured(
    heads: tuple[int, int], queries: int, tokens: int, head_dim: int, noise: float, seed: int, zero: bool = False
) -> tuple[InnerProducts, dict[str, float], list[np.ndarray]]:
    """What is found, what the definitions give, and the normalised errors of each head."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((heads[0], queries, head_dim)).astype(np.float32)
    k = (3 * rng.standard_normal((heads[1], tokens, head_dim))).astype(np.float32)
    if zero:
        q[0, 0], k[-1, -1] = 0, 0
    s = np.einsum("hqd,htd->hqt", q, np.repeat(k, heads[0] // heads[1], axis=0))
    t = (0.9 * s + noise * rng.standard_normal(s.shape)).astype(np.float32)
    mask = rng.random((queries, tokens)) < 0.8
    q_norms, k_norms = norms(mx.array(q)), norms(mx.array(k))
    found = measure_inner_products(mx.array(s), mx.array(t), q_norms, k_norms, mask, head_dim)
    errors, scores, estimates = [], [], []
    for h in range(heads[0]):
        n = np.outer(np.linalg.norm(q[h], axis=-1), np.linalg.norm(k[h // (heads[0] // heads[1])], axis=-1))
        use = mask & (n > 0)
        scores.append(s[h][use] / n[use])
        estimates.append(t[h][use] / n[use])
        errors.append(estimates[-1] - scores[-1])
    e, a, b = (np.concatenate(x).astype(np.float64) for x in (errors, scores, estimates))
    values = {"pairs": len(e)}
    if len(e):
        values |= {"bias": e.mean(), "slope": (a * b).sum() / (a * a).sum(), "variance_d": head_dim * e.var()}
    return found, values, errors


@settings(max_examples=30)
@given(
    heads=st.sampled_from([(9, 3), (14, 2), (6, 6)]),
    tokens=st.sampled_from([1, 7, 63]),
    head_dim=st.sampled_from([64, 80, 96]),
    noise=st.sampled_from([0.01, 1.0]),
    zero=st.booleans(),
    seed=st.integers(0, 100),
)
def test_definitions(heads: tuple[int, int], tokens: int, head_dim: int, noise: float, zero: bool, seed: int) -> None:
    found, expected, errors = measured(heads, min(tokens, 9), tokens, head_dim, noise, seed, zero)
    assert found.pairs.tolist() == [len(e) for e in errors]
    assert found.error == pytest.approx([e.sum() for e in errors], rel=1e-3, abs=1e-6)
    assert found.scaled_square == pytest.approx([head_dim * (e**2).sum() for e in errors], rel=1e-3, abs=1e-9)
    if not expected["pairs"]:
        assert (found.bias, found.slope, found.variance_d) == (None, None, None)
        return
    assert found.bias == pytest.approx(expected["bias"], rel=1e-3, abs=1e-7)
    assert found.slope == pytest.approx(expected["slope"], rel=1e-5)
    assert found.variance_d == pytest.approx(expected["variance_d"], rel=1e-3, abs=1e-9)


def test_known_estimates() -> None:
    q, k = mx.array([[[3.0, 0.0], [0.0, 2.0]]]), mx.array([[[4.0, 0.0], [0.0, 5.0]]])
    exact = q @ k.swapaxes(-1, -2)  # normalised: the identity matrix
    mask = np.ones((2, 2), dtype=bool)

    def measure(coded: mx.array) -> InnerProducts:
        return measure_inner_products(exact, coded, norms(q), norms(k), mask, head_dim=2)

    same = measure(exact)
    assert (same.bias, same.slope, same.variance_d) == (0, 1, 0)
    half = measure(exact / 2)  # errors: -1/2 twice, 0 twice
    assert (half.bias, half.slope) == (-0.25, 0.5)
    assert half.variance_d == pytest.approx(2 * (1 / 8 - 1 / 16))
    shifted = measure(exact + mx.array([[12.0, 15.0], [8.0, 10.0]]))  # + ||q|| ||k||: a bias without variance
    assert shifted.bias == pytest.approx(1)
    assert shifted.variance_d == pytest.approx(0, abs=1e-12)


def test_random_errors_of_unit_vectors_have_the_variance_that_they_were_given() -> None:
    """An error independent of the query, of relative size D, has d * variance D (TurboQuant, section 3)."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 200, 64)), rng.standard_normal((1, 300, 64))
    coded = k + np.sqrt(0.1) * rng.standard_normal(k.shape)
    s, t = (mx.array((q @ x[0].T).astype(np.float32)) for x in (k, coded))
    q_norms, k_norms = (norms(mx.array(x.astype(np.float32))) for x in (q, k))
    found = measure_inner_products(s, t, q_norms, k_norms, np.ones((200, 300), dtype=bool), 64)
    assert found.variance_d == pytest.approx(0.1, rel=0.05)
    assert found.slope == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_is_accepted(dtype: mx.Dtype) -> None:
    s = mx.random.normal((4, 3, 5), key=mx.random.key(0)).astype(dtype)
    ones = mx.ones((4, 3), dtype=dtype), mx.ones((2, 5), dtype=dtype)
    found = measure_inner_products(s, s, *ones, mx.ones((3, 5), dtype=mx.bool_), 64)
    assert (found.bias, found.slope, found.variance_d) == (0, 1, 0)


@pytest.mark.parametrize("size", [1e-40, 1e38])
def test_norms_of_extreme_vectors(size: float) -> None:
    x = mx.array(np.full((1, 2, 64), size, dtype=np.float32))
    assert norms(x) == pytest.approx(np.full((1, 2), 8 * size), rel=1e-4)
    assert norms(mx.zeros((2, 0, 64))).shape == (2, 0)


def test_windows_and_layers_pool() -> None:
    parts = [measured((6, 2), 5, 20, 64, 1.0, seed)[0] for seed in (1, 2)]
    together = pool(parts)
    assert together.pairs.tolist() == (parts[0].pairs + parts[1].pairs).tolist()
    assert together.bias == pytest.approx(concatenate(parts).bias)
    assert [head.pairs.tolist() for head in together.per_head()] == [[n] for n in together.pairs]
    other = measured((14, 2), 5, 20, 128, 1.0, 3)[0]
    both = concatenate([together, other])
    assert len(both.pairs) == 20
    assert both.variance_d is not None
    with pytest.raises(ValueError, match="6 and 14 heads"):
        pool([together, other])
    for nothing in (pool, concatenate):
        with pytest.raises(ValueError, match="nothing"):
            nothing([])


def test_what_does_not_go_together_is_refused() -> None:
    s, mask = mx.zeros((4, 3, 5)), np.ones((3, 5), dtype=bool)
    with pytest.raises(ValueError, match=r"query norms \[4, 2\] should be \[4, 3\]"):
        measure_inner_products(s, s, np.ones((4, 2)), np.ones((2, 5)), mask, 64)
    with pytest.raises(ValueError, match="4 query heads can't share 3 KV heads"):
        measure_inner_products(s, s, np.ones((4, 3)), np.ones((3, 5)), mask, 64)
