"""Channel split: channels of most energy are coded apart, with more bits (TurboQuant, arXiv 2504.19874, experiments).

Which channels these are is learned for each head, and kept as a bit mask. The paper's 2.5 bits at 128 channels are 32
of them at 3 bits and 96 at 2, and a norm for each of the two groups: 2.25 + 0.25. QJL (arXiv 2406.03482, section 4)
likewise gives its outlier channels a sketch of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from tqcli.codecs.base import Codec, Encoded, State
from tqcli.codecs.context import LayerContext
from tqcli.codecs.wrapper import Wrapper
from tqcli.errors import InputError
from tqcli.kernels import pack_bits, unpack_bits, words_per_row
from tqcli.kernels.attend import Reader

_CHANNELS, _OUTLIER = "channels", "outlier."
_FEWEST = 4
"""A group of fewer channels is too small to rotate."""


@dataclass(frozen=True)
class ChannelSplit(Wrapper):
    """A codec for the ordinary channels of each head, and one for its outlier channels; both made by `inner.split`.

    x is [heads, tokens, head_dim] here: each head has its own outliers.
    """

    outliers: int
    """How many channels are coded apart; 0 for as many as the codec's bits ask for."""

    def __post_init__(self) -> None:
        if self.outliers < 0:
            raise InputError(f"outliers must be 0 or more, not {self.outliers}")

    def count(self, head_dim: int) -> int:
        """How many outlier channels a head has."""
        return self.outliers or self.inner.outliers_default(head_dim)

    def check(self, ctx: LayerContext) -> None:
        n = self.count(ctx.head_dim)
        if self.outliers and n > ctx.head_dim - _FEWEST:
            raise InputError(f"outliers={n} leave no {_FEWEST} ordinary ones of {ctx.head_dim} channels; ask for fewer")
        self._parts(ctx)

    def unsupported(self, ctx: LayerContext) -> str | None:
        n = self.count(ctx.head_dim)
        if not _FEWEST <= n <= ctx.head_dim - _FEWEST:
            return f"{n} outlier channels of head_dim {ctx.head_dim} leave a group of fewer than {_FEWEST}"
        low, high = self._parts(ctx)
        ordinary, outlier = (replace(ctx, head_dim=width, rotary=None) for width in (ctx.head_dim - n, n))
        return low.unsupported(ordinary) or high.unsupported(outlier)

    def bits_nominal(self, ctx: LayerContext) -> float:
        """As the codec is called at half bits; where outliers are asked for, the mean over the channels."""
        if not self.outliers:
            return self.inner.bits_nominal(ctx)
        return sum(codec.bits_nominal(part) * part.head_dim for codec, part in self._narrowed(ctx)) / ctx.head_dim

    def remarks(self, ctx: LayerContext) -> list[str]:
        return [remark for codec, part in self._narrowed(ctx) for remark in codec.remarks(part)]

    def learns(self, ctx: LayerContext) -> tuple[str, ...]:
        return (_CHANNELS,)

    def learned_bytes(self, vectors: int, ctx: LayerContext) -> int:
        return vectors * 4 * words_per_row(ctx.head_dim, 1)

    def calibrate(self, x: mx.array, ctx: LayerContext) -> State:
        """The mask of each head's outlier channels, uint32 [heads, 1, ceil(head_dim / 32)]: those of most energy."""
        x = x.astype(mx.float32)
        peak = mx.max(mx.abs(x), axis=(-1, -2), keepdims=True)
        energy = np.array(mx.mean((x / mx.where(peak == 0, 1, peak)) ** 2, axis=-2))
        chosen = np.argsort(-energy, axis=-1, kind="stable")[:, : self.count(ctx.head_dim)]
        mask = np.zeros(energy.shape, dtype=np.uint8)
        np.put_along_axis(mask, chosen, 1, axis=-1)
        return {_CHANNELS: pack_bits(mx.array(mask), 1)[:, None]}

    def calibrate_layers(self, layers: Iterable[tuple[LayerContext, mx.array]]) -> dict[int, State]:
        return {ctx.layer: self.calibrate(x, ctx) for ctx, x in layers}

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        if state is None:
            raise ValueError("a channel split needs a state: calibrate first")
        low, high = self._parts(ctx)
        ordinary, outlier = self._order(state, ctx)
        a = low.encode(_take(x, ordinary), _narrow(ctx, ordinary))
        b = high.encode(_take(x, outlier), _narrow(ctx, outlier))
        arrays = a.arrays | {_OUTLIER + name: array for name, array in b.arrays.items()}
        return Encoded(arrays, x.shape[-2], a.shared | b.shared, state)

    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        (low, a, ordinary), (high, b, outlier) = self._halves(enc, ctx)
        decoded = [low.decode(a, _narrow(ctx, ordinary)), high.decode(b, _narrow(ctx, outlier))]
        back = mx.argsort(mx.concatenate([ordinary, outlier], axis=-1), axis=-1)
        return _take(mx.concatenate(decoded, axis=-1), back)

    def scores(self, q: mx.array, enc: Encoded, ctx: LayerContext) -> mx.array:
        total = mx.zeros((1,))
        for codec, part, channels in self._halves(enc, ctx):
            own = mx.repeat(channels, ctx.gqa_ratio, axis=0)
            total = total + codec.scores(_take(q, own), part, _narrow(ctx, channels))
        return total

    def quicker_decoded(self, queries: int, tokens: int, ctx: LayerContext) -> bool:
        return all(codec.quicker_decoded(queries, tokens, part) for codec, part in self._narrowed(ctx))

    def attend_reader(self, enc: Encoded, ctx: LayerContext) -> Reader | None:
        return None  # the two groups lie in different channels of each head

    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        return sum(codec.bytes_nominal(vectors, tokens, part) for codec, part in self._narrowed(ctx))

    def relative_mse_theory(self, head_dim: int) -> float | None:
        return None  # it depends on how the energy divides

    def ip_variance_theory(self, head_dim: int) -> float | None:
        return None

    def _parts(self, ctx: LayerContext) -> tuple[Codec, Codec]:
        return self.inner.split(self.count(ctx.head_dim), ctx.head_dim)

    def _narrowed(self, ctx: LayerContext) -> list[tuple[Codec, LayerContext]]:
        n = self.count(ctx.head_dim)
        low, high = self._parts(ctx)
        widths = ((low, ctx.head_dim - n), (high, n))
        return [(codec, replace(ctx, head_dim=width, rotary=None)) for codec, width in widths]

    def _order(self, state: State, ctx: LayerContext) -> tuple[mx.array, mx.array]:
        """Indices of the ordinary and of the outlier channels of each head, [heads, n], ascending."""
        mask = unpack_bits(state[_CHANNELS], 1, ctx.head_dim)[:, 0]
        order = mx.array(np.argsort(np.array(mask), axis=-1, kind="stable"))
        n = self.count(ctx.head_dim)
        return order[:, :-n], order[:, -n:]

    def _halves(self, enc: Encoded, ctx: LayerContext) -> list[tuple[Codec, Encoded, mx.array]]:
        low, high = self._parts(ctx)
        ordinary, outlier = self._order(enc.state, ctx)
        own = {n: a for n, a in enc.arrays.items() if not n.startswith(_OUTLIER)}
        apart = {n.removeprefix(_OUTLIER): a for n, a in enc.arrays.items() if n.startswith(_OUTLIER)}
        return [
            (low, Encoded(own, enc.tokens, enc.shared), ordinary),
            (high, Encoded(apart, enc.tokens, enc.shared), outlier),
        ]


def _take(x: mx.array, channels: mx.array) -> mx.array:
    """Channels [heads, n] of x [heads, rows, head_dim]."""
    return mx.take_along_axis(x, channels[:, None, :], axis=-1)


def _narrow(ctx: LayerContext, channels: mx.array) -> LayerContext:
    return replace(ctx, head_dim=channels.shape[-1], rotary=None)
