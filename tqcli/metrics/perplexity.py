"""What a coded cache does to a model's predictions: perplexity, and its divergence from the uncompressed model's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, Self

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.metrics.bootstrap import percentiles, window_draws
from tqcli.metrics.distortion import FloatArray
from tqcli.metrics.heads import check_shape

Logits = mx.array | NDArray[np.floating[Any]]
KL_PERCENTILES = {
    "kl_p99_9": 99.9,
    "kl_p99": 99.0,
    "kl_p95": 95.0,
    "kl_p90": 90.0,
    "kl_p50": 50.0,
    "kl_p10": 10.0,
}
"""By the name of the measure."""
UNITS = {
    "ppl": "1",
    "ppl_base": "1",
    "ppl_delta_percent": "%",
    "bits_per_byte": "bits/byte",
    "kl_mean": "nats",
    **dict.fromkeys(KL_PERCENTILES, "nats"),
    "rms_delta_p": "1",
    "same_top1": "1",
}
"""Of every measure, by its name."""
_BLOCK = 1 << 18
"""Logits that are worked on at a time: in float64 they stay in a core's own memory."""
_THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class Measure:
    """A number with its 95 % interval; None where there is none."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class TokenScores:
    """The scored tokens of one window, in order: float64 [tokens] each.

    p is the uncompressed model's distribution of the next token, q that through the coded cache; t the token that
    comes.
    """

    nll_exact: FloatArray
    """-log p(t), in nats."""
    nll_coded: FloatArray
    """-log q(t), in nats."""
    kl: FloatArray
    """Kullback-Leibler divergence of q from p, KL(p || q), in nats."""
    delta_p: FloatArray
    """q(t) - p(t)."""
    same_top1: FloatArray
    """1 where p and q have their largest probability at the same token, else 0; of equal ones the first counts."""

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """One after the other; `parts` holds at least one."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    @property
    def broken(self) -> int:
        """How many tokens have coded logits that are no distribution (NaN, or an infinite largest one)."""
        return int(np.isinf(self.nll_coded).sum())


def score_logits(
    exact: Logits, coded: Sequence[Logits], targets: NDArray[np.integer[Any]] | Sequence[int]
) -> list[TokenScores]:
    """Compares each of `coded` with `exact`: logits [tokens, vocabulary], any float dtype; targets [tokens].

    In float64 from the logits on, the exact side once for all; equal logits have a divergence of exactly 0. Where coded
    logits are no distribution, -log q and KL are infinite, q(t) is 0 and the top token counts as another. Raises
    ValueError for shapes that don't go together, a target outside the vocabulary, and exact logits that are no
    distribution.
    """
    a, others, wanted = _host(exact), [_host(logits) for logits in coded], np.asarray(targets, dtype=np.int64)
    check_shape("targets", wanted, a.shape[:1])
    for b in others:
        check_shape("coded logits", b, a.shape)
    tokens, vocabulary = a.shape
    outside = (wanted < 0) | (wanted >= vocabulary)
    if outside.any():
        raise ValueError(f"token {wanted[outside][0]} is outside the vocabulary of {vocabulary}")
    rows = max(1, _BLOCK // max(1, vocabulary))
    blocks = [slice(start, start + rows) for start in range(0, tokens, rows)]
    with ThreadPoolExecutor(_THREADS) as pool:  # NumPy lets go of the interpreter's lock
        scored = list(pool.map(lambda at: _score(a[at], [b[at] for b in others], wanted[at], at.start), blocks))
    if not blocks:
        empty = np.zeros(0)
        return [TokenScores(empty, empty, empty, empty, empty) for _ in others]
    return [TokenScores.join([block[index] for block in scored]) for index in range(len(others))]


def _host(logits: Logits) -> NDArray[np.floating[Any]]:
    """As NumPy, without a copy where the array is in this memory as it is."""
    if isinstance(logits, mx.array):
        return np.asarray(logits.astype(mx.float32) if logits.dtype != mx.float64 else logits)
    return np.asarray(logits)


@dataclass(frozen=True)
class _Distribution:
    """Of the next token, by rows of logits."""

    shifted: FloatArray
    """Logits less the largest of the row, [tokens, vocabulary]."""
    powers: FloatArray
    """exp(shifted)."""
    totals: FloatArray
    """Sum of the powers, [tokens]."""
    top: NDArray[np.intp]
    """The token of the largest logit, [tokens]."""
    sane: NDArray[np.bool_]
    """Whether the row is a distribution, [tokens]; one that isn't has logits of 0 in its place."""

    @classmethod
    def of(cls, logits: NDArray[np.floating[Any]]) -> Self:
        top = logits.argmax(axis=1)
        sane = np.isfinite(np.take_along_axis(logits, top[:, None], axis=1)[:, 0])  # of a row with a NaN it's the NaN
        if not sane.all():
            logits = np.where(sane[:, None], logits, 0)
        shifted = logits.astype(np.float64)
        shifted -= shifted[np.arange(len(top)), top][:, None]
        powers = np.exp(shifted)
        return cls(shifted, powers, powers.sum(axis=1), top, sane)

    def log_p(self, rows: NDArray[np.intp], targets: NDArray[np.int64]) -> FloatArray:
        return np.asarray(self.shifted[rows, targets] - np.log(self.totals))


def _score(
    exact: NDArray[np.floating[Any]],
    coded: Sequence[NDArray[np.floating[Any]]],
    targets: NDArray[np.int64],
    first: int,
) -> list[TokenScores]:
    """A few tokens; `first` is the number of the first one, for messages."""
    p, rows = _Distribution.of(exact), np.arange(len(targets))
    if not p.sane.all():
        raise ValueError(f"the uncompressed model's logits of token {first + np.argmin(p.sane)} are not finite")
    log_p, result = p.log_p(rows, targets), []
    for logits in coded:
        q = _Distribution.of(logits)
        log_q = np.where(q.sane, q.log_p(rows, targets), -np.inf)
        kl = np.where(q.sane, _divergence(p, q), np.inf)
        same = (p.top == q.top) & q.sane
        result.append(TokenScores(-log_p, -log_q, kl, np.exp(log_q) - np.exp(log_p), same.astype(np.float64)))
    return result


def _divergence(p: _Distribution, q: _Distribution) -> FloatArray:
    """KL(p || q) = sum of p * (logits of p - logits of q) + log of q's total over p's, [tokens]."""
    with np.errstate(invalid="ignore"):
        gaps = p.shifted - q.shifted
        mean = np.einsum("tv,tv->t", p.powers, gaps)
        if not np.isfinite(mean).all():  # logits of -inf: a token that p excludes adds nothing
            mean = np.where(p.powers > 0, p.powers * gaps, 0.0).sum(axis=1)
    kl = mean / p.totals + np.log(q.totals / p.totals)
    return np.asarray(np.maximum(kl, 0))  # rounding: a few 1e-16 below 0


def summarise(windows: Sequence[TokenScores], text_bytes: Sequence[int], seed: int = 0) -> dict[str, Measure]:
    """The measures of `UNITS` over all scored tokens, each with a 95 % percentile bootstrap over windows.

    text_bytes: UTF-8 bytes under each window's scored tokens. Windows are drawn whole and pooled, the exact and the
    coded side of one together: intervals of differences are paired. Intervals are None for fewer than two windows and
    where a draw has no finite value. Percentiles are of the single tokens' divergence, interpolated linearly. Raises
    ValueError for no window, no scored token, or another number of byte counts.
    """
    if not windows or len(windows) != len(text_bytes) or not sum(len(w.kl) for w in windows):
        raise ValueError(f"{len(windows)} windows with {len(text_bytes)} byte counts: nothing to average over")
    pooled = _Pooled(windows, text_bytes)
    values = pooled.values(np.ones((1, len(windows)), dtype=np.int64))
    counts = window_draws(len(windows), seed)
    drawn = {} if counts is None else pooled.values(counts)
    result = {}
    for name, value in values.items():
        of_draws = drawn.get(name)
        interval = of_draws is not None and bool(np.isfinite(of_draws).all())
        low, high = percentiles(of_draws) if interval and of_draws is not None else (None, None)
        result[name] = Measure(float(value[0]), low, high)
    return result


def summarise_baseline(nll: Sequence[FloatArray], text_bytes: Sequence[int], seed: int = 0) -> dict[str, Measure]:
    """`ppl` and `bits_per_byte` of the uncompressed model alone, from -log p(t) [tokens] of each window."""
    windows = [TokenScores(n, n, np.zeros_like(n), np.zeros_like(n), np.ones_like(n)) for n in nll]
    measures = summarise(windows, text_bytes, seed)
    return {name: measures[name] for name in ("ppl", "bits_per_byte")}


class _Pooled:
    """Sums of each window, and the divergences of all tokens in order."""

    def __init__(self, windows: Sequence[TokenScores], text_bytes: Sequence[int]) -> None:
        self._tokens = np.array([len(w.kl) for w in windows], dtype=np.int64)
        self._bytes = np.array(text_bytes, dtype=np.float64)
        columns = [(w.nll_exact, w.nll_coded, w.kl, w.delta_p**2, w.same_top1) for w in windows]
        self._sums = np.array([[part.sum() for part in window] for window in columns]).T
        kl = np.concatenate([w.kl for w in windows])
        order = np.argsort(kl, kind="stable")
        self._kl = kl[order]
        self._window_of = np.repeat(np.arange(len(windows)), self._tokens)[order]

    def values(self, counts: NDArray[np.int64]) -> dict[str, FloatArray]:
        """Every measure, [draws], of windows drawn as often as `counts` [draws, windows] says."""
        tokens = counts @ self._tokens
        with np.errstate(all="ignore"):  # infinite sums, and what is left of them where a draw passes them by
            exact, coded, kl, squares, same = ((counts @ sums) / tokens for sums in self._sums)
            result = {
                "ppl": np.exp(coded),
                "ppl_base": np.exp(exact),
                "ppl_delta_percent": 100 * np.expm1(coded - exact),
                "bits_per_byte": coded * tokens / (counts @ self._bytes) / np.log(2),
                "kl_mean": kl,
                "rms_delta_p": np.sqrt(squares),
                "same_top1": same,
            }
        quantiles = np.array([self._quantiles(draw) for draw in counts]).T
        result |= dict(zip(KL_PERCENTILES, quantiles, strict=True))
        return {name: result[name] for name in UNITS}

    def _quantiles(self, draw: NDArray[np.int64]) -> FloatArray:
        """Those of `KL_PERCENTILES`, linear between order statistics (Hyndman and Fan, 1996, type 7)."""
        reached = np.cumsum(draw[self._window_of])
        at = np.array(list(KL_PERCENTILES.values())) / 100 * (reached[-1] - 1)
        below = np.floor(at)
        low, high = (self._kl[np.searchsorted(reached, rank, side="right")] for rank in (below, np.ceil(at)))
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(low == high, low, low + (at - below) * (high - low)))
