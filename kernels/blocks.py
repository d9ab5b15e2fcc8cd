"""Reference implementations work in blocks on a CPU, so that intermediate arrays stay in its second-level cache."""

from __future__ import annotations

import mlx.core as mx

BLOCK_ELEMENTS = 1 << 18
"""Elements of an intermediate array at a time: about twice as fast as all at once."""


def on_cpu() -> bool:
    """Whether MLX computes on a CPU by default."""
    return mx.default_device() == mx.Device(mx.cpu)
