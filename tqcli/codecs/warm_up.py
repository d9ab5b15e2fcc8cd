"""Where a codec's state comes from: a calibration capture, or the cache's own first tokens; never a future token."""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.core as mx

from tqcli.codecs.base import Codec, Encoded, State, to_cache_dtype
from tqcli.codecs.context import LayerContext
from tqcli.codecs.wrapper import Wrapper
from tqcli.errors import InputError
from tqcli.kernels.attend import Reader

WARM_UP_TOKENS = 64
"""A codec without calibration learns from so many tokens. More of them gain next to nothing."""
RAW = "raw"


@dataclass(frozen=True)
class WarmUp(Wrapper):
    """Gives the inner codec its state and keeps it with the codes.

    A calibrated state is shared by all caches. Without one, a cache keeps its tokens uncompressed until there are
    `WARM_UP_TOKENS`; then the codec learns from these, once, and they are coded too.
    """

    def warms_up(self, ctx: LayerContext) -> bool:
        """Whether a cache of this tensor waits for its first tokens, unless there is a calibrated state."""
        return bool(self.learns(ctx)) and not self.needs_calibration

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        names = self.learns(ctx)
        if not names:
            return self.inner.encode(x, ctx)
        if state is not None:
            enc = self.inner.encode(x, ctx, state)
            return replace(enc, shared=enc.shared | {self.shared_name(name, ctx): state[name] for name in names})
        if self.needs_calibration:
            raise InputError(f"{self.name} learns from another text: name a capture of one with --calibration")
        if x.shape[-2] < WARM_UP_TOKENS:
            return Encoded({RAW: to_cache_dtype(x, ctx)}, x.shape[-2])
        own = self.calibrate(x[..., :WARM_UP_TOKENS, :], ctx)
        enc = self.inner.encode(x, ctx, own)
        if taken := {RAW, *names} & enc.arrays.keys():
            raise ValueError(f"{self.name} calls an array {min(taken)}, which is the name of something learned")
        return replace(enc, arrays=enc.arrays | {name: own[name] for name in names})

    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        if RAW in enc.arrays:
            return enc.arrays[RAW].astype(ctx.arithmetic)
        return self.inner.decode(self._with_state(enc, ctx), ctx)

    def offset(self, enc: Encoded, ctx: LayerContext) -> mx.array | None:
        if RAW in enc.arrays:
            return enc.arrays[RAW].astype(ctx.arithmetic)
        return self.inner.offset(self._with_state(enc, ctx), ctx)

    def scores(self, q: mx.array, enc: Encoded, ctx: LayerContext) -> mx.array:
        if RAW in enc.arrays:
            return Codec.scores(self, q, enc, ctx)  # the plain product with what decode gives
        return self.inner.scores(q, self._with_state(enc, ctx), ctx)

    def attend_reader(self, enc: Encoded, ctx: LayerContext) -> Reader | None:
        return None if RAW in enc.arrays else self.inner.attend_reader(self._with_state(enc, ctx), ctx)

    def bytes_nominal(
        self, vectors: int, tokens: int, ctx: LayerContext, calibrated: bool = False, warm: bool = False
    ) -> int:
        """`calibrated`: with a calibrated state, which is shared; `warm`: a cache that has had its first tokens."""
        if calibrated or not self.learns(ctx):
            return self.inner.bytes_nominal(vectors, tokens, ctx)
        if tokens < WARM_UP_TOKENS and not warm:
            size: int = getattr(mx, ctx.cache_dtype).size
            return vectors * tokens * ctx.head_dim * size
        return self.inner.bytes_nominal(vectors, tokens, ctx) + self.learned_bytes(vectors, ctx)

    def _with_state(self, enc: Encoded, ctx: LayerContext) -> Encoded:
        names = self.learns(ctx)
        if enc.state or not names:
            return enc
        own = {name: enc.arrays[name] for name in names if name in enc.arrays}
        return replace(enc, state=own or {name: enc.shared[self.shared_name(name, ctx)] for name in names})
