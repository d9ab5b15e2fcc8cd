"""Runs one window of tokens through a model and keeps what its caches were given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.capture.attention import AttentionCall, observe_attention
from tqcli.capture.numbering import LayerNumbers
from tqcli.capture.rotary import RopeCall, observe_rope


@dataclass
class LayerCapture:
    """What one layer's attention was given in a window, and what tells how it works."""

    keys: mx.array
    """[n_kv_heads, tokens, head_dim], as cached."""
    values: mx.array
    """[n_kv_heads, tokens, value_head_dim], as cached."""
    queries: mx.array
    """[n_q_heads, sampled, head_dim], after the rotary embedding."""
    scale: float
    cache: Any
    """The layer's cache, after the window."""
    mask: mx.array | str | None
    """That of the last prefill step."""
    sinks: mx.array | None
    ropes: list[list[tuple[RopeCall, mx.array]]]
    """For each prefill step, the rotary embeddings since the attention call before, each with whether the keys are its
    output; empty unless they were watched."""


@dataclass
class WindowCapture:
    """What a window gave, by layer."""

    layers: dict[int, LayerCapture]
    readers: dict[int, int]
    """Layers that read another layer's cache, and which."""
    doubled: set[int]
    """Layers that attend over more than one cache."""


@dataclass
class _Pieces:
    """One layer's share of each prefill step."""

    cache: Any
    scale: float
    mask: mx.array | str | None = None
    sinks: mx.array | None = None
    keys: list[mx.array] = field(default_factory=list)
    values: list[mx.array] = field(default_factory=list)
    queries: list[mx.array] = field(default_factory=list)
    ropes: list[list[tuple[RopeCall, mx.array]]] = field(default_factory=list)


class Recorder:
    """Sees the attention calls of one window and keeps what is new in each step, for the layers that are wanted."""

    def __init__(self, model: Any, cache: list[Any], wanted: Collection[int] | None = None, ropes: bool = True) -> None:
        self._model, self._cache, self._wanted, self._watch_ropes = model, cache, wanted, ropes
        self._numbers = LayerNumbers(model, cache)
        self._pieces: dict[int, _Pieces] = {}
        self._readers: dict[int, int] = {}
        self._doubled: set[int] = set()
        self._owner: dict[int, int] = {}
        """The layer that used a cache first in this step, by id of the cache."""
        self._ropes: list[tuple[RopeCall, mx.array]] = []
        self._sampled = mx.array([], dtype=mx.int32)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this lasts, calls of the model with the cache are seen."""
        with ExitStack() as stack:
            stack.enter_context(observe_attention(self._model, self._cache, self._see))
            if self._watch_ropes:
                stack.enter_context(observe_rope(lambda call, output: self._ropes.append((call, output))))
            yield

    def step(self, sampled: NDArray[np.int32]) -> None:
        """Begins a prefill step; `sampled` are the queries to keep of it, counted from its first token."""
        self._owner.clear()
        self._ropes.clear()
        self._sampled = mx.array(sampled, dtype=mx.int32)

    def evaluate(self) -> None:
        """Computes what the step gave, and the caches: nothing is left that would keep the model's activations."""
        new = [
            array for p in self._pieces.values() for pieces in (p.keys, p.values, p.queries) for array in pieces[-1:]
        ]
        flags = [flag for p in self._pieces.values() for step in p.ropes[-1:] for _, flag in step]
        mx.eval(new, flags, [entry.state for entry in self._cache if entry is not None and not entry.empty()])

    def finish(self) -> WindowCapture:
        """Joins the steps, one layer at a time."""
        layers = {}
        for layer in sorted(self._pieces):
            p = self._pieces.pop(layer)
            joined = [mx.concatenate(pieces, axis=1) for pieces in (p.keys, p.values, p.queries)]
            mx.eval(joined)
            layers[layer] = LayerCapture(joined[0], joined[1], joined[2], p.scale, p.cache, p.mask, p.sinks, p.ropes)
        return WindowCapture(layers, self._readers, self._doubled)

    def _see(self, call: AttentionCall) -> None:
        ropes, self._ropes[:] = list(self._ropes), []
        layer = self._numbers.of(call)
        if id(call.cache) in self._owner:
            owner = self._owner[id(call.cache)]
            if owner != layer:
                self._readers[layer] = owner
            return
        self._owner[id(call.cache)] = layer
        if self._wanted is not None and layer not in self._wanted:
            return
        pieces = self._pieces.setdefault(layer, _Pieces(call.cache, call.scale))
        if pieces.cache is not call.cache:
            self._doubled.add(layer)
            return
        new = call.queries.shape[2]
        keys = mx.contiguous(call.keys[0, :, -new:, :])
        pieces.keys.append(keys)
        pieces.values.append(mx.contiguous(call.values[0, :, -new:, :]))
        pieces.queries.append(mx.take(call.queries[0], self._sampled, axis=1))
        pieces.mask, pieces.sinks = call.mask, call.sinks
        pieces.ropes.append([(rope, _is_keys(output, keys)) for rope, output in ropes])


def _is_keys(output: mx.array, keys: mx.array) -> mx.array:
    """Whether a rotary embedding gave the keys that were cached: bool scalar."""
    if output.shape != (1, *keys.shape):
        return mx.array(False)
    return mx.array_equal(output[0], keys, equal_nan=True)


def prefill_chunks(tokens: int, chunk: int) -> list[int]:
    """Sizes of prefill steps of at most `chunk` tokens, as equal as they can be.

    With 3 or more a step is never a single token, unless the window is: a rotating cache would then hand out its keys
    in its ring buffer's order.
    """
    count = -(-tokens // chunk)
    return [len(part) for part in np.array_split(np.arange(tokens), count)] if count else []


def capture_window(
    model: Any,
    cache: list[Any],
    ids: NDArray[np.int32],
    query_positions: NDArray[np.int32],
    chunk: int,
    layers: Collection[int] | None = None,
    *,
    ropes: bool = True,
    progress: Callable[[int], object] = lambda tokens: None,
) -> WindowCapture:
    """Prefills `cache` with the token ids [tokens] and returns what attention saw, by layer.

    layers: those to keep, all if None. ropes: watch rotary embeddings too. `progress` is told the tokens of each step.
    Everything is evaluated when it returns. The output projection to logits is never needed and so never computed.
    """
    recorder = Recorder(model, cache, layers, ropes)
    start = 0
    with recorder.watching():
        for size in prefill_chunks(len(ids), chunk):
            inside = (query_positions >= start) & (query_positions < start + size)
            recorder.step(query_positions[inside] - np.int32(start))
            model(mx.array(ids[start : start + size])[None], cache=cache)
            recorder.evaluate()
            start += size
            progress(size)
    return recorder.finish()


def sample_positions(tokens: int, queries: int, seed: int, window: int) -> NDArray[np.int32]:
    """Sorted positions of the queries that are kept of one window; all of them if there are no more."""
    rng = np.random.default_rng([seed, window])
    return np.sort(rng.choice(tokens, min(queries, tokens), replace=False)).astype(np.int32)
