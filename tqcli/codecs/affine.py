"""affine: MLX's own group quantisation, what mlx-lm's quantised cache stores; the control that a user would pick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from tqcli.codecs.base import Codec, Encoded, State, Unsupported, check_bits, register, to_cache_dtype
from tqcli.codecs.context import LayerContext
from tqcli.errors import InputError
from tqcli.kernels.attend import Groups, Reader
from tqcli.kernels.runtime import chosen

_GROUPS = (32, 64, 128)
_BY_MLX = "MLX's own operation is what affine stands for"


@register
@dataclass(frozen=True)
class Affine(Codec):
    """`mx.quantize` of x in the cache's dtype: x ~ scale * code + bias, both a group of `group` channels.

    Stored: codes, scales and biases exactly as `mx.quantize` returns them, b + 32 / group bits an element for a 16-bit
    dtype. One bit is worse than storing zeros and is not offered.
    """

    name: ClassVar[str] = "affine"
    summary: ClassVar[str] = "mx.quantize, as in mlx-lm's QuantizedKVCache (control)"
    bits_allowed: ClassVar[tuple[float, ...]] = (2, 3, 4, 5, 6, 8)

    bits: float
    group: int = 64
    """Channels that share a scale and a bias: 32, 64 or 128."""

    def __post_init__(self) -> None:
        check_bits(type(self), self.bits)
        if self.group not in _GROUPS:
            raise InputError(f"group must be 32, 64 or 128, not {self.group}")

    def unsupported(self, ctx: LayerContext) -> str | None:
        if ctx.head_dim % self.group:
            return f"head_dim {ctx.head_dim} is not a multiple of affine's group of {self.group}"
        return None

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        y = to_cache_dtype(x, ctx)
        y = y.astype(mx.float32) if y.dtype == mx.float64 else y  # MLX quantises none of float64
        if y.size == 0:
            words, groups = ctx.head_dim * int(self.bits) // 32, ctx.head_dim // self.group
            lead = x.shape[:-1]
            empty = mx.zeros((*lead, groups), dtype=y.dtype)
            codes, scales, biases = mx.zeros((*lead, words), dtype=mx.uint32), empty, empty
        else:
            chosen("mx.quantize", y.size, unsupported=_BY_MLX)
            codes, scales, biases = mx.quantize(y, group_size=self.group, bits=int(self.bits))
            # Decoding multiplies in the cache's dtype.
            if y.dtype == mx.float16 and not mx.isfinite(scales * (2 ** int(self.bits) - 1)).all().item():
                raise Unsupported(f"the range of a group of {self.group} elements doesn't fit {ctx.cache_dtype}")
        return Encoded({"codes": codes, "scales": scales, "biases": biases}, x.shape[-2])

    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        codes, scales, biases = (enc.arrays[name] for name in ("codes", "scales", "biases"))
        if codes.size == 0:
            return mx.zeros((*codes.shape[:-1], ctx.head_dim))
        chosen("mx.dequantize", codes.size, unsupported=_BY_MLX)
        y = mx.dequantize(codes, scales, biases, group_size=self.group, bits=int(self.bits))
        return y.astype(ctx.arithmetic)

    def attend_reader(self, enc: Encoded, ctx: LayerContext) -> Reader | None:
        codes, scales, biases = (enc.arrays[name] for name in ("codes", "scales", "biases"))
        return Reader(Groups(ctx.head_dim, int(self.bits), self.group, codes, scales, biases))

    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        size: int = min(getattr(mx, ctx.cache_dtype).size, mx.float32.size)
        return vectors * tokens * (ctx.head_dim * int(self.bits) // 8 + ctx.head_dim // self.group * 2 * size)
