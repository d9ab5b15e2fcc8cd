"""turboquant-rvq: random rotation, then a scalar quantiser in two stages, of which the first is a cache of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import mlx.core as mx
import numpy as np

from tqcli.codecs import embedded, lloyd_max
from tqcli.codecs.base import Center, Codec, Encoded, State, check_bits, register
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
from tqcli.codecs.turboquant_mse import SCALE_ROUNDING, Scale, check_scale, is_unbiased
from tqcli.errors import InputError
from tqcli.kernels import SCALE_BITS, has_embedded_scale, words_per_row
from tqcli.kernels.attend import Levels, Reader

_CODES = ("codes1", "codes2")


def stage_bits(bits: float) -> tuple[int, ...]:
    """How the bits divide: the first stage takes the odd one, and 1 bit is the first stage alone. 5 gives (3, 2)."""
    first, second = (int(bits) + 1) // 2, int(bits) // 2
    return (first, second) if second else (first,)


@register
@dataclass(frozen=True)
class TurboQuantRVQ(Codec):
    """TurboQuant's rotation (arXiv 2504.19874) and residual quantisation in two stages (Juang and Gray, 1982).

    Stage 1 is turboquant-mse at half the bits. Stage 2 codes what it leaves, with one codebook for each stage-1 cell,
    which is optimal there. Stored: `codes1` and `codes2`, uint32 [..., tokens, words], and one 16-bit scale a vector.
    Without `codes2` the rest is what turboquant-mse would store at stage 1's bits (with the plain scale).
    """

    name: ClassVar[str] = "turboquant-rvq"
    summary: ClassVar[str] = (
        "random rotation, scalar quantiser in two stages, the first a cache itself (arXiv 2504.19874)"
    )
    bits_allowed: ClassVar[tuple[float, ...]] = tuple(range(1, 9))
    center_default: ClassVar[Center] = "rope"
    has_stages: ClassVar[bool] = True

    bits: float
    scale: Scale = "auto"
    """`plain`: least squared error. `unbiased`: inner products without shrinkage, at more variance. `auto`: by bits."""
    rotation: RotationKind = "hadamard"
    seed: int = 0
    stages: int = 2
    """How many stages decoding reads, 1 or 2. Both are stored either way."""

    def __post_init__(self) -> None:
        check_bits(type(self), self.bits)
        check_scale(self.scale)
        check_rotation(self.rotation, self.seed)
        _check_stages(self.stages)

    def unsupported(self, ctx: LayerContext) -> str | None:
        return None if ctx.head_dim >= 4 else f"head_dim {ctx.head_dim} is too small to rotate (at least 4)"

    def remarks(self, ctx: LayerContext) -> list[str]:
        return rotation_remarks(self.rotation, ctx.head_dim)

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        shared, thresholds = _tables(self, ctx.head_dim)
        rotation = self._rotation(shared, ctx)
        bits = stage_bits(self.bits)
        levels = self._levels(shared, ctx.head_dim, len(bits))
        planes, scales = quantise_rotated(x, rotation, ctx.arithmetic, levels, thresholds, bits, self._unbiased)
        arrays = dict(zip(_CODES, planes, strict=False)) | ({} if scales is None else {"scales": scales})
        return Encoded(arrays, x.shape[-2], dict(shared))

    def decode(self, enc: Encoded, ctx: LayerContext, stages: int | None = None) -> mx.array:
        """The reconstruction, float32 [..., tokens, head_dim], from so many `stages`; left out, the codec's own.

        One stage needs no `codes2`. Raises `InputError` for stages other than 1 and 2, `KeyError` for missing codes.
        """
        stages = self.stages if stages is None else stages
        _check_stages(stages)
        bits = stage_bits(self.bits)[:stages]
        planes = [enc.arrays[name] for name in _CODES[: len(bits)]]
        rotation = self._rotation(enc.shared, ctx)
        levels = self._levels(enc.shared, ctx.head_dim, len(bits)) * self._gain(ctx.head_dim, stages)
        scales = enc.arrays.get("scales")
        return dequantise_rotated(planes, scales, rotation, ctx.head_dim, ctx.arithmetic, levels, bits)

    def attend_reader(self, enc: Encoded, ctx: LayerContext) -> Reader | None:
        bits = stage_bits(self.bits)[: self.stages]
        planes = tuple(enc.arrays[name] for name in _CODES[: len(bits)])
        levels = self._levels(enc.shared, ctx.head_dim, len(bits)) * self._gain(ctx.head_dim, self.stages)
        packed = Levels(ctx.head_dim, bits, planes, enc.arrays.get("scales"), levels)
        return Reader(packed, matrix=rotation_matrix(self._rotation(enc.shared, ctx), ctx.head_dim))

    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        bits = stage_bits(self.bits)
        scale = 0 if has_embedded_scale(ctx.head_dim, bits[0]) else SCALE_BITS // 8
        return vectors * tokens * (4 * sum(words_per_row(ctx.head_dim, b) for b in bits) + scale)

    def relative_mse_theory(self, head_dim: int) -> float | None:
        if self.rotation == "none":
            return None  # it depends on the data
        bits = stage_bits(self.bits)
        if not self._unbiased and len(bits[: self.stages]) == 1:
            return lloyd_max.distortion(head_dim, bits[0]) + SCALE_ROUNDING
        if not self._unbiased:
            return embedded.embedded_distortion(head_dim, *bits) + SCALE_ROUNDING
        if len(bits) == 1:
            return lloyd_max.unbiased_distortion(head_dim, *bits) + SCALE_ROUNDING
        return embedded.embedded_unbiased_distortion(head_dim, *bits, stages=self.stages) + SCALE_ROUNDING

    @property
    def _unbiased(self) -> bool:
        return is_unbiased(self.scale, self.bits)

    def _gain(self, head_dim: int, stages: int) -> float:
        """What stage 1's levels are stretched by: the unbiased scale makes up for the shrinkage of both stages."""
        bits = stage_bits(self.bits)
        one_of_two = len(bits) == 2 and stages == 1
        return embedded.coarse_gain(head_dim, *bits) if one_of_two and self._unbiased else 1.0

    def _rotation(self, shared: dict[str, mx.array], ctx: LayerContext) -> dict[str, mx.array]:
        return take_rotation(shared, self.name, self.rotation, ctx.head_dim, self.seed)

    def _levels(self, shared: dict[str, mx.array], head_dim: int, stages: int) -> mx.array:
        return shared[_level_name(self, head_dim, stages)]


def _check_stages(stages: int) -> None:
    if stages not in (1, 2):
        raise InputError(f"stages must be 1 or 2, not {stages}")


def _level_name(codec: TurboQuantRVQ, head_dim: int, stages: int) -> str:
    return f"{codec.name}.d{head_dim}.b{codec.bits:g}.levels{stages}"


@lru_cache(maxsize=64)
def _tables(codec: TurboQuantRVQ, head_dim: int) -> tuple[dict[str, mx.array], mx.array]:
    """What is shared: the rotation, and the levels of stage 1 and of both stages; and the thresholds to encode with."""
    bits = stage_bits(codec.bits)
    coarse = fine = np.array(lloyd_max.codebook(head_dim, bits[0]), dtype=np.float32)
    shared = shared_rotation(codec.name, codec.rotation, head_dim, codec.seed)
    shared[_level_name(codec, head_dim, 1)] = mx.array(coarse)
    if len(bits) == 2:
        fine = np.array(embedded.embedded_codebook(head_dim, *bits), dtype=np.float32)
        shared[_level_name(codec, head_dim, 2)] = mx.array(fine)
    # From the rounded levels, as turboquant-mse does it, so that stage 1 has the same codes to the last one.
    return shared, mx.array(embedded.embedded_thresholds(coarse, fine))
