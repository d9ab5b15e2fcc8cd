"""Centring: subtracts a mean before any codec and adds it back after, because real keys share a large one.

`mean` subtracts the head's mean vector. `rope` takes the mean of the keys turned back to position 0 and subtracts it
turned to each key's own position: a projection bias, or any shared direction before RoPE, *turns* with the position,
so that a plain mean misses it. Removing a rotated mean or bias is known from KVTC (arXiv 2511.01815), which centres
pre-rotary keys; SageAttention (arXiv 2410.02367) removes the plain mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import get_args

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.codecs.base import Center, Encoded, State
from tqcli.codecs.context import LayerContext
from tqcli.codecs.rotary import turn
from tqcli.codecs.wrapper import Wrapper
from tqcli.errors import InputError
from tqcli.kernels.attend import Offset, Reader

_MEAN = "mean"


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
class Centred(Wrapper):
    """Any codec, applied to x minus a mean. The mean is kept in bfloat16 and that rounded one is what is subtracted."""

    center: Center

    def __post_init__(self) -> None:
        if self.center not in get_args(Center):
            raise InputError(f"center must be one of {', '.join(get_args(Center))}, not {self.center!r}")

    def centring(self, ctx: LayerContext) -> Center:
        return centring_used(self.center, ctx)

    def remarks(self, ctx: LayerContext) -> list[str]:
        own = ["center=rope is a plain mean: the layer's rotary parameters aren't known"]
        fallen = ctx.tensor == "keys" and self.center == "rope" and ctx.rotary is None
        return (own if fallen else []) + self.inner.remarks(ctx)

    def learns(self, ctx: LayerContext) -> tuple[str, ...]:
        inner = self.inner.learns(ctx)
        if self.centring(ctx) == "none":
            return inner
        if _MEAN in inner:
            raise ValueError(f"{self.name} learns something called {_MEAN}, which is centring's; call it otherwise")
        return (_MEAN, *inner)

    def learned_bytes(self, vectors: int, ctx: LayerContext) -> int:
        own = 0 if self.centring(ctx) == "none" else vectors * ctx.head_dim * mx.bfloat16.size
        return own + self.inner.learned_bytes(vectors, ctx)

    def shared_name(self, name: str, ctx: LayerContext) -> str:
        return f"{ctx.layer}.{ctx.tensor}.{_MEAN}" if name == _MEAN else self.inner.shared_name(name, ctx)

    def calibrate(self, x: mx.array, ctx: LayerContext) -> State:
        """The mean of all tokens of x, bfloat16 [heads, 1, head_dim], and what the inner codec learns of the rest."""
        return self.calibrate_layers([(ctx, x)])[ctx.layer]

    def calibrate_layers(self, layers: Iterable[tuple[LayerContext, mx.array]]) -> dict[int, State]:
        means: dict[int, State] = {}

        def centred() -> Iterator[tuple[LayerContext, mx.array]]:
            for ctx, x in layers:
                if self.centring(ctx) == "none":
                    means[ctx.layer] = {}
                    yield ctx, x
                else:
                    mean = self._mean(x, ctx)
                    means[ctx.layer] = {_MEAN: mean}
                    yield ctx, x.astype(ctx.arithmetic) - self._turned(mean, x.shape[-2], ctx)

        learned = self.inner.calibrate_layers(centred())
        return {layer: {**own, **learned[layer]} for layer, own in means.items()}

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        if self.centring(ctx) == "none":
            return self.inner.encode(x, ctx, state)
        if state is None:
            raise ValueError("a centred codec needs a state: calibrate first")
        return self.inner.encode(x.astype(ctx.arithmetic) - self._turned(state[_MEAN], x.shape[-2], ctx), ctx, state)

    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        decoded, offset = self.inner.decode(enc, ctx), self.offset(enc, ctx)
        return decoded if offset is None else decoded + offset

    def offset(self, enc: Encoded, ctx: LayerContext) -> mx.array | None:
        return None if self.centring(ctx) == "none" else self._turned(enc.state[_MEAN], enc.tokens, ctx)

    def scores(self, q: mx.array, enc: Encoded, ctx: LayerContext) -> mx.array:
        scores, offset = self.inner.scores(q, enc, ctx), self.offset(enc, ctx)
        if offset is None:
            return scores
        return scores + q.astype(ctx.arithmetic) @ mx.repeat(offset, ctx.gqa_ratio, axis=-3).swapaxes(-1, -2)

    def attend_reader(self, enc: Encoded, ctx: LayerContext) -> Reader | None:
        reader = self.inner.attend_reader(enc, ctx)
        if reader is None or self.centring(ctx) == "none":
            return reader
        offset = Offset(enc.state[_MEAN])
        if self.centring(ctx) == "rope" and ctx.rotary is not None:
            offset = Offset(enc.state[_MEAN], ctx.rotary.frequencies, ctx.rotary.interleaved)
        return replace(reader, offset=offset)

    def _mean(self, x: mx.array, ctx: LayerContext) -> mx.array:
        x = x.astype(mx.float32)
        if self.centring(ctx) == "rope" and ctx.rotary is not None:
            x = turn(x, _positions(ctx, x.shape[-2]), ctx.rotary, inverse=True)
        return mx.mean(x, axis=-2, keepdims=True).astype(mx.bfloat16)

    def _turned(self, mean: mx.array, tokens: int, ctx: LayerContext) -> mx.array:
        if self.centring(ctx) == "rope" and ctx.rotary is not None:
            return turn(mean, _positions(ctx, tokens), ctx.rotary)
        return mean.astype(mx.float32)


def _positions(ctx: LayerContext, tokens: int) -> NDArray[np.int64]:
    positions = np.arange(tokens) if ctx.positions is None else ctx.positions[:tokens]
    if len(positions) != tokens:
        raise ValueError(f"{tokens} tokens need as many positions, not {len(positions)}")
    return positions.astype(np.int64)
