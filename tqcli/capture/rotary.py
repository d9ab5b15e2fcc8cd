"""Measures a layer's rotary embedding by turning unit vectors with it."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.codecs.context import RotaryParameters

_REFINE_AT = (16, 256, 4096)
_VERIFY_AT = (3, 1000, 8191)
_TOLERANCE = 2e-3
"""A float32 angle at position 8,191 is off by up to 5e-4 rad in the layer itself."""


def probe_rotary(layer: Any, head_dim: int) -> RotaryParameters | None:
    """The rotary parameters of an mlx-lm layer, as it applies them; None without a rotary embedding.

    None also for one that this form can't describe (a rotation that isn't linear in the position). Reading the module's
    own rotation, and not its configuration, covers every scheme of context extension alike; its frequencies come out
    to float32 accuracy. A constant gain, as YaRN's, is left out: it is not a rotation.
    """
    module = _find_rope(layer)
    if module is None:
        return None
    try:
        at_zero, at_one = (_matrix(module, head_dim, t) for t in (0, 1))
    except (TypeError, ValueError, RuntimeError):
        return None
    gain = np.diag(at_zero).copy()
    if np.any(gain <= 0) or np.abs(at_zero - np.diag(gain)).max() > 1e-6:
        return None
    found = _pairing(at_one / gain)
    if found is None:
        return None
    interleaved, dims = found
    first, second = _pairs(interleaved, dims)

    def angles(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.arctan2(matrix[second, first], matrix[first, first])

    frequencies = angles(at_one / gain)
    for position in _REFINE_AT:
        off = angles(_matrix(module, head_dim, position) / gain) - frequencies * position
        frequencies = frequencies + (np.mod(off + np.pi, 2 * np.pi) - np.pi) / position
    for position in _VERIFY_AT:
        expected = _rotation(frequencies * position, first, second, head_dim)
        if np.abs(_matrix(module, head_dim, position) / gain - expected).max() > _TOLERANCE:
            return None
    return RotaryParameters(tuple(float(f) for f in frequencies), interleaved)


def _find_rope(layer: Any) -> Any:
    """The layer's rotary module: by the names that mlx-lm's models use."""
    for name, module in layer.named_modules():
        kind, last = type(module).__name__.lower(), name.rpartition(".")[2].lower()
        if "rope" in kind or "rotary" in kind or last in ("rope", "rotary_emb"):
            return module
    return None


def _matrix(module: Any, head_dim: int, position: int) -> NDArray[np.float64]:
    """What the module does to each unit vector at a position: float64 [head_dim, head_dim], columns are images."""
    turned = module(mx.eye(head_dim)[None, :, None, :], offset=position)
    return np.array(turned[0, :, 0, :].astype(mx.float32), dtype=np.float64).T


def _pairing(at_one: NDArray[np.float64]) -> tuple[bool, int] | None:
    """Which channels are turned together, from the rotation at position 1: (interleaved, rotated dims)."""
    off_diagonal = np.abs(at_one - np.diag(np.diag(at_one)))
    partner = int(np.argmax(off_diagonal[:, 0]))
    if off_diagonal[partner, 0] == 0:
        return None
    if partner > 1:
        return False, 2 * partner
    turned = np.flatnonzero(off_diagonal.max(axis=0))
    return True, int(turned[-1]) + 1


def _pairs(interleaved: bool, dims: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if interleaved:
        return np.arange(0, dims, 2), np.arange(1, dims, 2)
    return np.arange(dims // 2), np.arange(dims // 2, dims)


def _rotation(
    angles: NDArray[np.float64], first: NDArray[np.int64], second: NDArray[np.int64], head_dim: int
) -> NDArray[np.float64]:
    matrix = np.eye(head_dim)
    matrix[first, first] = matrix[second, second] = np.cos(angles)
    matrix[second, first], matrix[first, second] = np.sin(angles), -np.sin(angles)
    return matrix
