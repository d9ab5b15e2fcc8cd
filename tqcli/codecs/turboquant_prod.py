"""turboquant-prod: turboquant-mse at one bit less, and a one-bit sketch of what it leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import mlx.core as mx

from tqcli.codecs.base import Center, Codec, Encoded, State, check_bits, check_outlier_bits, register
from tqcli.codecs.context import LayerContext, Tensor
from tqcli.codecs.rotation import RotationKind, check_rotation
from tqcli.codecs.sketch import (
    SignSketch,
    SketchKind,
    check_sketch,
    estimate,
    gain,
    quicker_unsketched,
    sketch_error,
)
from tqcli.codecs.turboquant_mse import TurboQuantMSE
from tqcli.errors import InputError
from tqcli.kernels import SCALE_BITS, Residuals, prod_scores, sketch_signs, unsketch, words_per_row
from tqcli.kernels.attend import Reader

_SIGNS, _SCALES = "residual.signs", "residual.scales"


@register
@dataclass(frozen=True)
class TurboQuantProd(Codec):
    """TurboQuant's Algorithm 2 (arXiv 2504.19874): x' of turboquant-mse at b - 1 bits, and qjl of r = x - x'.

    <q, x> is estimated by <q, x'> + ||r|| <S q, sign(S r)> * constant. Stored: what turboquant-mse stores,
    `residual.signs` uint32 [..., tokens, ceil(m / 32)] and `residual.scales` bfloat16 [..., tokens] (||r|| / sqrt(d)):
    b + 32 / d bits an element. At 1 bit there is no first stage, and one scale. An estimator of inner products: what
    `decode` gives has the same ones, so it is unbiased, and its error is the estimator's variance.
    """

    name: ClassVar[str] = "turboquant-prod"
    summary: ClassVar[str] = "turboquant-mse and a one-bit sketch of its residual, keys only (TurboQuant, Algorithm 2)"
    applies_to: ClassVar[tuple[Tensor, ...]] = ("keys",)
    bits_allowed: ClassVar[tuple[float, ...]] = tuple(half / 2 for half in range(2, 17))
    center_default: ClassVar[Center] = "rope"
    splits_channels: ClassVar[bool] = True

    bits: float
    """Half bits are a channel split: of 2.5, a quarter of the channels take 3 bits and the others 2."""
    m: int = 0
    """Projections of a residual; 0 for head_dim."""
    sketch: SketchKind = "orthogonal"
    rotation: RotationKind = "hadamard"
    """Of the first stage, and what makes the blocks of an orthogonal sketch."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_bits(type(self), self.bits)
        check_sketch(self.sketch, self.m)
        check_rotation(self.rotation, self.seed)

    def bits_nominal(self, ctx: LayerContext) -> float:
        return self.bits - 1 + self._rows(ctx.head_dim) / ctx.head_dim

    def unsupported(self, ctx: LayerContext) -> str | None:
        return None if self._first is None else self._first.unsupported(ctx)

    def remarks(self, ctx: LayerContext) -> list[str]:
        first = [] if self._first is None else self._first.remarks(ctx)
        return list(dict.fromkeys([*first, *self._sketch(ctx.head_dim).remarks()]))

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        if self.splits_by_itself:
            raise ValueError(f"{self.bits:g} bits are a channel split: build the codec with parse_codec")
        sketch = self._sketch(ctx.head_dim)
        shared, arrays, residual = sketch.arrays(), {}, x
        if self._first is not None:
            first = self._first.encode(x, ctx)
            residual = x.astype(ctx.arithmetic) - self._first.decode(first, ctx)
            shared, arrays = first.shared | shared, first.arrays
        signs, scales = sketch_signs(residual, sketch.matrix(shared).astype(ctx.arithmetic))
        return Encoded(arrays | {_SIGNS: signs, _SCALES: scales}, x.shape[-2], shared)

    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        matrix = self._sketch(ctx.head_dim).matrix(enc.shared).astype(ctx.arithmetic)
        residual = unsketch(enc.arrays[_SIGNS], enc.arrays[_SCALES], matrix, gain(matrix))
        return residual if self._first is None else self._first.decode(enc, ctx) + residual

    def scores(self, q: mx.array, enc: Encoded, ctx: LayerContext) -> mx.array:
        matrix = self._sketch(ctx.head_dim).matrix(enc.shared).astype(ctx.arithmetic)
        signs, scales = enc.arrays[_SIGNS], enc.arrays[_SCALES]
        if self._first is None:
            return estimate(q, signs, scales, matrix, ctx.gqa_ratio)
        return prod_scores(q, self._first.rotated(enc, ctx), Residuals(signs, scales, matrix, gain(matrix)))

    def attend_reader(self, enc: Encoded, ctx: LayerContext) -> Reader | None:
        sketch = self._sketch(ctx.head_dim).reader(enc.arrays[_SIGNS], enc.arrays[_SCALES], enc.shared)
        first = None if self._first is None else self._first.attend_reader(enc, ctx)
        return sketch if first is None else first.with_sketch(sketch)

    def quicker_decoded(self, queries: int, tokens: int, ctx: LayerContext) -> bool:
        d = ctx.head_dim
        if self._first is None:
            return quicker_unsketched(queries, tokens, self._rows(d), d)
        return tokens * d < queries * (d + tokens)  # the product with the first stage's keys is in both

    @property
    def scores_operation(self) -> str | None:
        return "qjl_scores" if self._first is None else "prod_scores"

    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        own = vectors * tokens * (4 * words_per_row(self._rows(ctx.head_dim), 1) + SCALE_BITS // 8)
        return own if self._first is None else own + self._first.bytes_nominal(vectors, tokens, ctx)

    def relative_mse_theory(self, head_dim: int) -> float | None:
        if self.rotation == "none":
            return None  # it depends on the data
        left = 1.0 if self._first is None else self._first.relative_mse_theory(head_dim)
        error = sketch_error(self._sketch(head_dim))
        return None if left is None or error is None else left * error

    def split(self, outliers: int, head_dim: int) -> tuple[Codec, Codec]:
        """One bit more for the outliers; `m`, where given, is divided by the number of channels."""
        if self.m == 1:
            raise InputError(f"m=1 can't be divided among {outliers} outlier channels and the others; give m=2 or more")
        bits = math.floor(self.bits)
        check_outlier_bits(type(self), bits + 1)
        apart = min(max(1, round(self.m * outliers / head_dim)), self.m - 1) if self.m else 0
        low = self.m - apart
        return replace(self, bits=bits, m=low), replace(self, bits=bits + 1, m=apart)

    @property
    def splits_by_itself(self) -> bool:
        return self.bits % 1 > 0

    def outliers_default(self, head_dim: int) -> int:
        return head_dim // 4 if self.splits_by_itself else 0

    @property
    def _first(self) -> TurboQuantMSE | None:
        bits = int(self.bits) - 1
        return TurboQuantMSE(bits, "plain", self.rotation, self.seed) if bits else None

    def _rows(self, head_dim: int) -> int:
        return self.m or head_dim

    def _sketch(self, head_dim: int) -> SignSketch:
        return SignSketch(self.name, self.sketch, self.rotation, self._rows(head_dim), head_dim, self.seed)
