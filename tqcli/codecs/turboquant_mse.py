"""turboquant-mse: random rotation, then the optimal scalar quantiser of each coordinate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal, get_args

import mlx.core as mx

from tqcli.codecs import lloyd_max
from tqcli.codecs.base import Center, Codec, Encoded, State, check_bits, check_outlier_bits, register
from tqcli.codecs.context import LayerContext
from tqcli.codecs.rotation import (
    RotationKind,
    check_rotation,
    dequantise_rotated,
    quantise_rotated,
    rotation_matrix,
    rotation_remarks,
    shared_rotation,
    take_rotation,
)
from tqcli.errors import InputError
from tqcli.kernels import SCALE_BITS, Rotated, has_embedded_scale, words_per_row
from tqcli.kernels.attend import Levels, Reader

Scale = Literal["auto", "plain", "unbiased"]
UNBIASED_FROM = 4
"""Bits from which on `auto` is `unbiased`: below, its greater error costs more than its lack of shrinkage gains.

Encoded folders name `auto`, so that this can't change without a new name.
"""
SCALE_ROUNDING = (2**-7) ** 2 / 12 * 0.75 / (2 * math.log(2))
"""Mean squared relative rounding error of a bfloat16, its logarithm uniform: 2.8e-6, which shows from 7 bits on."""


def check_scale(scale: str) -> None:
    """Raises `InputError` for what isn't a `Scale`."""
    if scale not in get_args(Scale):
        raise InputError(f"scale must be auto, plain or unbiased, not {scale!r}")


def is_unbiased(scale: Scale, bits: float) -> bool:
    """What `scale` comes to at so many bits."""
    return scale == "unbiased" or (scale == "auto" and bits >= UNBIASED_FROM)


@register
@dataclass(frozen=True)
class TurboQuantMSE(Codec):
    """TurboQuant's Algorithm 1 (arXiv 2504.19874): y = R x / rms(x), each y_j to the nearest Lloyd-Max level.

    Stored: codes uint32 [..., tokens, words] and one 16-bit scale a vector, b + 16 / d bits an element where a row
    fills whole words. The scale is the root mean square (norm / sqrt(d)), so that no finite vector overflows it.
    """

    name: ClassVar[str] = "turboquant-mse"
    summary: ClassVar[str] = "random rotation and Lloyd-Max scalar quantiser (TurboQuant, arXiv 2504.19874)"
    bits_allowed: ClassVar[tuple[float, ...]] = tuple(half / 2 for half in range(2, 17))
    center_default: ClassVar[Center] = "rope"
    splits_channels: ClassVar[bool] = True

    bits: float
    """Half bits are a channel split: of 2.5, a quarter of the channels take 3 bits and the others 2."""
    scale: Scale = "auto"
    """`plain`: least squared error. `unbiased`: inner products without shrinkage, at more variance. `auto`: by bits."""
    rotation: RotationKind = "hadamard"
    seed: int = 0

    def __post_init__(self) -> None:
        check_bits(type(self), self.bits)
        check_scale(self.scale)
        check_rotation(self.rotation, self.seed)

    def unsupported(self, ctx: LayerContext) -> str | None:
        return None if ctx.head_dim >= 4 else f"head_dim {ctx.head_dim} is too small to rotate (at least 4)"

    def remarks(self, ctx: LayerContext) -> list[str]:
        return rotation_remarks(self.rotation, ctx.head_dim)

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        if self.splits_by_itself:
            raise ValueError(f"{self.bits:g} bits are a channel split: build the codec with parse_codec")
        shared, thresholds = _tables(self, ctx.head_dim)
        (codes,), scales = quantise_rotated(
            x,
            self._rotation(shared, ctx),
            ctx.arithmetic,
            self._codebook(shared, ctx.head_dim),
            thresholds,
            (int(self.bits),),
            is_unbiased(self.scale, self.bits),
        )
        arrays = {"codes": codes} | ({} if scales is None else {"scales": scales})
        return Encoded(arrays, x.shape[-2], dict(shared))

    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        return dequantise_rotated(
            (enc.arrays["codes"],),
            enc.arrays.get("scales"),
            self._rotation(enc.shared, ctx),
            ctx.head_dim,
            ctx.arithmetic,
            self._codebook(enc.shared, ctx.head_dim),
            (int(self.bits),),
        )

    def attend_reader(self, enc: Encoded, ctx: LayerContext) -> Reader | None:
        levels = self._codebook(enc.shared, ctx.head_dim)
        packed = Levels(ctx.head_dim, (int(self.bits),), (enc.arrays["codes"],), enc.arrays.get("scales"), levels)
        return Reader(packed, matrix=rotation_matrix(self._rotation(enc.shared, ctx), ctx.head_dim))

    def rotated(self, enc: Encoded, ctx: LayerContext) -> Rotated:
        """What `encode` stored, with what decodes it."""
        return Rotated(
            enc.arrays["codes"],
            enc.arrays.get("scales"),
            rotation_matrix(self._rotation(enc.shared, ctx), ctx.head_dim).astype(ctx.arithmetic),
            self._codebook(enc.shared, ctx.head_dim),
            int(self.bits),
        )

    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        scale = 0 if has_embedded_scale(ctx.head_dim, int(self.bits)) else SCALE_BITS // 8
        return vectors * tokens * (4 * words_per_row(ctx.head_dim, int(self.bits)) + scale)

    def relative_mse_theory(self, head_dim: int) -> float | None:
        if self.rotation == "none":
            return None  # it depends on the data
        unbiased = is_unbiased(self.scale, self.bits)
        of = lloyd_max.unbiased_distortion if unbiased else lloyd_max.distortion
        return of(head_dim, int(self.bits)) + SCALE_ROUNDING

    def split(self, outliers: int, head_dim: int) -> tuple[Codec, Codec]:
        bits = int(self.bits)
        check_outlier_bits(type(self), bits + 1)
        return replace(self, bits=bits), replace(self, bits=bits + 1)

    @property
    def splits_by_itself(self) -> bool:
        return self.bits % 1 > 0

    def outliers_default(self, head_dim: int) -> int:
        return head_dim // 4 if self.splits_by_itself else 0

    def _rotation(self, shared: dict[str, mx.array], ctx: LayerContext) -> dict[str, mx.array]:
        return take_rotation(shared, self.name, self.rotation, ctx.head_dim, self.seed)

    def _codebook(self, shared: dict[str, mx.array], head_dim: int) -> mx.array:
        return shared[f"{self.name}.d{head_dim}.b{self.bits:g}.codebook"]


@lru_cache(maxsize=64)
def _tables(codec: TurboQuantMSE, head_dim: int) -> tuple[dict[str, mx.array], mx.array]:
    """What is shared, the rotation and the levels; and the thresholds to encode with."""
    levels = mx.array(lloyd_max.codebook(head_dim, int(codec.bits)), dtype=mx.float32)
    rotation = shared_rotation(codec.name, codec.rotation, head_dim, codec.seed)
    shared = {**rotation, f"{codec.name}.d{head_dim}.b{codec.bits:g}.codebook": levels}
    return shared, (levels[1:] + levels[:-1]) / 2
