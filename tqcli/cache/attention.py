"""Attention over a compressed cache, block by block: no more than one block of it is ever decoded.

The softmax runs along (Milakov and Gimelshein, arXiv 1805.02867; FlashAttention, arXiv 2205.14135, section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import mlx.core as mx

from tqcli.cache.fused import fused
from tqcli.cache.tensor import TensorCache
from tqcli.cache.visibility import Visibility
from tqcli.kernels.blocks import on_cpu
from tqcli.kernels.runtime import chosen

BLOCK = 512
"""Tokens that are decoded at a time, and queries that are answered at a time."""
_ROWS = 128
"""Queries at a time where what they see depends on their position: the others' tokens are left out."""
_LOWEST = -3.4e38
"""Below every logit, and finite, so that a row in which nothing is visible yet gives no NaN."""
_UNCODED = "no query sees anything coded with loss: mlx-lm's own attention"


def attend(
    keys: TensorCache,
    values: TensorCache,
    queries: mx.array,
    scale: float,
    visible: Visibility,
    sink_logits: mx.array | None = None,
) -> mx.array:
    """softmax(scale * scores) @ values for the queries [batch, n_q_heads, new, head_dim] of the update in hand.

    The query at position t sees the codec's version of each token but the sinks and the `recent` last ones, itself
    among these. sink_logits [n_q_heads]: logits that the softmax counts and no value answers to. Returns
    [batch, n_q_heads, new, value_head_dim] in the queries' dtype. Arithmetic is float32; where no query sees anything
    coded with loss it is mlx-lm's own attention, bit for bit. Of float64 queries it is float64, and mlx-lm's attention,
    whose exponential is no better than float32, answers those of lossless codecs alone. On a GPU the kernel `attend`
    reads the codes themselves where it can; see `fused.py`.
    """
    batch, last = queries.shape[0], visible.tokens - 1
    dtype = mx.float64 if queries.dtype == mx.float64 else mx.float32
    exact = dtype == mx.float64
    if all(of.lossless or (not exact and of.coded_before(last) == of.sinks_held) for of in (keys, values)):
        chosen("attend", queries.size, unsupported=_UNCODED)
        begin, mask = visible.plain()
        k, v = (of.whole(begin).reshape(batch, -1, visible.tokens - begin, of.ctx.head_dim) for of in (keys, values))
        output = mx.fast.scaled_dot_product_attention(queries, k, v, scale=scale, mask=mask, sinks=sink_logits)
        return output.astype(queries.dtype)
    answer = fused(keys, values, queries, scale, visible, sink_logits)
    if answer is not None:
        return answer
    outputs = []
    for start in range(visible.first, visible.tokens, BLOCK):
        stop = min(start + BLOCK, visible.tokens)
        q = queries[:, :, start - visible.first : stop - visible.first].astype(dtype) * scale
        outputs.append(_Queries(keys, values, q, range(start, stop), visible).attend(sink_logits))
    output = mx.concatenate(outputs, axis=2) if len(outputs) > 1 else outputs[0]
    return output.astype(queries.dtype)


_Sums = tuple[mx.array, mx.array, mx.array]
"""Of the softmax so far, for each row: the largest logit, and over that the sum of weights [..., 1], and of values."""


class _Queries:
    """Queries [batch, n_q_heads, new, head_dim] at some positions of one call; those of one KV head are a group."""

    def __init__(
        self, keys: TensorCache, values: TensorCache, q: mx.array, positions: range, visible: Visibility
    ) -> None:
        self.keys, self.values, self.positions, self.visible = keys, values, positions, visible
        self.all, self.shape = q, q.shape[:3]
        batch, heads, new, head_dim = q.shape
        ratio = heads // keys.ctx.n_kv_heads
        self.q = q.reshape(batch * keys.ctx.n_kv_heads, ratio * new, head_dim)

    def attend(self, sink_logits: mx.array | None) -> mx.array:
        """Tokens that all queries see coded first, in one go; then the others, for some queries at a time."""
        begin, end = self.visible.begin(self.positions[0]), self.visible.end(self.positions[-1])
        alike = max(of.coded_before(self.positions[0]) for of in (self.keys, self.values))
        sums = self._start(sink_logits)
        for tokens in self._blocks(begin, min(alike, end)):
            sums = self._add(sums, tokens)
        outputs = []
        for start in range(0, len(self.positions), _ROWS):
            part = slice(start, start + _ROWS)
            some = _Queries(self.keys, self.values, self.all[:, :, part], self.positions[part], self.visible)
            top, total, output = (self._rows(of, part) for of in sums)
            own = (top, total, output)
            for tokens in some._blocks(max(alike, begin), some.visible.end(some.positions[-1])):
                own = some._add(own, tokens)
            _, total, output = own
            outputs.append((output / mx.where(total == 0, 1, total)).reshape(*some.shape, output.shape[-1]))
        return mx.concatenate(outputs, axis=2) if len(outputs) > 1 else outputs[0]

    def _start(self, sink_logits: mx.array | None) -> _Sums:
        groups, rows, _ = self.q.shape
        dtype = self.q.dtype
        top, total = mx.full((groups, rows, 1), _LOWEST, dtype=dtype), mx.zeros((groups, rows, 1), dtype=dtype)
        if sink_logits is not None:
            logits = mx.broadcast_to(sink_logits.astype(dtype)[None, :, None], self.shape)
            top, total = logits.reshape(groups, rows, 1), mx.ones((groups, rows, 1), dtype=dtype)
        return top, total, mx.zeros((groups, rows, self.values.ctx.head_dim), dtype=dtype)

    def _add(self, sums: _Sums, tokens: range) -> _Sums:
        top, total, output = sums
        logits = self._logits(tokens, [output, total])
        above = mx.maximum(top, mx.max(logits, axis=-1, keepdims=True))
        shrink, weights = _exp(top - above), _exp(logits - above)
        total = total * shrink + mx.sum(weights, axis=-1, keepdims=True)
        return above, total, output * shrink + self._weighted(weights, tokens, [output])

    def _rows(self, x: mx.array, part: slice) -> mx.array:
        """Of x [vectors, ratio * new, width] the rows of the queries `part`."""
        new = len(self.positions)
        if new <= _ROWS:
            return x
        return x.reshape(x.shape[0], -1, new, x.shape[-1])[:, :, part].reshape(x.shape[0], -1, x.shape[-1])

    def _blocks(self, begin: int, end: int) -> Iterator[range]:
        """Ranges of tokens, in each of which keys are of one kind, and values: see `_kind`."""
        first, last = self.positions[0], self.positions[-1]
        cuts = {begin, end}
        for of in (self.keys, self.values):
            cuts |= {of.sinks_held, of.coded_before(first), of.coded_before(last)}
        base = self.keys.sinks_held
        cuts |= set(range(base, end, BLOCK))  # the same borders in every call
        borders = sorted(cut for cut in cuts if begin <= cut <= end)
        for start, stop in pairwise(borders):
            yield range(start, stop)

    def _kind(self, of: TensorCache, tokens: range) -> str:
        """Whether all queries see the tokens `raw`, all of them `coded`, or `either`, by their own position."""
        if tokens.start < of.sinks_held or tokens.start >= of.coded_before(self.positions[-1]):
            return "raw"
        return "coded" if tokens.start < of.coded_before(self.positions[0]) else "either"

    def _seen_coded(self, of: TensorCache, tokens: range) -> mx.array:
        """Bool [new, tokens]."""
        stops = mx.array([of.coded_before(t) for t in self.positions])
        return mx.arange(tokens.start, tokens.stop)[None] < stops[:, None]

    def _logits(self, tokens: range, before: list[mx.array]) -> mx.array:
        """Scaled logits [vectors, ratio * new, tokens], -inf where a token is hidden; computed after `before`."""
        kind, spread = self._kind(self.keys, tokens), (*self.shape, len(tokens))
        raw = coded = None
        if kind != "coded":
            raw = self.q @ self.keys.raw(tokens.start, tokens.stop).astype(self.q.dtype).swapaxes(-1, -2)
        if kind != "raw":
            coded = self.keys.scores(self.q, tokens.start, tokens.stop, before)
        if raw is not None and coded is not None:
            seen = self._seen_coded(self.keys, tokens)
            logits = mx.where(seen, coded.reshape(spread), raw.reshape(spread))
        else:
            one = coded if raw is None else raw
            assert one is not None
            logits = one.reshape(spread)
        return self.visible.hide(logits, self.positions, tokens).reshape(*self.q.shape[:2], len(tokens))

    def _weighted(self, weights: mx.array, tokens: range, before: list[mx.array]) -> mx.array:
        """Weights [vectors, ratio * new, tokens] times the values, as each query sees them."""
        kind = self._kind(self.values, tokens)
        if kind == "raw":
            return weights @ self.values.raw(tokens.start, tokens.stop).astype(weights.dtype)
        decoded = self.values.decoded(tokens.start, tokens.stop, before)
        if kind == "coded":
            return weights @ decoded
        spread = weights.reshape(*self.shape, len(tokens))
        from_coded = mx.where(self._seen_coded(self.values, tokens), spread, 0).reshape(weights.shape)
        raw = self.values.raw(tokens.start, tokens.stop).astype(weights.dtype)
        return from_coded @ decoded + (weights - from_coded) @ raw


def _exp(x: mx.array) -> mx.array:
    """exp(x). On a CPU MLX's `exp` takes three times as long as its `power`, and is single precision for float64."""
    return mx.power(mx.array(math.e, dtype=x.dtype), x) if on_cpu() else mx.exp(x)
