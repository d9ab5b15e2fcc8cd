"""fp16: the tensor in float16, what an uncompressed cache usually holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from tqcli.codecs.base import Codec, Encoded, State, Unsupported, register
from tqcli.codecs.context import LayerContext


@register
@dataclass(frozen=True)
class Float16(Codec):
    """Rounds x to float16. Elements above 65504 don't fit: such a tensor is not coded, and the report says so."""

    name: ClassVar[str] = "fp16"
    summary: ClassVar[str] = "rounds to float16 (control)"

    def bits_nominal(self, ctx: LayerContext) -> float:
        return 16.0

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        y = x.astype(mx.float16)
        if x.dtype != mx.float16 and x.size and mx.any(mx.isinf(y)).item():
            raise Unsupported(f"an element of {mx.max(mx.abs(x)).item():.6g} doesn't fit float16 (at most 65504)")
        return Encoded({"x": y}, x.shape[-2])

    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        return enc.arrays["x"].astype(ctx.arithmetic)

    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        return vectors * tokens * ctx.head_dim * 2
