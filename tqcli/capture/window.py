"""Runs one window of tokens through a model and keeps what its caches were given."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.capture.attention import AttentionCall, observe_attention


@dataclass
class LayerCapture:
    """One layer: keys and values [n_kv_heads, tokens, head_dim], queries [n_q_heads, sampled, head_dim]."""

    keys: mx.array
    values: mx.array
    queries: mx.array
    scale: float


@dataclass
class _Pieces:
    keys: list[mx.array] = field(default_factory=list)
    values: list[mx.array] = field(default_factory=list)
    queries: list[mx.array] = field(default_factory=list)
    scale: float = 0.0


def prefill_chunks(tokens: int, chunk: int) -> list[int]:
    """Sizes of prefill steps of at most `chunk` tokens, as equal as they can be.

    No step of a single token after longer ones: a rotating cache would then hand out its ring buffer's order.
    """
    count = -(-tokens // chunk)
    return [len(part) for part in np.array_split(np.arange(tokens), count)] if count else []


def capture_window(
    model: Any, cache: list[Any], ids: NDArray[np.int32], query_positions: NDArray[np.int32], chunk: int
) -> dict[int, LayerCapture]:
    """Prefills `cache` with the token ids [tokens] and returns what attention saw, by index of the cache.

    Everything is evaluated when it returns. The output projection to logits is never needed and so never computed.
    """
    pieces: dict[int, _Pieces] = defaultdict(_Pieces)
    seen: set[int] = set()
    start = 0
    wanted = mx.array([], dtype=mx.int32)

    def see(call: AttentionCall) -> None:
        new, layer = call.queries.shape[2], pieces[call.cache_index]
        if call.cache_index in seen:
            return  # a second layer that reads the same cache: its keys are those that are already here
        seen.add(call.cache_index)
        layer.keys.append(mx.contiguous(call.keys[0, :, -new:, :]))
        layer.values.append(mx.contiguous(call.values[0, :, -new:, :]))
        layer.queries.append(mx.take(call.queries[0], wanted, axis=1))
        layer.scale = call.scale

    with observe_attention(model, cache, see):
        for size in prefill_chunks(len(ids), chunk):
            seen.clear()
            inside = (query_positions >= start) & (query_positions < start + size)
            wanted = mx.array(query_positions[inside] - start, dtype=mx.int32)
            model(mx.array(ids[start : start + size])[None], cache=cache)
            mx.eval([[p.keys[-1], p.values[-1], p.queries[-1]] for p in pieces.values()])
            mx.eval([c.state for c in cache if not c.empty()])
            start += size
    return {
        index: LayerCapture(
            mx.concatenate(layer.keys, axis=1),
            mx.concatenate(layer.values, axis=1),
            mx.concatenate(layer.queries, axis=1),
            layer.scale,
        )
        for index, layer in sorted(pieces.items())
    }


def sample_positions(tokens: int, queries: int, seed: int, window: int) -> NDArray[np.int32]:
    """Sorted positions of the queries that are kept of one window; all of them if there are no more."""
    rng = np.random.default_rng([seed, window])
    return np.sort(rng.choice(tokens, min(queries, tokens), replace=False)).astype(np.int32)
