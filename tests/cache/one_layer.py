"""One layer's cache over fixed random keys, values and queries, and what it must answer, from the definition alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tqcli  # noqa: F401  # before mlx.core: puts a fast BLAS in front

# isort: split
import mlx.core as mx
import numpy as np

from tqcli.cache import CompressedKVCache, TensorCache
from tqcli.codecs.base import State
from tqcli.codecs.context import LayerContext, RotaryParameters, Tensor
from tqcli.codecs.spec import parse_codec
from tqcli.codecs.warm_up import WARM_UP_TOKENS

TENSORS: tuple[Tensor, Tensor] = ("keys", "values")


@dataclass(frozen=True)
class Layer:
    """Shapes and settings. Keys share a mean, and a direction that turns with the position."""

    codec: str
    sinks: int = 0
    recent: int = 0
    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    value_head_dim: int = 64
    window: int | None = None
    batch: int = 1
    dtype: str = "float32"
    seed: int = 0
    scale: float = 0.125
    states: Mapping[Tensor, State] = field(default_factory=dict)

    def context(self, tensor: Tensor) -> LayerContext:
        pairs = self.head_dim // 2
        return LayerContext(
            layer=3,
            tensor=tensor,
            head_dim=self.head_dim if tensor == "keys" else self.value_head_dim,
            n_q_heads=self.q_heads,
            n_kv_heads=self.kv_heads,
            scale=self.scale,
            window=self.window,
            cache_dtype=self.dtype,
            capture_dtype=self.dtype,
            rotary=RotaryParameters(tuple(10000.0 ** (-i / pairs) for i in range(pairs)), False),
        )

    def cache(self, rotating: bool = False) -> CompressedKVCache:
        parts = [
            TensorCache(parse_codec(self.codec).of(t), self.context(t), self.sinks, self.recent, self.states.get(t))
            for t in TENSORS
        ]
        return CompressedKVCache(parts[0], parts[1], rotating)

    def tensors(self, tokens: int) -> tuple[mx.array, mx.array, mx.array]:
        """Queries, keys and values [batch, heads, tokens, channels]; the first tokens are the same for any length."""
        rngs = [np.random.default_rng([self.seed, self.head_dim, part]) for part in range(4)]
        shapes = ((self.q_heads, self.head_dim), (self.kv_heads, self.head_dim), (self.kv_heads, self.value_head_dim))
        q, k, v = (
            rng.standard_normal((tokens, self.batch, *shape)).transpose(1, 2, 0, 3)
            for rng, shape in zip(rngs, shapes, strict=False)
        )
        k = k + 2 * rngs[3].standard_normal(self.head_dim)
        dtype: mx.Dtype = getattr(mx, self.dtype)
        return tuple(mx.array(x.astype(np.float32)).astype(dtype) for x in (2 * q, k, v))  # type: ignore[return-value]

    def calibrated(self, tokens: int = 256) -> Layer:
        """The same with states learned from other tokens."""
        _, k, v = replace(self, seed=self.seed + 1, batch=1).tensors(tokens)
        states = {}
        for tensor, x in zip(TENSORS, (k, v), strict=True):
            codec, ctx = parse_codec(self.codec).of(tensor).build(tensor), self.context(tensor)
            if codec.learns(ctx):
                states[tensor] = codec.calibrate(x[0], replace(ctx, positions=np.arange(tokens)))
        return replace(self, states=states)


def run(
    cache: CompressedKVCache, q: mx.array, k: mx.array, v: mx.array, chunk: int, scale: float = 0.125, **kwargs: Any
) -> np.ndarray:
    """Outputs [batch, q_heads, tokens, value_head_dim] of a prefill in steps of `chunk`, with the cache's own masks."""
    outputs = []
    for start in range(0, q.shape[2], chunk):
        part = slice(start, min(start + chunk, q.shape[2]))
        mask = cache.make_mask(part.stop - part.start)
        cache.update_and_fetch(k[:, :, part], v[:, :, part])
        outputs.append(cache.attend(q[:, :, part], scale, mask, **kwargs))
        mx.eval(outputs[-1], cache.state)
    joined = mx.concatenate(outputs, axis=2)
    return np.array(joined if joined.dtype == mx.float64 else joined.astype(mx.float32))


def by_hand(
    layer: Layer, q: mx.array, k: mx.array, v: mx.array, sink_logits: np.ndarray | None = None, causal: bool = True
) -> np.ndarray:
    """Query by query, each with a cache that ends where the query stands; float64."""
    tokens, outputs = q.shape[2], []
    for b in range(layer.batch):
        raw = {"keys": np.array(k[b].astype(mx.float32), float), "values": np.array(v[b].astype(mx.float32), float)}
        coded, learns = {}, {}
        for tensor, x in (("keys", k[b]), ("values", v[b])):
            codec, ctx = parse_codec(layer.codec).of(tensor).build(tensor), layer.context(tensor)  # type: ignore[arg-type]
            state = layer.states.get(tensor)  # type: ignore[call-overload]
            inner = replace(ctx, positions=np.arange(layer.sinks, tokens))
            decoded = codec.decode(codec.encode(x[:, layer.sinks :], inner, state), inner)
            coded[tensor] = np.concatenate([raw[tensor][:, : layer.sinks], np.array(decoded, float)], axis=1)
            learns[tensor] = codec.warms_up(ctx) and state is None
        output = np.zeros((layer.q_heads, tokens, layer.value_head_dim))
        for t in range(tokens):
            seen = {}
            stop = t + 1 - layer.recent
            for tensor in TENSORS:
                x = raw[tensor][:, : t + 1 if causal else tokens].copy()
                if stop > layer.sinks and not (learns[tensor] and stop - layer.sinks < WARM_UP_TOKENS):
                    x[:, layer.sinks : stop] = coded[tensor][:, layer.sinks : stop]
                seen[tensor] = x[:, 0 if layer.window is None else max(0, t + 1 - layer.window) :]
            for head in range(layer.q_heads):
                group = head // (layer.q_heads // layer.kv_heads)
                logits = seen["keys"][group] @ np.array(q[b, head, t].astype(mx.float32), float) * layer.scale
                extra = [] if sink_logits is None else [sink_logits[head]]
                weights = np.exp(logits - logits.max())
                total = weights.sum() + np.exp(np.array(extra) - logits.max()).sum()
                output[head, t] = weights @ seen["values"][group] / total
        outputs.append(output)
    return np.stack(outputs)


def flips(a: CompressedKVCache, b: CompressedKVCache) -> int:
    """How many vectors, keys and values together, are coded otherwise, of the tokens that both hold coded."""
    differ = 0
    for x, y in ((a.keys, b.keys), (a.values, b.values)):
        saved = x.save()[0], y.save()[0]
        start, stop = x.sinks_held + max(of["dropped"] for of in saved), x.sinks_held + x.coded_tokens
        assert x.coded_tokens == y.coded_tokens > 0
        unequal: Any = False
        for name, array in x.coded(start, stop).arrays.items():
            unequal = unequal | np.array(
                mx.any(array != y.coded(start, stop).arrays[name], axis=tuple(range(2, array.ndim)))
            )
        differ += int(unequal.sum())
    return differ


def worst(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, relative to the root mean square of b."""
    return float(np.abs(a - b).max() / np.sqrt(np.mean(b**2)))
