"""Embedded codebooks: a Lloyd-Max quantiser, and inside each of its cells another one (tree-structured quantisation).

The second stage is the Lloyd-Max solution of the density restricted to the cell, which makes it the best quantiser of
the residual that knows the first stage's code (Gersho and Gray, Vector Quantization and Signal Compression, sec. 12.4).
All levels together ascend, so one comparison with thresholds gives both codes: the upper bits are the first stage's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tqcli.codecs.lloyd_max import codebook, distortion, moments, reach, simulated_distortion, solve


@cache
def embedded_codebook(head_dim: int, bits1: int, bits2: int) -> tuple[float, ...]:
    """The 2**(bits1 + bits2) levels, ascending: 2**bits2 for each cell of `lloyd_max.codebook(head_dim, bits1)`."""
    upper = np.concatenate([solve(head_dim, bits2, low, high) for low, high in _upper_cells(head_dim, bits1)])
    return tuple(np.concatenate([-upper[::-1], upper]).tolist())


def embedded_thresholds(coarse: NDArray[np.floating[Any]], fine: NDArray[np.floating[Any]]) -> NDArray[Any]:
    """What divides the levels `fine` [2**(bits1 + bits2)]: [len(fine) - 1], ascending, in the arrays' own dtype.

    Between cells of `coarse` [2**bits1] it is the edge of the cells; inside a cell the middle between two levels.
    """
    thresholds: NDArray[Any] = (fine[1:] + fine[:-1]) / 2
    step = len(fine) // len(coarse)
    thresholds[step - 1 :: step] = (coarse[1:] + coarse[:-1]) / 2
    return thresholds


@cache
def embedded_distortion(head_dim: int, bits1: int, bits2: int) -> float:
    """Mean squared error of `embedded_codebook` relative to the coordinate's variance."""
    cells = _upper_cells(head_dim, bits1)
    upper = np.array(embedded_codebook(head_dim, bits1, bits2)).reshape(2, len(cells), -1)[1]
    parts = [moments(levels, head_dim, *cell) for levels, cell in zip(upper, cells, strict=True)]
    return float(sum(error.sum() for _, _, error in parts) / sum(mass.sum() for mass, _, _ in parts))


@cache
def embedded_unbiased_distortion(head_dim: int, bits1: int, bits2: int, stages: int = 2) -> float:
    """As `embedded_distortion`, stretched as in `lloyd_max.unbiased_distortion`: by simulation, to 0.5 %.

    With `stages` 1 what is decoded is the first stage's level times `coarse_gain`, stretched by as much.
    """
    coarse, fine = np.array(codebook(head_dim, bits1)), np.array(embedded_codebook(head_dim, bits1, bits2))
    gain = coarse_gain(head_dim, bits1, bits2) if stages == 1 else 1.0
    read = fine if stages == 2 else np.repeat(coarse * gain, 2**bits2)
    thresholds = embedded_thresholds(coarse, fine)
    stretched, plain = simulated_distortion(head_dim, bits1 + bits2, fine, thresholds, read)
    kept = 1 - (distortion(head_dim, bits1) if stages == 1 else embedded_distortion(head_dim, bits1, bits2))
    # Large errors in the outer cells are rare, so that few vectors tell little of the error but much of the ratio.
    return stretched / plain * (1 - (2 * gain - gain**2) * kept)


@cache
def coarse_gain(head_dim: int, bits1: int, bits2: int) -> float:
    """How much more the first stage alone shrinks inner products than both do: (1 - D of both) / (1 - D of the first).

    A centroid quantiser of distortion D gives E[y y'] = 1 - D.
    """
    return (1 - embedded_distortion(head_dim, bits1, bits2)) / (1 - distortion(head_dim, bits1))


def _upper_cells(head_dim: int, bits1: int) -> list[tuple[float, float]]:
    """The first stage's cells above 0; those below mirror them."""
    levels = np.array(codebook(head_dim, bits1))[2 ** (bits1 - 1) :]
    edges = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [reach(head_dim)]])
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
