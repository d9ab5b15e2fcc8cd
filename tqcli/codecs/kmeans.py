"""k-means: the codebook of least squared error for a set of vectors, as far as Lloyd's iteration finds it.

Lloyd's iteration (Lloyd, Least squares quantization in PCM, 1982), from k-means++ (Arthur and Vassilvitskii, 2007).
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from tqcli.kernels import vector_quantise

TOLERANCE = 1e-3
"""Training on: where an iteration gains less, held-out vectors gain next to nothing."""
_SEEDS_FROM = 4
"""k-means++ chooses among so many vectors an entry; from more of them it takes longer and is no better."""
_SEEDS_FROM_AT_LEAST = 4096

FloatArray = np.ndarray[Any, np.dtype[np.float32]]
DoubleArray = np.ndarray[Any, np.dtype[np.float64]]


def kmeans(x: mx.array, entries: int, iterations: int, seed: int, tolerance: float = TOLERANCE) -> mx.array:
    """A codebook float32 [entries, sub_dim] of the finite vectors x [n, sub_dim], any float dtype.

    At most `iterations` of Lloyd's; it ends before where one lowers the mean squared error by less than `tolerance` of
    it; 0 runs them all, unless nothing moves any more. An entry to which no vector is nearest moves to the vector that
    is coded worst. Up to `entries` vectors are entries themselves, and zeros fill the rest. The same input and seed
    give the same codebook.
    """
    samples: FloatArray = np.array(x.astype(mx.float32))
    if len(samples) <= entries:
        return mx.array(np.pad(samples, ((0, entries - len(samples)), (0, 0))))
    x = mx.array(samples)
    codebook = _seeds(samples, entries, np.random.default_rng([seed, entries]))
    codes, error = np.empty(0), np.inf
    for _ in range(iterations):
        previous, previous_error = codes, error
        codes = np.array(vector_quantise(x, mx.array(codebook)))
        if np.array_equal(codes, previous):
            break
        errors = np.sum((samples - codebook[codes].astype(np.float64)) ** 2, axis=1)
        error = float(np.mean(errors))
        codebook = _centroids(samples, codes, codebook, errors)
        if tolerance and previous_error - error < tolerance * previous_error:
            break
    return mx.array(codebook)


def _seeds(samples: FloatArray, entries: int, rng: np.random.Generator) -> FloatArray:
    """Entries chosen by k-means++: each next one with probability in proportion to the squared distance so far.

    They are chosen among a weighted part of the vectors, half of it drawn evenly and half by squared distance from the
    mean (Bachem, Lucic and Krause, Scalable k-means clustering via lightweight coresets, 2018), so that rare vectors
    far away are not missed.
    """
    count = min(len(samples), max(_SEEDS_FROM * entries, _SEEDS_FROM_AT_LEAST))
    apart = samples - np.mean(samples, axis=0, dtype=np.float64)
    energy = np.einsum("ij,ij->i", apart, apart)
    chance = np.full(len(samples), 1 / len(samples))
    if energy.sum() > 0:
        chance = (chance + energy / energy.sum()) / 2
    drawn = rng.choice(len(samples), count, p=chance)
    among: DoubleArray = samples[drawn].astype(np.float64)
    weights = 1 / chance[drawn]
    chosen = [int(np.searchsorted(np.cumsum(weights), rng.random() * weights.sum(), side="right"))]
    distances: DoubleArray = np.full(count, np.inf)
    for draw in rng.random(entries - 1):
        apart = among - among[chosen[-1]]
        np.minimum(distances, np.einsum("ij,ij->i", apart, apart), out=distances)
        reach = np.cumsum(distances * weights)
        chosen.append(min(int(np.searchsorted(reach, draw * reach[-1], side="right")), count - 1))
    return among[chosen].astype(np.float32)


def _centroids(
    samples: FloatArray, codes: np.ndarray[Any, Any], codebook: FloatArray, errors: DoubleArray
) -> FloatArray:
    """The mean of the vectors of each code; entries without any move to the vectors of the largest errors."""
    entries = len(codebook)
    counts = np.bincount(codes, minlength=entries)
    sums = [np.bincount(codes, weights=column, minlength=entries) for column in samples.T]
    moved: FloatArray = (np.stack(sums, axis=1) / np.maximum(counts, 1)[:, None]).astype(np.float32)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        moved[empty] = samples[np.argsort(-errors, kind="stable")[: len(empty)]]
    return moved
