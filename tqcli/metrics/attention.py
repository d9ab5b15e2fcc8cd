"""What coded keys and values do to attention: its weights, its logits and its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.metrics.bootstrap import percentiles, window_draws
from tqcli.metrics.distortion import FloatArray, as_float32
from tqcli.metrics.heads import BoolArray, HeadSums, check_shape, gqa_ratio, pool, ratios

TOP_K = 10
"""How many of the keys with the largest weights `topk_overlap` looks at."""


@dataclass(frozen=True)
class AttentionDistortion(HeadSums):
    """Sums over the measured queries of one layer, per query head: float64 [n_q_heads].

    p and l are the exact weights and logits of a query over the keys that it sees, o its output; q, m and u the coded.
    """

    error: FloatArray
    """Sum of ||o - u||**2."""
    energy: FloatArray
    """Sum of ||o||**2."""
    kl: FloatArray
    """Sum of the Kullback-Leibler divergences of q from p, KL(p || q), in nats."""
    covariance: FloatArray
    """Sum of (l - mean l) * (m - mean m), means over the keys that the query sees: softmax ignores a constant."""
    exact_variance: FloatArray
    """Sum of (l - mean l)**2."""
    coded_variance: FloatArray
    """Sum of (m - mean m)**2."""
    overlap: FloatArray
    """Sum of the shares of the k keys with the largest l that are among the k with the largest m."""
    queries: FloatArray
    """How many queries were measured."""
    overlap_queries: FloatArray
    """How many of them see more than k keys; the overlap is theirs alone."""

    @property
    def attention_error(self) -> float:
        """Sum of ||o - u||**2 over sum of ||o||**2, over all heads."""
        return float(_attention_error(self))

    @property
    def attention_kl(self) -> float:
        """Mean of KL(p || q) in nats, over queries and heads; 0 for no queries."""
        return float(_attention_kl(self))

    @property
    def logit_correlation(self) -> float:
        """Pearson's correlation of l with m within queries, pooled over each head's queries; the mean over heads.

        A head counts 1 where neither logit varies, 0 where only one does.
        """
        return float(_logit_correlation(self))

    @property
    def topk_overlap(self) -> float | None:
        """Mean share of the k most attended keys that stay among them; None where no query sees more than k keys."""
        overlap = float(_topk_overlap(self))
        return None if np.isnan(overlap) else overlap


def mean_interval(layers: Sequence[Sequence[AttentionDistortion]], name: str) -> tuple[float, float] | None:
    """95 % interval of the mean over layers of a measure, by its name; each layer has its windows in the same order.

    Percentile bootstrap: windows are drawn with replacement, the same for all layers, and pooled. None for fewer than
    two windows, and where a draw has no value.
    """
    counts = window_draws(len(layers[0]))
    if counts is None:
        return None
    values = np.mean([_MEASURES[name](pool(windows, counts)) for windows in layers], axis=0)
    return None if np.isnan(values).any() else percentiles(values)


def _attention_error(of: AttentionDistortion) -> FloatArray:
    return ratios(of.error.sum(axis=-1), of.energy.sum(axis=-1))


def _attention_kl(of: AttentionDistortion) -> FloatArray:
    return ratios(of.kl.sum(axis=-1), of.queries.sum(axis=-1))


def _logit_correlation(of: AttentionDistortion) -> FloatArray:
    spread = np.sqrt(of.exact_variance) * np.sqrt(of.coded_variance)
    neither = (of.exact_variance == 0) & (of.coded_variance == 0)
    one = np.where(neither, 1.0, of.covariance / np.where(spread == 0, 1.0, spread))
    return np.asarray(np.clip(one, -1, 1).mean(axis=-1))


def _topk_overlap(of: AttentionDistortion) -> FloatArray:
    """NaN where no query sees more than k keys."""
    counted = of.overlap_queries.sum(axis=-1)
    return np.asarray(of.overlap.sum(axis=-1) / np.where(counted == 0, np.nan, counted))


_MEASURES: dict[str, Callable[[AttentionDistortion], FloatArray]] = {
    "attention_error": _attention_error,
    "attention_kl": _attention_kl,
    "logit_correlation": _logit_correlation,
    "topk_overlap": _topk_overlap,
}
"""Each along the last axis, which is that of the heads."""


class ExactAttention:
    """The uncompressed attention of one layer and window, with what every comparison needs of it computed once."""

    def __init__(self, logits: mx.array, outputs: mx.array, mask: mx.array | BoolArray, top_k: int = TOP_K) -> None:
        """Takes logits [n_q_heads, queries, tokens], with the model's scale, and outputs [n_q_heads, queries, dim].

        mask bool [queries, tokens] tells what each query sees. Raises ValueError for shapes that don't go together, a
        query that sees nothing, logits that overflow float32, or top_k < 1.
        """
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}: it must be at least 1")
        self.logits, self.outputs = logits.astype(mx.float32), outputs.astype(mx.float32)
        """float32, as given."""
        self.mask = _checked_mask(mask, logits)
        self.top_k = top_k
        check_shape("attention outputs", outputs, (*logits.shape[:2], outputs.shape[-1]))
        if not mx.isfinite(self.logits).all().item():
            raise ValueError("the logits overflow float32")
        self._heads = [_Head.of(head, self.mask, top_k) for head in as_float32(self.logits)]
        self._minus_entropy = [-head.cross_entropy(head) for head in self._heads]

    @classmethod
    def of(
        cls,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        mask: mx.array | BoolArray,
        scale: float,
        top_k: int = TOP_K,
    ) -> Self:
        """From queries [n_q_heads, queries, head_dim], keys [n_kv_heads, tokens, head_dim] and values, any float dtype.

        The same operations in the same order as `Codec.scores` and `Codec.attend`: a codec that loses nothing has
        errors of exactly 0.
        """
        repeated = mx.repeat(keys.astype(mx.float32), gqa_ratio(queries.shape[0], keys.shape[0]), axis=0)
        logits = (queries.astype(mx.float32) @ repeated.swapaxes(-1, -2)) * scale
        return cls(logits, attention_outputs(logits, values, mask), mask, top_k)

    def compare(self, logits: mx.array, outputs: mx.array) -> AttentionDistortion:
        """What a codec's logits and outputs, of the same shapes and any float dtype, differ in. Sums are in float64."""
        check_shape("coded logits", logits, self.logits.shape)
        check_shape("coded attention outputs", outputs, self.outputs.shape)
        exact, coded = as_float32(self.outputs).astype(np.float64), as_float32(outputs)
        rows = []
        for head, minus_entropy, m in zip(self._heads, self._minus_entropy, as_float32(logits), strict=True):
            other = _Head.of(m, self.mask, self.top_k)
            kl = np.maximum(head.cross_entropy(other) + minus_entropy, 0).sum()  # rounding: a few 1e-16 below 0
            covariance = np.einsum("qt,qt", head.centred, other.centred)
            hits = np.count_nonzero(head.largest & other.largest)
            rows.append((kl, covariance, head.variance, other.variance, hits / self.top_k))
        sums = np.array(rows, dtype=np.float64).reshape(len(exact), 5).T
        return AttentionDistortion(
            error=((exact - coded) ** 2).sum(axis=(1, 2)),
            energy=(exact**2).sum(axis=(1, 2)),
            kl=sums[0],
            covariance=sums[1],
            exact_variance=sums[2],
            coded_variance=sums[3],
            overlap=sums[4],
            queries=np.full(len(exact), float(len(self.mask))),
            overlap_queries=np.array([float(len(head.largest)) for head in self._heads]),
        )


def measure_attention(
    exact_logits: mx.array,
    coded_logits: mx.array,
    exact_outputs: mx.array,
    coded_outputs: mx.array,
    mask: mx.array | BoolArray,
    top_k: int = TOP_K,
) -> AttentionDistortion:
    """Compares attention once; see `ExactAttention` for shapes and errors, and for several codecs."""
    return ExactAttention(exact_logits, exact_outputs, mask, top_k).compare(coded_logits, coded_outputs)


def visible(
    query_positions: mx.array | NDArray[np.integer[Any]] | Sequence[int], tokens: int, window: int | None = None
) -> BoolArray:
    """Which keys each query sees, bool [queries, tokens]: key j where j <= t, and j > t - window if there is one.

    window: length in tokens of a sliding window (as mlx-lm counts it: the query's own token included), None for all.
    Raises ValueError for a window shorter than 1.
    """
    if window is not None and window < 1:
        raise ValueError(f"a sliding window of {window} tokens: it must be at least 1")
    t, j = np.asarray(query_positions, dtype=np.int64)[:, None], np.arange(tokens)
    return np.asarray(j <= t if window is None else (j <= t) & (j > t - window))


def attention_outputs(logits: mx.array, values: mx.array, mask: mx.array | BoolArray) -> mx.array:
    """softmax(logits) @ values over what each query sees, float32 [n_q_heads, queries, value_head_dim].

    logits [n_q_heads, queries, tokens], with the model's scale; values [n_kv_heads, tokens, value_head_dim]; any float
    dtype. Query head h reads KV head h // (n_q_heads / n_kv_heads). Scaled dot-product attention: Vaswani et al., arXiv
    1706.03762, section 3.2.1. Raises ValueError for shapes that don't go together or a query that sees nothing.
    """
    check_shape("values", values, (values.shape[0], logits.shape[-1], values.shape[-1]))
    seen = mx.array(_checked_mask(mask, logits))
    repeated = mx.repeat(values.astype(mx.float32), gqa_ratio(logits.shape[0], values.shape[0]), axis=0)
    weights = mx.softmax(mx.where(seen, logits.astype(mx.float32), -mx.inf), axis=-1, precise=True)
    return weights @ repeated


@dataclass(frozen=True)
class _Head:
    """One head's logits as they are compared; [queries, tokens] are 0 where the query doesn't see the key."""

    powers: FloatArray
    """Weights before they are normalised, [queries, tokens]; the largest is 1."""
    totals: FloatArray
    """Sum of a query's powers, [queries]."""
    centred: FloatArray
    """Logits less the mean of those that the query sees, [queries, tokens]."""
    log_totals: FloatArray
    """Log of the sum of exp(centred), [queries]."""
    variance: float
    """Sum of the squares of `centred`."""
    largest: BoolArray
    """Which keys have the k largest logits: [queries that see more than k keys, tokens]."""

    @classmethod
    def of(cls, logits: NDArray[np.float32], mask: BoolArray, top_k: int) -> Self:
        """From one head's logits [queries, tokens]."""
        seen, counts = np.where(mask, logits, -np.inf), mask.sum(axis=1)
        # In float64: the divergence that a good codec causes is far below float32's rounding of a logit.
        peak = seen.max(axis=1, keepdims=True, initial=-np.inf).astype(np.float64)
        shifted = np.where(mask, logits - peak, 0.0)
        powers = np.exp(shifted) * mask
        totals, mean = powers.sum(axis=1), shifted.sum(axis=1) / counts
        centred = (shifted - mean[:, None]) * mask
        variance = float(np.einsum("qt,qt", centred, centred))
        return cls(powers, totals, centred, np.log(totals) - mean, variance, _largest(seen[counts > top_k], top_k))

    def cross_entropy(self, other: _Head) -> FloatArray:
        """-sum of p * log q in nats, [queries], with p these weights and q the other's."""
        return np.asarray(other.log_totals - np.einsum("qt,qt->q", self.powers, other.centred) / self.totals)


def _largest(logits: NDArray[np.float32], k: int) -> BoolArray:
    """The k largest of each row, bool [rows, tokens] with tokens > k; of equal ones the first."""
    if not len(logits):
        return np.zeros(logits.shape, dtype=np.bool_)
    # Negated: NumPy selects from the front several times faster than from the back.
    kth = -np.partition(-logits, k - 1, axis=1)[:, k - 1, None]
    chosen = logits >= kth
    tied = chosen.sum(axis=1) > k
    if tied.any():
        rows, limit = logits[tied], kth[tied]
        equal = rows == limit
        room = k - (rows > limit).sum(axis=1, keepdims=True)
        chosen[tied] = (rows > limit) | (equal & (equal.cumsum(axis=1) <= room))
    return np.asarray(chosen)


def _checked_mask(mask: mx.array | BoolArray, logits: mx.array) -> BoolArray:
    seen = np.asarray(mask)
    if seen.dtype != np.bool_:
        raise ValueError(f"the mask is {seen.dtype}: it must be bool, True where a query sees a key")
    check_shape("mask", seen, tuple(logits.shape[1:]))
    blind = np.flatnonzero(~seen.any(axis=1))
    if len(blind):
        raise ValueError(f"query {blind[0]} sees no key")
    return seen
