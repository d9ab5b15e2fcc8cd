"""Finds out what a layer's rotary embedding does, by watching it and by turning unit vectors with it.

Every rotary embedding of mlx-lm ends in `mx.fast.rope`, whatever scheme of context extension computes its frequencies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.codecs.context import RotaryParameters

_REFINE_AT = (16, 256, 4096)
_VERIFY_AT = (1, 3, 1000, 4096, 8191)
_TOLERANCE = 2e-3
"""A float32 angle at position 8,191 is off by up to 5e-4 rad in the layer itself."""

Rope = Callable[..., mx.array]
"""Turns [batch, heads, tokens, head_dim], the first token being at the keyword `offset`."""


@dataclass(frozen=True)
class RopeCall:
    """The arguments of one call of `mx.fast.rope`, but for what it turned and where."""

    dims: int
    traditional: bool
    base: float | None
    scale: float
    freqs: mx.array | None

    def turn(self, x: mx.array, *, offset: int) -> mx.array:
        """Turns x [batch, heads, tokens, head_dim] alike, its first token being at `offset`."""
        return mx.fast.rope(
            x,
            self.dims,
            traditional=self.traditional,
            base=self.base,
            scale=self.scale,
            offset=offset,
            freqs=self.freqs,
        )

    def parameters(self) -> RotaryParameters:
        """What the arguments say, in float64; `freqs` are positions per radian."""
        if self.freqs is not None:
            with np.errstate(divide="ignore"):
                frequencies = self.scale / np.array(self.freqs.astype(mx.float32), dtype=np.float64)
        else:
            exponents = np.arange(0, self.dims, 2) / self.dims
            frequencies = self.scale * float(self.base or 0.0) ** -exponents
        return RotaryParameters(tuple(float(f) for f in frequencies), self.traditional)


@contextmanager
def observe_rope(see: Callable[[RopeCall, mx.array], object]) -> Iterator[None]:
    """Calls `see` with the arguments and the output of every rotary embedding applied while the context lasts."""
    original = mx.fast.rope

    def observed(
        a: mx.array,
        dims: int,
        *,
        traditional: bool,
        base: float | None,
        scale: float,
        offset: int | mx.array,
        freqs: mx.array | None = None,
        **kwargs: Any,
    ) -> mx.array:
        output = original(
            a, dims, traditional=traditional, base=base, scale=scale, offset=offset, freqs=freqs, **kwargs
        )
        see(RopeCall(dims, traditional, base, scale, freqs), output)
        return output

    mx.fast.rope = observed
    try:
        yield
    finally:
        mx.fast.rope = original


def probe_rotary(rope: Rope, head_dim: int, longest: int = 8192) -> RotaryParameters | None:
    """The rotation that `rope` (a module like `nn.RoPE`, or a function) applies to heads of `head_dim` channels.

    The frequencies are those that it hands to `mx.fast.rope` or, where it works by itself, measured on unit vectors.
    They are checked against what it does to unit vectors at positions up to `longest`. None where it isn't a rotation
    of leading channels by angles linear in the position. A constant gain, as YaRN's, is left out: it is not a rotation.
    """
    calls: list[RopeCall] = []
    try:
        with observe_rope(lambda call, output: calls.append(call)):
            at_zero = _matrix(rope, head_dim, 0)
        gain = np.diag(at_zero).copy()
        if np.any(gain <= 0) or np.abs(at_zero - np.diag(gain)).max() > 1e-6:
            return None
        found = calls[0].parameters() if len(calls) == 1 else _measure(rope, head_dim, gain)
        if found is None or found.dims > head_dim:
            return None
        for position in (t for t in _VERIFY_AT if t < longest):
            if (
                np.abs(_matrix(rope, head_dim, position) / gain - _rotation(found, position, head_dim)).max()
                > _TOLERANCE
            ):
                return None
    except (TypeError, ValueError, RuntimeError):
        return None
    # Turning nothing is no rotary embedding.
    return found if any(found.frequencies) else None


def _matrix(rope: Rope, head_dim: int, position: int) -> NDArray[np.float64]:
    """What the module does to each unit vector at a position: float64 [head_dim, head_dim], columns are images."""
    turned = rope(mx.eye(head_dim)[None, :, None, :], offset=position)
    return np.array(turned[0, :, 0, :].astype(mx.float32), dtype=np.float64).T


def _measure(rope: Rope, head_dim: int, gain: NDArray[np.float64]) -> RotaryParameters | None:
    """Frequencies from the angles at position 1, refined at ever later ones, each known to a small part of a turn."""
    at_one = _matrix(rope, head_dim, 1) / gain
    pairing = _pairing(at_one)
    if pairing is None:
        return None
    first, second = _pairs(*pairing)

    def angles(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.arctan2(matrix[second, first], matrix[first, first])

    frequencies = angles(at_one)
    for position in _REFINE_AT:
        off = angles(_matrix(rope, head_dim, position) / gain) - frequencies * position
        frequencies = frequencies + (np.mod(off + np.pi, 2 * np.pi) - np.pi) / position
    return RotaryParameters(tuple(float(f) for f in frequencies), pairing[0])


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


def _rotation(rotary: RotaryParameters, position: int, head_dim: int) -> NDArray[np.float64]:
    angles = np.array(rotary.frequencies) * position
    first, second = _pairs(rotary.interleaved, rotary.dims)
    matrix = np.eye(head_dim)
    matrix[first, first] = matrix[second, second] = np.cos(angles)
    matrix[second, first], matrix[first, second] = np.sin(angles), -np.sin(angles)
    return matrix
