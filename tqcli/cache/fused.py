"""Attention over a compressed cache by the kernel `attend`, which reads codes without decoding them to memory."""

from __future__ import annotations

import mlx.core as mx

from tqcli.cache.tensor import TensorCache
from tqcli.cache.visibility import Visibility
from tqcli.kernels.attend import QUERIES_AT_MOST, Seen, Tokens, attend_by, refused, unlaunchable
from tqcli.kernels.runtime import chosen


def fused(
    keys: TensorCache,
    values: TensorCache,
    queries: mx.array,
    scale: float,
    visible: Visibility,
    sink_logits: mx.array | None = None,
) -> mx.array | None:
    """As `attention.attend`, or None where plain operations are to do it.

    That is where no GPU's back-end is chosen, or for a call that the kernel doesn't take: more than 16 query positions
    (a prefill's chunk, which plain matrix products answer better), a mask that is an array, float64, keys or values of
    which none are coded yet or whose codec has no reader, heads of more than 256 channels.
    """
    parts = readable(keys, values, queries, visible)
    vectors = queries.shape[0] * keys.ctx.n_kv_heads
    size = vectors * visible.tokens * (keys.ctx.head_dim + values.ctx.head_dim)
    backend = chosen("attend", size, unsupported=parts if isinstance(parts, str) else None)
    if backend == "mlx" or isinstance(parts, str):
        return None
    return by_kernel(backend, parts, (keys, values), queries, scale, visible, sink_logits)


def readable(
    keys: TensorCache, values: TensorCache, queries: mx.array, visible: Visibility
) -> tuple[Tokens, Tokens] | str:
    """Keys and values as the kernel reads them, or why it doesn't take this call."""
    if queries.shape[2] > QUERIES_AT_MOST:
        return f"more than {QUERIES_AT_MOST} query positions"
    if visible.mask is not None:
        return "a mask that is an array"
    if queries.dtype == mx.float64:
        return "float64"
    k, v = keys.packed(), values.packed()
    if isinstance(k, str) or isinstance(v, str):
        return k if isinstance(k, str) else str(v)
    batch, heads, new, head_dim = queries.shape
    shape = batch * keys.ctx.n_kv_heads, heads // keys.ctx.n_kv_heads * new, head_dim
    return refused(k.reader, v.reader, head_dim, values.ctx.head_dim) or unlaunchable(shape, k, v) or (k, v)


def by_kernel(
    backend: str,
    parts: tuple[Tokens, Tokens],
    caches: tuple[TensorCache, TensorCache],
    queries: mx.array,
    scale: float,
    visible: Visibility,
    sink_logits: mx.array | None,
) -> mx.array:
    """The attention of queries [batch, n_q_heads, new, head_dim] by the kernel, or by its reference."""
    keys, values = caches
    batch, heads, new, head_dim = queries.shape
    vectors, rows = batch * keys.ctx.n_kv_heads, heads // keys.ctx.n_kv_heads * new
    positions = range(visible.first, visible.tokens)
    seen = Seen(
        begins=[visible.begin(t) for t in positions],
        ends=[visible.end(t) for t in positions],
        key_stops=[keys.coded_before(t) for t in positions],
        value_stops=[values.coded_before(t) for t in positions],
        sinks=keys.sinks_held,
    )
    q = queries.astype(mx.float32).reshape(vectors, rows, head_dim) * scale
    if sink_logits is not None:
        sink_logits = mx.broadcast_to(sink_logits[None, :, None], queries.shape[:3]).reshape(vectors, rows)
    output = attend_by(backend, q, *parts, seen, sink_logits)
    return output.reshape(batch, heads, new, values.ctx.head_dim).astype(queries.dtype)
