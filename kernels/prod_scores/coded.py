"""The two halves of what turboquant-prod stores."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class Rotated:
    """Vectors as `rotate_quantise` codes them."""

    codes: mx.array
    """uint32 [..., tokens, words]."""
    scales: mx.array | None
    """Float [..., tokens]; None where they lie in the codes' last words (`has_embedded_scale`)."""
    rotation: mx.array
    """float32 [d, d]; float64 makes all arithmetic float64."""
    codebook: mx.array
    """float32 [2**bits]."""
    bits: int


@dataclass(frozen=True)
class Residuals:
    """What is left of them, as `sketch_signs` codes it."""

    signs: mx.array
    """uint32 [..., tokens, words]."""
    scales: mx.array
    """Float [..., tokens]."""
    sketch: mx.array
    """float32 [m, d]."""
    gain: float
    """That of `sketch_scores`."""
