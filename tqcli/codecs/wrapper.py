"""A codec around another one: it answers for it, and changes what its subclass says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import mlx.core as mx

from tqcli.codecs.base import Center, Codec, Encoded, State
from tqcli.codecs.context import LayerContext
from tqcli.kernels.attend import Reader


@dataclass(frozen=True)
class Wrapper(Codec):
    """Answers what a codec is asked by the inner one. The class variables stay with the inner codec's class."""

    inner: Codec

    @property
    def name(self) -> str:  # type: ignore[override]
        """The inner codec's."""
        return self.inner.name

    @property
    def needs_calibration(self) -> bool:  # type: ignore[override]
        """The inner codec's."""
        return self.inner.needs_calibration

    def centring(self, ctx: LayerContext) -> Center:
        return self.inner.centring(ctx)

    def bits_nominal(self, ctx: LayerContext) -> float:
        return self.inner.bits_nominal(ctx)

    def check(self, ctx: LayerContext) -> None:
        self.inner.check(ctx)

    def unsupported(self, ctx: LayerContext) -> str | None:
        return self.inner.unsupported(ctx)

    @property
    def patience(self) -> str | None:
        return self.inner.patience

    def remarks(self, ctx: LayerContext) -> list[str]:
        return self.inner.remarks(ctx)

    def learns(self, ctx: LayerContext) -> tuple[str, ...]:
        return self.inner.learns(ctx)

    def learned_bytes(self, vectors: int, ctx: LayerContext) -> int:
        return self.inner.learned_bytes(vectors, ctx)

    def shared_name(self, name: str, ctx: LayerContext) -> str:
        return self.inner.shared_name(name, ctx)

    def calibrate(self, x: mx.array, ctx: LayerContext) -> State:
        return self.inner.calibrate(x, ctx)

    def calibrate_layers(self, layers: Iterable[tuple[LayerContext, mx.array]]) -> dict[int, State]:
        return self.inner.calibrate_layers(layers)

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        return self.inner.encode(x, ctx, state)

    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        return self.inner.decode(enc, ctx)

    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        return self.inner.bytes_nominal(vectors, tokens, ctx)

    def relative_mse_theory(self, head_dim: int) -> float | None:
        return self.inner.relative_mse_theory(head_dim)

    def ip_variance_theory(self, head_dim: int) -> float | None:
        return self.inner.ip_variance_theory(head_dim)

    def offset(self, enc: Encoded, ctx: LayerContext) -> mx.array | None:
        return self.inner.offset(enc, ctx)

    def scores(self, q: mx.array, enc: Encoded, ctx: LayerContext) -> mx.array:
        return self.inner.scores(q, enc, ctx)

    def quicker_decoded(self, queries: int, tokens: int, ctx: LayerContext) -> bool:
        return self.inner.quicker_decoded(queries, tokens, ctx)

    @property
    def scores_operation(self) -> str | None:
        return self.inner.scores_operation

    def attend_reader(self, enc: Encoded, ctx: LayerContext) -> Reader | None:
        return self.inner.attend_reader(enc, ctx)
