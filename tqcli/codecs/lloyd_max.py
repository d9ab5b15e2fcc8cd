"""Lloyd-Max scalar codebooks for a coordinate of a uniformly random unit vector (TurboQuant, arXiv 2504.19874).

The density of sqrt(d) times such a coordinate is f(x) ~ (1 - x**2 / d) ** ((d - 3) / 2), which tends to the standard
normal as d grows. Levels are given for that unit-variance coordinate.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

FloatArray = np.ndarray[Any, np.dtype[np.float64]]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_STEPS_AT_MOST = 200


@cache
def codebook(head_dim: int, bits: int) -> tuple[float, ...]:
    """The 2**bits optimal levels, ascending, for vectors of `head_dim` elements with unit mean square."""
    return tuple(_solve(head_dim, bits).tolist())


@cache
def distortion(head_dim: int, bits: int) -> float:
    """Mean squared error of `codebook` relative to the coordinate's variance: TurboQuant's D_b for this head_dim."""
    return _error(np.array(codebook(head_dim, bits)), head_dim)


@cache
def unbiased_distortion(head_dim: int, bits: int) -> float:
    """As `distortion`, where each decoded vector y' is stretched by ||y||**2 / <y, y'>: by simulation, to 0.5 %.

    About D / (1 - D); not exactly, since the stretch also takes out the error along y.
    """
    levels = np.array(codebook(head_dim, bits))
    y = np.random.default_rng([head_dim, bits]).standard_normal((4096, head_dim))
    y *= np.sqrt(head_dim) / np.linalg.norm(y, axis=1, keepdims=True)
    coded = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, y)]
    coded *= head_dim / np.sum(y * coded, axis=1, keepdims=True)
    return float(np.mean((coded - y) ** 2))


def _solve(head_dim: int, bits: int) -> FloatArray:
    """Damped Newton (Levenberg-Marquardt) on the centroid conditions c_k = E[x | cell k], from high-rate levels.

    Lloyd's own iteration needs some 10,000 steps for 256 levels. The density is log-concave, so the solution is unique.
    """
    x = np.linspace(-_reach(head_dim), _reach(head_dim), 20001)
    cumulative = np.cumsum(_density(x, head_dim) ** (1 / 3))
    count = 2**bits
    levels: FloatArray = np.interp((np.arange(count) + 0.5) / count, cumulative / cumulative[-1], x)
    damping, error = 1.0, _error(levels, head_dim)
    for _ in range(_STEPS_AT_MOST):
        mass, first = _cell_moments(levels, head_dim)
        residual = levels * mass - first
        matrix = _jacobian(levels, mass, head_dim) + damping * np.diag(mass)
        candidate = levels - np.linalg.solve(matrix, residual)
        candidate = (candidate - candidate[::-1]) / 2
        ordered = bool(np.all(np.diff(candidate) > 0)) and candidate[-1] < _reach(head_dim)
        new_error = _error(candidate, head_dim) if ordered else np.inf
        if new_error > error * (1 + 1e-12):
            damping = max(damping * 8, 1e-6)
            continue
        moved = float(np.max(np.abs(candidate - levels)))
        levels, error = candidate, new_error
        damping = damping / 8 if damping > 1e-6 else 0.0
        if moved < 1e-10:
            break
    return levels


def _error(levels: FloatArray, head_dim: int) -> float:
    """Mean squared error of the levels: the variance is 1, so 1 - 2 sum(c m) + sum(c**2 p)."""
    mass, first = _cell_moments(levels, head_dim)
    return float(1 - 2 * (levels @ first) + levels**2 @ mass)


def _jacobian(levels: FloatArray, mass: FloatArray, head_dim: int) -> FloatArray:
    edges = (levels[1:] + levels[:-1]) / 2
    moved = _density(edges, head_dim) * np.diff(levels) / 4
    diagonal = mass.copy()
    diagonal[:-1] -= moved
    diagonal[1:] -= moved
    return np.asarray(np.diag(diagonal) - np.diag(moved, 1) - np.diag(moved, -1))


def _cell_moments(levels: FloatArray, head_dim: int) -> tuple[FloatArray, FloatArray]:
    """Probability and first moment of each level's cell, by Gauss-Legendre quadrature."""
    reach = _reach(head_dim)
    edges = np.concatenate([[-reach], (levels[1:] + levels[:-1]) / 2, [reach]])
    # Outer cells are long: cutting every cell in pieces keeps the rule exact to double precision.
    pieces = 8
    fractions = np.arange(pieces + 1) / pieces
    cuts = edges[:-1, None] + np.diff(edges)[:, None] * fractions
    half = np.diff(cuts, axis=1)[..., None] / 2
    x = (cuts[:, :-1, None] + half) + half * _NODES
    weighted = _density(x, head_dim) * half * _WEIGHTS
    total = weighted.sum()
    return weighted.sum(axis=(1, 2)) / total, (weighted * x).sum(axis=(1, 2)) / total


def _density(x: FloatArray, head_dim: int) -> FloatArray:
    """The coordinate's density, normalised by the gamma functions of its closed form."""
    inside: FloatArray = np.maximum(1 - x * x / head_dim, 0)
    return inside ** ((head_dim - 3) / 2) * _normaliser(head_dim)


@cache
def _normaliser(head_dim: int) -> float:
    from math import exp, lgamma, log, pi

    return exp(lgamma(head_dim / 2) - lgamma((head_dim - 1) / 2) - log(pi * head_dim) / 2)


def _reach(head_dim: int) -> float:
    """Where the density ends, or is below 1e-30 of its peak."""
    return float(min(np.sqrt(head_dim), 12.0))
