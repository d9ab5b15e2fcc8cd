"""Attention measures against their definitions in float64, written out query by query."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.base import create_causal_mask

from tqcli.codecs.context import LayerContext
from tqcli.codecs.identity import Identity
from tqcli.metrics.attention import AttentionDistortion, ExactAttention, attention_outputs, measure_attention, visible
from tqcli.metrics.heads import concatenate, pool

Array = np.ndarray[Any, Any]


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


def by_definition(exact: Array, coded: Array, v: Array, w: Array, mask: Array, k: int) -> dict[str, Array]:
    """Per head, from exact and coded logits [heads, queries, tokens] and values [kv_heads, tokens, dim]."""
    heads, queries, _ = exact.shape
    sums = {name: np.zeros(heads) for name in ("error", "energy", "kl", "cov", "var", "coded_var", "overlap", "wide")}
    for h in range(heads):
        kv = h // (heads // len(v))
        for t in range(queries):
            seen = mask[t]
            a, b = exact[h, t, seen].astype(np.float64), coded[h, t, seen].astype(np.float64)
            p, q = softmax(a), softmax(b)
            o, u = p @ v[kv, seen].astype(np.float64), q @ w[kv, seen].astype(np.float64)
            sums["error"][h] += ((o - u) ** 2).sum()
            sums["energy"][h] += (o**2).sum()
            sums["kl"][h] += (p * np.log(p / q)).sum()
            sums["cov"][h] += ((a - a.mean()) * (b - b.mean())).sum()
            sums["var"][h] += ((a - a.mean()) ** 2).sum()
            sums["coded_var"][h] += ((b - b.mean()) ** 2).sum()
            if seen.sum() > k:
                sums["wide"][h] += 1
                sums["overlap"][h] += len(set(np.argsort(-a)[:k]) & set(np.argsort(-b)[:k])) / k
    return sums


def tensors(
    heads: tuple[int, int], queries: int, tokens: int, head_dim: int, seed: int
) -> tuple[mx.array, mx.array, mx.array]:
    keys = mx.random.split(mx.random.key(seed), 3)
    shapes = ((heads[0], queries), (heads[1], tokens), (heads[1], tokens))
    q, k, v = (mx.random.normal((*s, head_dim), key=key) for s, key in zip(shapes, keys, strict=True))
    return q, k, v


def positions(tokens: int) -> Array:
    return np.unique(np.linspace(0, tokens - 1, min(tokens, 9)).astype(np.int32))


@settings(max_examples=30)
@given(
    heads=st.sampled_from([(9, 3), (14, 2), (6, 6)]),
    tokens=st.sampled_from([1, 7, 63]),
    head_dim=st.sampled_from([64, 80, 96]),
    window=st.sampled_from([None, 1, 5, 32]),
    top_k=st.sampled_from([1, 3, 10]),
    noise=st.sampled_from([1e-3, 0.1, 1.0]),
    dtype=st.sampled_from([mx.float32, mx.bfloat16]),
    seed=st.integers(0, 100),
)
def test_definitions(
    heads: tuple[int, int],
    tokens: int,
    head_dim: int,
    window: int | None,
    top_k: int,
    noise: float,
    dtype: mx.Dtype,
    seed: int,
) -> None:
    mask = visible(positions(tokens), tokens, window)
    q, k, v = (x.astype(dtype) for x in tensors(heads, len(mask), tokens, head_dim, seed))
    exact = ExactAttention.of(q, k, v, mask, head_dim**-0.5, top_k)
    key = mx.random.split(mx.random.key(seed + 1000), 2)
    coded = exact.logits + noise * mx.random.normal(exact.logits.shape, key=key[0])
    decoded = v + noise * mx.random.normal(v.shape, key=key[1])
    found = exact.compare(coded, attention_outputs(coded, decoded, mask))

    q64, k64 = (np.array(x.astype(mx.float32)).astype(np.float64) for x in (q, k))
    logits = np.einsum("hqd,htd->hqt", q64, np.repeat(k64, heads[0] // heads[1], axis=0)) * head_dim**-0.5
    values = np.array(v.astype(mx.float32))
    expected = by_definition(logits, np.array(coded), values, np.array(decoded), mask, top_k)
    assert found.error == pytest.approx(expected["error"], rel=1e-3)
    assert found.energy == pytest.approx(expected["energy"], rel=1e-5)
    assert found.kl == pytest.approx(expected["kl"], rel=5e-3, abs=1e-12)
    assert found.covariance == pytest.approx(expected["cov"], rel=1e-4, abs=1e-9)
    assert found.exact_variance == pytest.approx(expected["var"], rel=1e-4, abs=1e-9)
    assert found.coded_variance == pytest.approx(expected["coded_var"], rel=1e-4, abs=1e-9)
    assert found.overlap == pytest.approx(expected["overlap"], abs=1e-9)
    assert found.overlap_queries.tolist() == expected["wide"].tolist()
    assert found.queries.tolist() == [len(mask)] * heads[0]

    assert found.attention_error == pytest.approx(found.error.sum() / found.energy.sum())
    assert found.attention_kl == pytest.approx(found.kl.sum() / found.queries.sum())
    per_head = [head.logit_correlation for head in found.per_head()]
    if tokens > 1 and window != 1:
        spread = np.sqrt(expected["var"] * expected["coded_var"])
        assert per_head == pytest.approx(expected["cov"] / spread, abs=1e-5)
    assert found.logit_correlation == pytest.approx(np.mean(per_head))
    if expected["wide"].any():
        assert found.topk_overlap == pytest.approx(expected["overlap"].sum() / expected["wide"].sum())
    else:
        assert found.topk_overlap is None


@pytest.mark.parametrize(("heads", "tokens"), [((9, 3), 63), ((14, 2), 7), ((6, 6), 1)])
def test_the_identity_codec_loses_nothing_at_all(heads: tuple[int, int], tokens: int) -> None:
    mask = visible(positions(tokens), tokens)
    q, k, v = (x.astype(mx.bfloat16) for x in tensors(heads, len(mask), tokens, 80, 3))
    ctx = LayerContext(0, "keys", 80, *heads, scale=0.125, cache_dtype="bfloat16", capture_dtype="bfloat16")
    codec = Identity()
    k_enc, v_enc = codec.encode(k, ctx), codec.encode(v, ctx)
    found = ExactAttention.of(q, k, v, mask, ctx.scale).compare(
        codec.scores(q, k_enc, ctx) * ctx.scale, codec.attend(q, k_enc, codec, v_enc, mx.array(mask), ctx)
    )
    assert (found.attention_error, found.attention_kl) == (0, 0)
    assert found.logit_correlation == pytest.approx(1, abs=1e-12)
    assert found.topk_overlap == (1 if tokens > 10 else None)


@pytest.mark.parametrize("window", [None, 16])
def test_a_constant_added_to_a_query_s_logits_changes_nothing(window: int | None) -> None:
    mask = visible(positions(63), 63, window)
    rng = np.random.default_rng(0)
    # Multiples of 1/64 stay exact in float32 when a power of two is added.
    exact, coded = (np.round(rng.standard_normal((2, len(mask), 63)) * 64) / 64 for _ in range(2))
    constants = 2.0 ** rng.integers(3, 10, (2, len(mask), 1))
    outputs = mx.zeros((2, len(mask), 4))
    p, q, shifted = (mx.array(x.astype(np.float32)) for x in (exact, coded, coded + constants))
    plain, moved = (measure_attention(p, x, outputs, outputs, mask) for x in (q, shifted))
    for name, value in vars(plain).items():
        assert getattr(moved, name) == pytest.approx(value, rel=1e-12), name
    only_moved = measure_attention(p, p + mx.array(constants.astype(np.float32)), outputs, outputs, mask)
    assert only_moved.kl == pytest.approx([0, 0], abs=1e-12)
    assert (only_moved.logit_correlation, only_moved.topk_overlap) == (pytest.approx(1, abs=1e-12), 1)


def two_keys(exact: tuple[float, float], coded: tuple[float, float], top_k: int = 1) -> AttentionDistortion:
    outputs = mx.ones((1, 1, 1))
    p, q = (mx.array(x)[None, None] for x in (exact, coded))
    return measure_attention(p, q, outputs, 3 * outputs, np.ones((1, 2), dtype=bool), top_k)


def test_two_keys_in_closed_form() -> None:
    third = two_keys((0.0, 0.0), (0.0, float(np.log(3))))  # p = 1/2, 1/2 and q = 1/4, 3/4
    assert third.attention_kl == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert third.attention_error == 4
    assert third.logit_correlation == 0  # only the coded logits vary
    opposite = two_keys((0.0, 1.0), (1.0, 0.0))
    assert opposite.attention_kl == pytest.approx(np.tanh(0.5))  # (p1 - p0) * (l1 - l0), p1 - p0 = tanh(1/2)
    assert opposite.logit_correlation == pytest.approx(-1)
    assert opposite.topk_overlap == 0
    assert two_keys((2.0, 2.0), (5.0, 5.0)).logit_correlation == 1  # neither varies
    assert two_keys((0.0, 1.0), (1.0, 0.0), top_k=2).topk_overlap is None


def test_small_perturbations_give_half_their_variance_under_the_weights() -> None:
    """KL(p || q) is half the variance of m - l under p, to second order: 1e-8 and less is told from rounding."""
    rng = np.random.default_rng(1)
    exact = rng.standard_normal((1, 5, 100)).astype(np.float32)
    coded = (exact + 1e-4 * rng.standard_normal(exact.shape)).astype(np.float32)
    p = np.stack([softmax(row) for row in exact[0].astype(np.float64)])
    d = (coded.astype(np.float64) - exact)[0]
    expected = 0.5 * ((p * d**2).sum(-1) - (p * d).sum(-1) ** 2).sum()
    outputs = mx.zeros((1, 5, 2))
    found = measure_attention(mx.array(exact), mx.array(coded), outputs, outputs, np.ones((5, 100), dtype=bool))
    assert found.kl.sum() == pytest.approx(expected, rel=1e-2)


def test_single_visible_key() -> None:
    mask = visible([0, 4], 5, window=1)
    q, k, v = tensors((4, 2), 2, 5, 8, 0)
    found = ExactAttention.of(q, k, v, mask, 1.0, top_k=1).compare(
        mx.random.normal((4, 2, 5), key=mx.random.key(9)), mx.repeat(v, 2, axis=0)[:, mx.array([0, 4])]
    )
    assert (found.attention_error, found.attention_kl, found.logit_correlation) == (0, 0, 1)
    assert found.topk_overlap is None


@pytest.mark.parametrize("size", [1e4, 1e18, 1e38, 1e-40])
def test_extreme_logits_stay_finite(size: float) -> None:
    mask = visible(positions(63), 63)
    rng = np.random.default_rng(2)
    exact, coded = (mx.array((rng.uniform(-1, 1, (3, len(mask), 63)) * size).astype(np.float32)) for _ in range(2))
    v = mx.random.normal((3, 63, 8), key=mx.random.key(0))
    found = measure_attention(exact, coded, attention_outputs(exact, v, mask), attention_outputs(coded, v, mask), mask)
    for name, value in vars(found).items():
        assert np.isfinite(value).all(), name
    assert np.isfinite([found.attention_error, found.attention_kl]).all()
    assert -1 <= found.logit_correlation <= 1
    if size == 1e4:  # all weight on one key: KL is the coded logits' distance from their largest
        a, b = (np.where(mask, np.array(x).astype(np.float64), -np.inf) for x in (exact, coded))
        expected = sum(
            (softmax(p) * (np.where(np.isinf(q), 0, q.max() - q))).sum()
            for p, q in zip(a.reshape(-1, 63), b.reshape(-1, 63), strict=True)
        )
        assert found.kl.sum() == pytest.approx(expected, rel=1e-3)


def test_of_equal_logits_the_first_are_the_largest() -> None:
    exact = mx.array([[[5.0, 4.0, 3.0, 2.0, 1.0]]])
    coded = mx.array([[[1.0, 7.0, 1.0, 1.0, 1.0]]])  # the two largest: keys 1 and 0
    mask, outputs = np.ones((1, 5), dtype=bool), mx.ones((1, 1, 1))
    assert measure_attention(exact, coded, outputs, outputs, mask, top_k=2).topk_overlap == 1
    flat = measure_attention(exact, mx.zeros((1, 1, 5)), outputs, outputs, mask, top_k=3)
    assert flat.topk_overlap == 1
    assert measure_attention(exact[..., ::-1], mx.zeros((1, 1, 5)), outputs, outputs, mask, 2).topk_overlap == 0


@pytest.mark.parametrize(("tokens", "window"), [(1, None), (7, None), (63, None), (7, 1), (63, 5), (63, 63), (63, 99)])
def test_visible_is_mlx_lm_s_mask(tokens: int, window: int | None) -> None:
    theirs = np.array(create_causal_mask(tokens, window_size=window))
    assert (visible(np.arange(tokens), tokens, window) == theirs).all()
    sampled = positions(tokens)
    assert (visible(mx.array(sampled), tokens, window) == theirs[sampled]).all()
    offset = np.array(create_causal_mask(2, offset=tokens, window_size=window))
    assert (visible([tokens, tokens + 1], tokens + 2, window) == offset).all()


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_outputs_are_mlx_s_attention(window: int | None, dtype: mx.Dtype) -> None:
    mask = visible(positions(63), 63, window)
    q, k, v = (x.astype(dtype) for x in tensors((14, 2), len(mask), 63, 64, 5))
    exact = ExactAttention.of(q, k, v, mask, 0.2)
    wide = (x.astype(mx.float32)[None] for x in (q, k, v))
    theirs = mx.fast.scaled_dot_product_attention(*wide, scale=0.2, mask=mx.array(mask))[0]
    assert exact.outputs.dtype == mx.float32
    assert np.array(exact.outputs) == pytest.approx(np.array(theirs), abs=1e-5)


def test_windows_pool_to_what_they_are_together() -> None:
    rng = np.random.default_rng(4)
    p, q, o, u = (mx.array(rng.standard_normal((3, 8, 30)).astype(np.float32)) for _ in range(4))
    mask = visible(np.arange(20, 28), 30)
    whole = measure_attention(p, q, o, u, mask)
    parts = [measure_attention(p[:, s], q[:, s], o[:, s], u[:, s], mask[s]) for s in (slice(0, 3), slice(3, 8))]
    pooled = pool(parts)
    for name, value in vars(whole).items():
        assert getattr(pooled, name) == pytest.approx(value, rel=1e-12), name
    heads = whole.per_head()
    assert vars(concatenate(heads)).keys() == vars(whole).keys()
    assert concatenate(heads).topk_overlap == whole.topk_overlap
    with pytest.raises(ValueError, match="3 and 1 heads"):
        pool([whole, heads[0]])


def test_no_queries_and_no_tokens() -> None:
    q, k, v = mx.zeros((4, 0, 8)), mx.zeros((2, 0, 8)), mx.zeros((2, 0, 8))
    exact = ExactAttention.of(q, k, v, visible([], 0), 1.0)
    found = exact.compare(exact.logits, exact.outputs)
    assert (found.attention_error, found.attention_kl, found.logit_correlation) == (0, 0, 1)
    assert found.topk_overlap is None


def test_what_does_not_go_together_is_refused() -> None:
    q, k, v = tensors((4, 2), 3, 5, 8, 0)
    mask = visible([1, 2, 3], 5)
    exact = ExactAttention.of(q, k, v, mask, 1.0)
    with pytest.raises(ValueError, match=r"coded logits \[4, 3, 4\] should be \[4, 3, 5\]"):
        exact.compare(exact.logits[..., :4], exact.outputs)
    with pytest.raises(ValueError, match="query 1 sees no key"):
        attention_outputs(exact.logits, v, mask & np.array([[True], [False], [True]]))
    with pytest.raises(ValueError, match="it must be bool"):
        ExactAttention(exact.logits, exact.outputs, mask.astype(np.float32))
    with pytest.raises(ValueError, match="top_k is 0"):
        ExactAttention(exact.logits, exact.outputs, mask, top_k=0)
    with pytest.raises(ValueError, match="4 query heads can't share 3 KV heads"):
        attention_outputs(exact.logits, mx.zeros((3, 5, 8)), mask)
    with pytest.raises(ValueError, match="window of 0 tokens"):
        visible([1], 5, window=0)
