"""qjl: one bit for each of m random projections of a key, and inner products estimated from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import mlx.core as mx

from tqcli.codecs.base import Center, Codec, Encoded, State, check_bits, register
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
from tqcli.errors import InputError
from tqcli.kernels import SCALE_BITS, sketch_signs, unsketch, words_per_row
from tqcli.kernels.attend import Reader


@register
@dataclass(frozen=True)
class QJL(Codec):
    """QJL (arXiv 2406.03482): sign(S k) and the key's norm; <q, k> is estimated by ||k|| <S q, sign(S k)> * constant.

    Stored: `signs` uint32 [..., tokens, ceil(m / 32)] and `scales` bfloat16 [..., tokens], the root mean square
    (norm / sqrt(d)). An estimator of inner products: what `decode` gives has the same ones, so it is unbiased, and
    its error is the estimator's variance.
    """

    name: ClassVar[str] = "qjl"
    summary: ClassVar[str] = "signs of random projections, keys only (QJL, arXiv 2406.03482)"
    applies_to: ClassVar[tuple[Tensor, ...]] = ("keys",)
    bits_allowed: ClassVar[tuple[float, ...]] = tuple(half / 2 for half in range(1, 17))
    center_default: ClassVar[Center] = "rope"
    splits_channels: ClassVar[bool] = True

    bits: float
    """Projections an element: m = bits * head_dim."""
    m: int = 0
    """Projections of a key; 0 for as many as the bits ask for."""
    sketch: SketchKind = "orthogonal"
    rotation: RotationKind = "hadamard"
    """What makes the blocks of an orthogonal sketch."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_bits(type(self), self.bits)
        check_sketch(self.sketch, self.m)
        check_rotation(self.rotation, self.seed)

    def rows(self, head_dim: int) -> int:
        """Rows of S, which are the sign bits of a key."""
        return self.m or math.ceil(self.bits * head_dim)

    def bits_nominal(self, ctx: LayerContext) -> float:
        return self.rows(ctx.head_dim) / ctx.head_dim

    def remarks(self, ctx: LayerContext) -> list[str]:
        return self._sketch(ctx.head_dim).remarks()

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        shared = self._sketch(ctx.head_dim).arrays()
        signs, scales = sketch_signs(x, self._sketch(ctx.head_dim).matrix(shared).astype(ctx.arithmetic))
        return Encoded({"signs": signs, "scales": scales}, x.shape[-2], shared)

    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        matrix = self._sketch(ctx.head_dim).matrix(enc.shared).astype(ctx.arithmetic)
        return unsketch(enc.arrays["signs"], enc.arrays["scales"], matrix, gain(matrix))

    def scores(self, q: mx.array, enc: Encoded, ctx: LayerContext) -> mx.array:
        matrix = self._sketch(ctx.head_dim).matrix(enc.shared).astype(ctx.arithmetic)
        return estimate(q, enc.arrays["signs"], enc.arrays["scales"], matrix, ctx.gqa_ratio)

    def quicker_decoded(self, queries: int, tokens: int, ctx: LayerContext) -> bool:
        return quicker_unsketched(queries, tokens, self.rows(ctx.head_dim), ctx.head_dim)

    @property
    def scores_operation(self) -> str | None:
        return "qjl_scores"

    def attend_reader(self, enc: Encoded, ctx: LayerContext) -> Reader | None:
        return self._sketch(ctx.head_dim).reader(enc.arrays["signs"], enc.arrays["scales"], enc.shared)

    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        return vectors * tokens * (4 * words_per_row(self.rows(ctx.head_dim), 1) + SCALE_BITS // 8)

    def relative_mse_theory(self, head_dim: int) -> float | None:
        if self.sketch == "orthogonal" and self.rotation == "none":
            return None  # it depends on the data
        return sketch_error(self._sketch(head_dim))

    def split(self, outliers: int, head_dim: int) -> tuple[Codec, Codec]:
        """A sketch for the ordinary channels and one of head_dim rows for the outliers (section 4.1 of the paper).

        The two together have as many rows as one sketch would. Raises `InputError` where none is left.
        """
        rows = self.rows(head_dim)
        if rows <= head_dim:
            raise InputError(
                f"qjl's outlier channels take {head_dim} of its {rows} sign bits a key (head_dim {head_dim}), which "
                f"leaves none for the others: give more than 1 bit, for example qjl@2, or leave out outliers={outliers}"
            )
        return replace(self, m=rows - head_dim), replace(self, m=head_dim)

    def _sketch(self, head_dim: int) -> SignSketch:
        return SignSketch(self.name, self.sketch, self.rotation, self.rows(head_dim), head_dim, self.seed)
