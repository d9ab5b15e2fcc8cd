"""Measures of predictions against their definitions in float64, and their intervals."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tqcli.metrics.bootstrap import window_draws
from tqcli.metrics.perplexity import (
    KL_PERCENTILES,
    UNITS,
    TokenScores,
    score_logits,
    summarise,
    summarise_baseline,
)

Array = np.ndarray[Any, Any]


def log_softmax(logits: Array) -> Array:
    x = logits.astype(np.longdouble)
    x = x - x.max(axis=1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=1, keepdims=True)))


def some_logits(tokens: int, vocabulary: int, noise: float, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    exact = (4 * rng.normal(size=(tokens, vocabulary))).astype(np.float32)
    coded = (exact + noise * rng.normal(size=exact.shape)).astype(np.float32)
    return exact, coded, rng.integers(0, vocabulary, tokens)


@pytest.mark.parametrize("noise", [1e-5, 1e-3, 0.1, 3.0, 40.0])
@pytest.mark.parametrize(("tokens", "vocabulary"), [(1, 2), (7, 320), (63, 5003)])
def test_scores_are_their_definitions(tokens: int, vocabulary: int, noise: float) -> None:
    exact, coded, targets = some_logits(tokens, vocabulary, noise)
    p, q = log_softmax(exact), log_softmax(coded)
    (scores,) = score_logits(mx.array(exact), [mx.array(coded)], targets)
    at = np.arange(tokens), targets
    np.testing.assert_allclose(scores.nll_exact, -p[at].astype(float), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(scores.nll_coded, -q[at].astype(float), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(scores.kl, (np.exp(p) * (p - q)).sum(axis=1).astype(float), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(scores.delta_p, (np.exp(q[at]) - np.exp(p[at])).astype(float), atol=1e-14)
    np.testing.assert_array_equal(scores.same_top1, exact.argmax(axis=1) == coded.argmax(axis=1))


def test_equal_logits_have_no_divergence_at_all() -> None:
    exact, _, targets = some_logits(40, 3001, 0)
    (scores,) = score_logits(exact, [exact.copy()], targets)
    assert not scores.kl.any()
    assert not scores.delta_p.any()
    assert scores.same_top1.all()
    measures = summarise([scores, scores], [100, 100])
    for name in ("kl_mean", *KL_PERCENTILES, "rms_delta_p", "ppl_delta_percent"):
        assert (measures[name].value, measures[name].low, measures[name].high) == (0, 0, 0)
    assert measures["same_top1"].value == 1
    assert measures["ppl"].value == measures["ppl_base"].value


def test_a_constant_added_to_the_logits_is_no_divergence() -> None:
    exact, _, targets = some_logits(9, 500, 0)
    (scores,) = score_logits(exact.astype(np.float64), [exact.astype(np.float64) + 16], targets)
    assert scores.kl.max() < 1e-14


def test_several_codecs_are_scored_as_each_alone() -> None:
    exact, first, targets = some_logits(21, 700, 0.1)
    second = some_logits(21, 700, 2.0)[1]
    together = score_logits(exact, [first, second], targets)
    for scores, coded in zip(together, (first, second), strict=True):
        (alone,) = score_logits(exact, [coded], targets)
        np.testing.assert_array_equal(scores.kl, alone.kl)


def test_half_precision_logits_are_taken() -> None:
    exact, coded, targets = some_logits(5, 64, 0.5)
    for dtype in (mx.float16, mx.bfloat16):
        a, b = mx.array(exact).astype(dtype), mx.array(coded).astype(dtype)
        (scores,) = score_logits(a, [b], targets)
        widened = [np.array(x.astype(mx.float32)) for x in (a, b)]
        np.testing.assert_array_equal(scores.kl, score_logits(widened[0], [widened[1]], targets)[0].kl)


def test_no_tokens() -> None:
    (scores,) = score_logits(np.zeros((0, 11)), [np.zeros((0, 11))], [])
    assert scores.kl.shape == (0,)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_coded_logits_that_are_no_distribution_count_as_infinitely_far(bad: float) -> None:
    exact, coded, targets = some_logits(6, 50, 0.1)
    coded[2, 7] = bad
    (scores,) = score_logits(exact, [coded], targets)
    assert scores.broken == 1
    assert np.isinf(scores.kl[2]) and np.isinf(scores.nll_coded[2]) and not scores.same_top1[2]
    assert scores.delta_p[2] == -np.exp(-scores.nll_exact[2])
    assert np.isfinite(np.delete(scores.kl, 2)).all()
    measures = summarise([scores, scores], [9, 9])
    assert np.isinf(measures["kl_mean"].value) and np.isinf(measures["ppl"].value)
    assert measures["kl_mean"].low is None


def test_tokens_that_the_model_excludes_add_nothing() -> None:
    exact, coded, targets = some_logits(6, 50, 0.1)
    exact[:, 40:], coded[:, 40:] = -np.inf, -np.inf
    (scores,) = score_logits(exact, [coded], targets % 40)
    (without,) = score_logits(exact[:, :40], [coded[:, :40]], targets % 40)
    np.testing.assert_allclose(scores.kl, without.kl, rtol=1e-12)


def test_what_does_not_go_together_is_refused() -> None:
    exact, coded, targets = some_logits(6, 50, 0.1)
    with pytest.raises(ValueError, match="token 50 is outside the vocabulary of 50"):
        score_logits(exact, [coded], np.full(6, 50))
    with pytest.raises(ValueError, match="coded logits"):
        score_logits(exact, [coded[:, :-1]], targets)
    exact[3, 3] = np.nan
    with pytest.raises(ValueError, match="logits of token 3 are not finite"):
        score_logits(exact, [coded], targets)


def scored(windows: int, tokens: int = 60) -> list[TokenScores]:
    return [score_logits(a, [b], t)[0] for a, b, t in (some_logits(tokens, 90, 0.5, seed) for seed in range(windows))]


@given(st.integers(1, 5), st.integers(1, 40))
def test_values_are_over_all_tokens_of_all_windows(windows: int, tokens: int) -> None:
    parts = scored(windows, tokens)
    every = TokenScores.join(parts)
    measures = summarise(parts, [3 * tokens] * windows)
    assert measures.keys() == UNITS.keys()
    expected = {
        "ppl": np.exp(every.nll_coded.mean()),
        "ppl_base": np.exp(every.nll_exact.mean()),
        "ppl_delta_percent": 100 * (np.exp(every.nll_coded.mean()) / np.exp(every.nll_exact.mean()) - 1),
        "bits_per_byte": every.nll_coded.sum() / np.log(2) / (3 * tokens * windows),
        "kl_mean": every.kl.mean(),
        "rms_delta_p": np.sqrt((every.delta_p**2).mean()),
        "same_top1": every.same_top1.mean(),
        **{name: np.percentile(every.kl, of) for name, of in KL_PERCENTILES.items()},
    }
    for name, value in expected.items():
        assert measures[name].value == pytest.approx(value, rel=1e-9), name


def test_intervals_hold_the_value_and_are_those_of_pooled_draws() -> None:
    parts = scored(12)
    measures = summarise(parts, [200] * 12)
    for name, measure in measures.items():
        assert measure.low is not None and measure.high is not None
        assert measure.low <= measure.value <= measure.high, name
    draws = window_draws(12)
    assert draws is not None
    pooled = [TokenScores.join([parts[w] for w in np.repeat(np.arange(12), draw)]) for draw in draws]
    for name, values in {
        "kl_p99": [np.percentile(of.kl, 99) for of in pooled],
        "ppl_delta_percent": [100 * np.expm1((of.nll_coded - of.nll_exact).mean()) for of in pooled],
    }.items():
        assert (measures[name].low, measures[name].high) == pytest.approx(tuple(np.percentile(values, [2.5, 97.5])))


def test_windows_of_unequal_length_count_by_their_tokens() -> None:
    long, short = scored(2)[0], scored(2, 10)[1]
    measures = summarise([long, short], [200, 30])
    assert measures["kl_mean"].value == pytest.approx(TokenScores.join([long, short]).kl.mean())
    assert measures["kl_p50"].value == pytest.approx(np.median(TokenScores.join([long, short]).kl))


def test_one_window_has_no_interval() -> None:
    measures = summarise(scored(1), [100])
    assert all(measure.low is None and measure.high is None for measure in measures.values())


def test_bits_per_byte_by_hand() -> None:
    """Each of 4 tokens has probability 1/8: 3 bits each, over 6 bytes."""
    nll = np.full(4, np.log(8))
    measures = summarise_baseline([nll], [6])
    assert measures["ppl"].value == pytest.approx(8)
    assert measures["bits_per_byte"].value == pytest.approx(2)


def test_nothing_to_average_over_is_refused() -> None:
    with pytest.raises(ValueError, match="0 windows"):
        summarise([], [])
    with pytest.raises(ValueError, match="1 windows with 2 byte counts"):
        summarise(scored(1), [1, 1])
