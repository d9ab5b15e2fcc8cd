"""One 16-bit scale a vector, the root mean square or near it, for any finite input.

The specification of what kernels of several operations do alike.
"""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.bit_pack import words_per_row
from tqcli.kernels.blocks import on_cpu

SCALE_BITS = 16
_BF16_MAX = 3.3895313892515355e38
_BF16_TINY = 2.0**-133
_RMS_LOW, _RMS_HIGH = 1e-12, 1e12


def has_embedded_scale(head_dim: int, bits: int) -> bool:
    """Whether a row of codes leaves 16 bits of its last word free, where the row's scale is then kept."""
    return words_per_row(head_dim, bits) * 32 - head_dim * bits >= SCALE_BITS


def root_mean_square(x: mx.array) -> mx.array:
    """Of each row of x [n, d]: float32 [n, 1]. Wrong where a square overflows or vanishes; see `must_take_care`."""
    return mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True))


def must_take_care(rms: mx.array) -> bool:
    """Whether some row is so large or small that a square may have overflowed or vanished; a zero row counts too.

    On a GPU, where asking would stall it, always: the careful way is right for any row.
    """
    return not on_cpu() or not bool((mx.all(rms > _RMS_LOW) & mx.all(rms < _RMS_HIGH)).item())


def take_out_largest(x: mx.array) -> tuple[mx.array, mx.array]:
    """Rows x [n, d] over their largest element, and that [n, 1]: squares then neither overflow nor vanish."""
    largest = mx.max(mx.abs(x), axis=-1, keepdims=True)
    return x / mx.where(largest == 0, 1, largest), largest


def stored_scale(scale: mx.array, rms: mx.array, largest: mx.array | None) -> mx.array:
    """Scales [n, 1], times `largest` where that was taken out, as stored: bfloat16 [n].

    Never 0 for a row that isn't zero, never inf for a finite one; NaN stays.
    """
    if largest is not None:
        scale = scale * largest
    scale = mx.where(mx.isnan(scale), scale, mx.clip(scale, mx.where(rms == 0, 0, _BF16_TINY), _BF16_MAX))
    return scale[:, 0].astype(mx.bfloat16)
