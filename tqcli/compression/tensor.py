"""One layer's keys or values under a plan: sinks, a coded middle, and the recent tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from tqcli.codecs.base import Encoded, State, to_cache_dtype
from tqcli.codecs.context import LayerContext
from tqcli.codecs.warm_up import RAW, WARM_UP_TOKENS, WarmUp

SINKS, RECENT = "sinks", "recent"


@dataclass(frozen=True)
class Segments:
    """How many tokens of a tensor are sinks, coded and recent."""

    sinks: int
    coded: int
    recent: int

    @staticmethod
    def split(tokens: int, sinks: int, recent: int) -> Segments:
        """Sinks first, then recent ones, then the middle; a short cache may have no middle."""
        first = min(sinks, tokens)
        last = min(recent, tokens - first)
        return Segments(first, tokens - first - last, last)


@dataclass(frozen=True)
class EncodedTensor:
    """What is kept of one tensor [n_kv_heads, tokens, head_dim]."""

    segments: Segments
    exact: dict[str, mx.array]
    """`sinks` and `recent`, in the cache's dtype; absent where there are none."""
    coded: Encoded

    @property
    def nbytes(self) -> int:
        """Bytes of the live buffers that are this tensor's own; shared ones are counted once a cache."""
        return self.coded.nbytes + sum(a.nbytes for a in self.exact.values())

    @property
    def arrays(self) -> dict[str, mx.array]:
        """Every array that is this tensor's own, by name."""
        return self.exact | self.coded.arrays

    def context(self, ctx: LayerContext) -> LayerContext:
        """The context of the coded middle."""
        return coded_context(ctx, self.segments)

    @property
    def waiting_tokens(self) -> int:
        """Tokens of a middle that is still too short for its codec to learn from."""
        return self.segments.coded if RAW in self.coded.arrays else 0

    @property
    def uncompressed_tokens(self) -> int:
        """Tokens kept as they were: sinks, recent ones, and those that wait."""
        return self.segments.sinks + self.segments.recent + self.waiting_tokens


def encode_tensor(
    codec: WarmUp, x: mx.array, ctx: LayerContext, sinks: int = 0, recent: int = 0, state: State | None = None
) -> EncodedTensor:
    """Codes x [n_kv_heads, tokens, head_dim] but for its first `sinks` and last `recent` tokens.

    Raises `Unsupported` where the codec can't code this tensor.
    """
    tokens = x.shape[-2]
    segments = Segments.split(tokens, sinks, recent)
    stop = tokens - segments.recent
    exact = {}
    if segments.sinks:
        exact[SINKS] = to_cache_dtype(x[..., : segments.sinks, :], ctx)
    if segments.recent:
        exact[RECENT] = to_cache_dtype(x[..., stop:, :], ctx)
    middle = codec.encode(x[..., segments.sinks : stop, :], coded_context(ctx, segments), state)
    return EncodedTensor(segments, exact, middle)


def decode_tensor(codec: WarmUp, enc: EncodedTensor, ctx: LayerContext) -> mx.array:
    """The reconstruction of the whole tensor, float32 [n_kv_heads, tokens, head_dim]."""
    parts = [codec.decode(enc.coded, coded_context(ctx, enc.segments))]
    if SINKS in enc.exact:
        parts.insert(0, enc.exact[SINKS].astype(mx.float32))
    if RECENT in enc.exact:
        parts.append(enc.exact[RECENT].astype(mx.float32))
    return mx.concatenate(parts, axis=-2) if len(parts) > 1 else parts[0]


def score_middle(codec: WarmUp, q: mx.array, enc: EncodedTensor, ctx: LayerContext) -> mx.array:
    """The codec's estimates of <q, key> for the coded keys: float32 [n_q_heads, queries, coded tokens], unscaled."""
    return codec.scores(q, enc.coded, coded_context(ctx, enc.segments))


def coded_context(ctx: LayerContext, segments: Segments) -> LayerContext:
    """The context of the coded middle: positions are those of its own tokens."""
    stop = segments.sinks + segments.coded
    known = ctx.positions is not None and len(ctx.positions) >= stop
    positions = ctx.positions if known and ctx.positions is not None else np.arange(stop)
    return replace(ctx, positions=positions[segments.sinks : stop], sinks=segments.sinks)


def nominal_bytes(
    codec: WarmUp,
    ctx: LayerContext,
    tokens: int,
    sinks: int,
    recent: int,
    calibrated: bool = False,
    seen: int | None = None,
) -> int:
    """Bytes by formula for one tensor of one cache: what `EncodedTensor.nbytes` must come to.

    seen: tokens that went through the cache, of which a sliding one holds the last `tokens`; by default as many.
    """
    warm = max(0, (tokens if seen is None else seen) - sinks - recent) >= WARM_UP_TOKENS
    segments = Segments.split(tokens, sinks, recent)
    size: int = getattr(mx, ctx.cache_dtype).size
    exact = ctx.n_kv_heads * (segments.sinks + segments.recent) * ctx.head_dim * size
    return exact + codec.bytes_nominal(ctx.n_kv_heads, segments.coded, coded_context(ctx, segments), calibrated, warm)
