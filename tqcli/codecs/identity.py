"""identity: the tensor as it came, bit for bit; the floor of every measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from tqcli.codecs.base import Codec, Encoded, State, register
from tqcli.codecs.context import LayerContext


@register
@dataclass(frozen=True)
class Identity(Codec):
    """Stores x unchanged, in the dtype that it was captured in."""

    name: ClassVar[str] = "identity"
    summary: ClassVar[str] = "keeps the tensor as it is (control)"

    def bits_nominal(self, ctx: LayerContext) -> float:
        return float(8 * getattr(mx, ctx.capture_dtype).size)

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        return Encoded({"x": x}, x.shape[-2])

    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        return enc.arrays["x"].astype(ctx.arithmetic)

    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        size: int = getattr(mx, ctx.capture_dtype).size
        return vectors * tokens * ctx.head_dim * size

    def relative_mse_theory(self, head_dim: int) -> float | None:
        return 0.0
