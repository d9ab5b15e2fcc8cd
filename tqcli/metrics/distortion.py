"""How far decoded vectors are from the originals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

FloatArray = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Distortion:
    """Sums over the vectors of one tensor, per head: float64 [heads], but for `vectors`, which is per head as well."""

    error: FloatArray
    """Sum of ||x - decoded||**2."""
    energy: FloatArray
    """Sum of ||x||**2."""
    coded_energy: FloatArray
    """Sum of ||x - offset||**2 over the vectors that a codec coded: what its theoretical error is relative to."""
    cosine: FloatArray
    """Sum of the cosines between x and decoded; 1 where both are zero."""
    worst: FloatArray
    """Largest ||x - decoded||**2 / ||x||**2 of a vector; inf where a zero vector wasn't decoded to zero."""
    vectors: int

    @property
    def relative_mse(self) -> float:
        """Sum of ||x - decoded||**2 over sum of ||x||**2, over all heads; 0 for no vectors."""
        return ratio(self.error.sum(), self.energy.sum())


def ratio(error: float, energy: float) -> float:
    """Divides error by energy, where 0 / 0 is 0 (nothing lost of nothing) and error / 0 is inf."""
    if energy > 0:
        return float(error / energy)
    return float("inf") if error > 0 else 0.0


def snr_db(relative_mse: float) -> float:
    """Signal-to-noise ratio in dB; inf for an exact reconstruction."""
    return float("inf") if relative_mse == 0 else float(-10 * np.log10(relative_mse))


def measure_distortion(
    x: mx.array, decoded: mx.array, offset: mx.array | None = None, coded: slice | None = None
) -> Distortion:
    """Compares x with decoded, both [heads, tokens, head_dim] of any float dtype, in float32 with sums in float64.

    offset: what the codec subtracted first, broadcastable to the coded tokens, which `coded` names (default: all).
    """
    a, b = as_float32(x), as_float32(decoded)
    coded = slice(None) if coded is None else coded
    residual = a[:, coded] if offset is None else a[:, coded] - as_float32(offset)
    peaks = np.max(np.abs(a), axis=-1, keepdims=True, initial=0.0)
    units = np.ones_like(peaks)
    if np.any((peaks > 0) & ~((peaks > 1e-12) & (peaks < 1e12))):  # squares would leave float32's range
        units = np.where(peaks > 0, peaks, np.float32(1)).astype(np.float32)
        a, b, residual = a / units, b / units, residual / units[:, coded]
    squares = units[..., 0].astype(np.float64) ** 2
    difference = a - b
    errors, energies = _dot(difference, difference), _dot(a, a)
    products, norms = _dot(a, b), np.sqrt(energies * _dot(b, b))
    both_zero = (energies == 0) & (_dot(b, b) == 0)
    cosines = np.where(both_zero, 1.0, products / np.where(norms == 0, 1.0, norms))
    relative = np.where(errors == 0, 0.0, errors / np.where(energies == 0, np.nan, energies))
    relative = np.where(np.isnan(relative), np.inf, relative)
    return Distortion(
        (errors * squares).sum(axis=1),
        (energies * squares).sum(axis=1),
        (_dot(residual, residual) * squares[:, coded]).sum(axis=1),
        cosines.sum(axis=1),
        relative.max(axis=1, initial=0.0),
        a.shape[1],
    )


def as_float32(x: mx.array) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A NumPy view of an MLX array in float32."""
    return np.array(x.astype(mx.float32), copy=False)


def _dot(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> FloatArray:
    return np.asarray(np.einsum("htd,htd->ht", a, b), dtype=np.float64)
