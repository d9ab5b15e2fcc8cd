"""Centring: subtracts a mean before any codec and adds it back after, because real keys share a large one.

`mean` subtracts the head's mean vector. `rope` takes the mean of the keys turned back to position 0 and subtracts it
turned to each key's own position: a projection bias, or any shared direction before RoPE, *turns* with the position,
so that a plain mean misses it. Removing a rotated mean or bias is known from KVTC (arXiv 2511.01815), which centres
pre-rotary keys; SageAttention (arXiv 2410.02367) removes the plain mean.

No future token is used: the mean is that of a calibration text or of this cache's own first tokens, which stay
uncompressed until there are enough of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.codecs.base import Center, Codec, Encoded, State, to_cache_dtype
from tqcli.codecs.context import LayerContext
from tqcli.codecs.rotary import turn
from tqcli.errors import InputError

WARM_UP_TOKENS = 64
"""The mean is taken from so many tokens; a shorter cache stays uncompressed. More of them gain next to nothing."""


def centring_used(center: Center, ctx: LayerContext) -> Center:
    """What `center` means for this tensor: `rope` needs keys, and their rotary parameters, else it is a plain mean.

    Values carry no position: `rope` leaves them as they are, and `mean` centres them too.
    """
    if center != "rope":
        return center
    if ctx.tensor == "values":
        return "none"
    return "rope" if ctx.rotary is not None else "mean"


@dataclass(frozen=True)
class Centred(Codec):
    """Any codec, applied to x minus a mean. The mean is kept in bfloat16 and that rounded one is what is subtracted."""

    inner: Codec
    center: Center

    def __post_init__(self) -> None:
        if self.center not in get_args(Center):
            raise InputError(f"center must be one of {', '.join(get_args(Center))}, not {self.center!r}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The inner codec's."""
        return self.inner.name

    @property
    def bits(self) -> float:
        """The inner codec's."""
        return float(getattr(self.inner, "bits", 0))

    def bits_nominal(self, ctx: LayerContext) -> float:
        return self.inner.bits_nominal(ctx)

    def unsupported(self, ctx: LayerContext) -> str | None:
        return self.inner.unsupported(ctx)

    def calibrate(self, x: mx.array, ctx: LayerContext) -> State | None:
        """The mean of all tokens of x, [..., 1, head_dim] bfloat16, and whatever the inner codec learns of the rest."""
        if centring_used(self.center, ctx) == "none":
            return self.inner.calibrate(x, ctx)
        mean = self._mean(x, ctx)
        return {"mean": mean, **(self.inner.calibrate(x - self._turned(mean, x.shape[-2], ctx), ctx) or {})}

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        if centring_used(self.center, ctx) == "none":
            return self.inner.encode(x, ctx, state)
        if state is not None:
            mean, own = state["mean"], {}
            shared = {f"{ctx.layer}.{ctx.tensor}.mean": mean}
        else:
            if x.shape[-2] < WARM_UP_TOKENS:
                return Encoded({"raw": to_cache_dtype(x, ctx)}, x.shape[-2])
            mean, shared = self._mean(x[..., :WARM_UP_TOKENS, :], ctx), {}
            own = {"mean": mean}
        inner = self.inner.encode(x.astype(mx.float32) - self._turned(mean, x.shape[-2], ctx), ctx, state)
        return Encoded(inner.arrays | own, x.shape[-2], inner.shared | shared)

    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        if "raw" in enc.arrays:
            return enc.arrays["raw"].astype(mx.float32)
        decoded, offset = self.inner.decode(enc, ctx), self.offset(enc, ctx)
        return decoded if offset is None else decoded + offset

    def offset(self, enc: Encoded, ctx: LayerContext) -> mx.array | None:
        if "raw" in enc.arrays:
            return enc.arrays["raw"].astype(mx.float32)
        mean = enc.arrays.get("mean", enc.shared.get(f"{ctx.layer}.{ctx.tensor}.mean"))
        return None if mean is None else self._turned(mean, enc.tokens, ctx)

    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        if centring_used(self.center, ctx) == "none":
            return self.inner.bytes_nominal(vectors, tokens, ctx)
        if tokens < WARM_UP_TOKENS:
            size: int = getattr(mx, ctx.cache_dtype).size
            return vectors * tokens * ctx.head_dim * size
        return self.inner.bytes_nominal(vectors, tokens, ctx) + vectors * ctx.head_dim * 2

    def relative_mse_theory(self, head_dim: int) -> float | None:
        return self.inner.relative_mse_theory(head_dim)

    def scores(self, q: mx.array, enc: Encoded, ctx: LayerContext) -> mx.array:
        offset = self.offset(enc, ctx)
        if offset is None:
            return self.inner.scores(q, enc, ctx)
        added = q.astype(mx.float32) @ mx.repeat(offset, ctx.gqa_ratio, axis=-3).swapaxes(-1, -2)
        return added if "raw" in enc.arrays else self.inner.scores(q, enc, ctx) + added

    def _mean(self, x: mx.array, ctx: LayerContext) -> mx.array:
        x = x.astype(mx.float32)
        if centring_used(self.center, ctx) == "rope" and ctx.rotary is not None:
            x = turn(x, _positions(ctx, x.shape[-2]), ctx.rotary, inverse=True)
        return mx.mean(x, axis=-2, keepdims=True).astype(mx.bfloat16)

    def _turned(self, mean: mx.array, tokens: int, ctx: LayerContext) -> mx.array:
        if centring_used(self.center, ctx) == "rope" and ctx.rotary is not None:
            return turn(mean, _positions(ctx, tokens), ctx.rotary)
        return mean.astype(mx.float32)


def _positions(ctx: LayerContext, tokens: int) -> NDArray[np.int64]:
    positions = np.arange(tokens) if ctx.positions is None else ctx.positions[:tokens]
    if len(positions) != tokens:
        raise ValueError(f"{tokens} tokens need as many positions, not {len(positions)}")
    return positions.astype(np.int64)
