"""How far a codec's inner products of queries and keys are from the exact ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.metrics.distortion import FloatArray, as_float32
from tqcli.metrics.heads import BoolArray, HeadSums, check_shape, gqa_ratio


@dataclass(frozen=True)
class InnerProducts(HeadSums):
    """Sums over pairs of a query and a key, per query head: float64 [n_q_heads].

    With s = <q, k>, its estimate t and N = ||q|| ||k||, the error of a pair is e = (t - s) / N.
    """

    pairs: FloatArray
    """How many pairs were counted."""
    error: FloatArray
    """Sum of e."""
    scaled_error: FloatArray
    """Sum of sqrt(head_dim) * e: layers of different head_dim can be pooled."""
    scaled_square: FloatArray
    """Sum of head_dim * e**2."""
    product: FloatArray
    """Sum of t * s / N**2."""
    energy: FloatArray
    """Sum of s**2 / N**2."""

    @property
    def bias(self) -> float | None:
        """Mean of e, `ip_bias`; None for no pairs."""
        return _mean(self.error, self.pairs)

    @property
    def slope(self) -> float | None:
        """Least-squares slope of t on s through the origin, `ip_slope`; 1 is unbiased, None where every s is 0."""
        return _mean(self.product, self.energy)

    @property
    def variance_d(self) -> float | None:
        """head_dim times the variance of e over pairs, `ip_variance_d`; None for no pairs.

        TurboQuant (arXiv 2504.19874, theorem 2) bounds this for queries and keys of unit norm.
        """
        mean, square = _mean(self.scaled_error, self.pairs), _mean(self.scaled_square, self.pairs)
        return None if mean is None or square is None else max(0.0, square - mean**2)


def norms(x: mx.array) -> FloatArray:
    """||x|| of each vector, float64 [heads, tokens] of x [heads, tokens, head_dim]; squares never overflow."""
    wide = as_float32(x).astype(np.float64)
    return np.asarray(np.sqrt(np.einsum("htd,htd->ht", wide, wide)))


def measure_inner_products(
    exact: mx.array,
    coded: mx.array,
    query_norms: mx.array | NDArray[Any],
    key_norms: mx.array | NDArray[Any],
    mask: mx.array | BoolArray,
    head_dim: int,
) -> InnerProducts:
    """Compares inner products of any float dtype, both [n_q_heads, queries, tokens], without the model's scale.

    query_norms [n_q_heads, queries]; key_norms [n_kv_heads, tokens] of the exact keys; mask bool [queries, tokens]
    names the pairs to count. Pairs with a vector of norm 0 are left out. Sums are in float64. Query head h reads KV
    head h // (n_q_heads / n_kv_heads). Raises ValueError for shapes that don't go together.
    """
    s, t, seen = as_float32(exact), as_float32(coded), np.asarray(mask)
    q_norms, k_norms = _as_float64(query_norms), _as_float64(key_norms)
    heads, queries, tokens = s.shape
    check_shape("coded inner products", t, s.shape)
    check_shape("query norms", q_norms, (heads, queries))
    check_shape("key norms", k_norms, (len(k_norms), tokens))
    check_shape("mask", seen, (queries, tokens))
    repeats = gqa_ratio(heads, len(k_norms))
    by_query, by_key = _inverse(q_norms), _inverse(k_norms)
    rows = []
    for h in range(heads):
        weight = by_query[h, :, None] * by_key[h // repeats] * seen
        score = s[h] * weight
        error = (t[h].astype(np.float64) - s[h]) * weight
        energy = np.einsum("qt,qt", score, score)
        squares = np.einsum("qt,qt", error, error)
        product = energy + np.einsum("qt,qt", score, error)
        rows.append((np.count_nonzero(weight), error.sum(), squares, product, energy))
    pairs, errors, squares, product, energy = np.array(rows, dtype=np.float64).reshape(heads, 5).T
    return InnerProducts(pairs, errors, np.sqrt(head_dim) * errors, head_dim * squares, product, energy)


def _mean(numerator: FloatArray, denominator: FloatArray) -> float | None:
    total = float(denominator.sum())
    return float(numerator.sum()) / total if total else None


def _inverse(x: FloatArray) -> FloatArray:
    return np.divide(1.0, x, out=np.zeros_like(x), where=x > 0)


def _as_float64(x: mx.array | NDArray[Any]) -> FloatArray:
    return (as_float32(x) if isinstance(x, mx.array) else x).astype(np.float64)
