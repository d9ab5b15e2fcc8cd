"""Lloyd-Max scalar codebooks for a coordinate of a uniformly random unit vector (TurboQuant, arXiv 2504.19874).

The density of sqrt(d) times such a coordinate is f(x) ~ (1 - x**2 / d) ** ((d - 3) / 2), which tends to the standard
normal as d grows. Levels are given for that unit-variance coordinate.
"""

from __future__ import annotations

from functools import cache
from math import exp, lgamma, log, pi
from typing import Any

import numpy as np

FloatArray = np.ndarray[Any, np.dtype[np.float64]]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_STEPS_AT_MOST = 200


@cache
def codebook(head_dim: int, bits: int) -> tuple[float, ...]:
    """The 2**bits optimal levels, ascending, for vectors of `head_dim` elements with unit mean square."""
    edge = reach(head_dim)
    return tuple(solve(head_dim, bits, -edge, edge).tolist())


@cache
def distortion(head_dim: int, bits: int) -> float:
    """Mean squared error of `codebook` relative to the coordinate's variance: TurboQuant's D_b for this head_dim."""
    edge = reach(head_dim)
    mass, _, error = moments(np.array(codebook(head_dim, bits)), head_dim, -edge, edge)
    return float(error.sum() / mass.sum())


@cache
def unbiased_distortion(head_dim: int, bits: int) -> float:
    """As `distortion`, where each decoded vector y' is stretched by ||y||**2 / <y, y'>: by simulation, to 0.5 %.

    About D / (1 - D); not exactly, since the stretch also takes out the error along y.
    """
    levels = np.array(codebook(head_dim, bits))
    stretched, plain = simulated_distortion(head_dim, bits, levels, (levels[1:] + levels[:-1]) / 2)
    # Rare large errors make the simulated error uncertain, but hardly its ratio to the plain one, which is known.
    return stretched / plain * distortion(head_dim, bits)


def simulated_distortion(
    head_dim: int, bits: int, levels: FloatArray, thresholds: FloatArray, read: FloatArray | None = None
) -> tuple[float, float]:
    """Mean squared error of 4,096 random vectors, stretched as in `unbiased_distortion` and as they are.

    levels [2**bits] and thresholds [2**bits - 1] ascend. With `read` [2**bits], these levels are decoded in the place
    of `levels`; the stretch is still that of `levels`.
    """
    y = np.random.default_rng([head_dim, bits]).standard_normal((4096, head_dim))
    y *= np.sqrt(head_dim) / np.linalg.norm(y, axis=1, keepdims=True)
    codes = np.searchsorted(thresholds, y)
    stretch = head_dim / np.sum(y * levels[codes], axis=1, keepdims=True)
    decoded = (levels if read is None else read)[codes]
    return float(np.mean((stretch * decoded - y) ** 2)), float(np.mean((decoded - y) ** 2))


def solve(head_dim: int, bits: int, low: float, high: float) -> FloatArray:
    """The 2**bits optimal levels, ascending, for the density restricted to the interval from `low` to `high`.

    Damped Newton (Levenberg-Marquardt) on the centroid conditions c_k = E[x | cell k], from high-rate levels. Lloyd's
    own iteration needs some 10,000 steps for 256 levels. The density is log-concave, so the solution is unique.
    """
    x = np.linspace(low, high, 20001)
    cumulative = np.cumsum(_density(x, head_dim) ** (1 / 3))
    count = 2**bits
    levels: FloatArray = np.interp((np.arange(count) + 0.5) / count, cumulative / cumulative[-1], x)
    mass, first, by_level = moments(levels, head_dim, low, high)
    error, damping = by_level.sum(), 1.0
    for _ in range(_STEPS_AT_MOST):
        matrix = _jacobian(levels, mass, head_dim) + damping * np.diag(mass)
        candidate = levels - np.linalg.solve(matrix, levels * mass - first)
        if low == -high:
            candidate = (candidate - candidate[::-1]) / 2
        ordered = low < candidate[0] and candidate[-1] < high and bool(np.all(np.diff(candidate) > 0))
        new = moments(candidate, head_dim, low, high) if ordered else None
        if new is None or new[2].sum() > error * (1 + 1e-12):
            damping = max(damping * 8, 1e-6)
            continue
        moved = float(np.max(np.abs(candidate - levels)))
        levels, mass, first, error = candidate, new[0], new[1], new[2].sum()
        damping = damping / 8 if damping > 1e-6 else 0.0
        if moved < 1e-10:
            break
    return levels


def moments(levels: FloatArray, head_dim: int, low: float, high: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Probability, first moment and squared error of each level's cell between `low` and `high`, by quadrature.

    Cells meet half-way between levels. The squared error is the integral of (x - level)**2 times the density.
    """
    edges = np.concatenate([[low], (levels[1:] + levels[:-1]) / 2, [high]])
    # Outer cells are long: cutting every cell in pieces keeps the rule exact to double precision.
    pieces = 8
    fractions = np.arange(pieces + 1) / pieces
    cuts = edges[:-1, None] + np.diff(edges)[:, None] * fractions
    half = np.diff(cuts, axis=1)[..., None] / 2
    x = (cuts[:, :-1, None] + half) + half * _NODES
    weighted = _density(x, head_dim) * half * _WEIGHTS
    squared = weighted * (x - levels[:, None, None]) ** 2
    return weighted.sum(axis=(1, 2)), (weighted * x).sum(axis=(1, 2)), squared.sum(axis=(1, 2))


def reach(head_dim: int) -> float:
    """Where the density ends, or is below 1e-30 of its peak."""
    return float(min(np.sqrt(head_dim), 12.0))


def _jacobian(levels: FloatArray, mass: FloatArray, head_dim: int) -> FloatArray:
    edges = (levels[1:] + levels[:-1]) / 2
    moved = _density(edges, head_dim) * np.diff(levels) / 4
    diagonal = mass.copy()
    diagonal[:-1] -= moved
    diagonal[1:] -= moved
    return np.asarray(np.diag(diagonal) - np.diag(moved, 1) - np.diag(moved, -1))


def _density(x: FloatArray, head_dim: int) -> FloatArray:
    """The coordinate's density, normalised by the gamma functions of its closed form."""
    inside: FloatArray = np.maximum(1 - x * x / head_dim, 0)
    return inside ** ((head_dim - 3) / 2) * _normaliser(head_dim)


@cache
def _normaliser(head_dim: int) -> float:
    return exp(lgamma(head_dim / 2) - lgamma((head_dim - 1) / 2) - log(pi * head_dim) / 2)
