"""Fused attention in plain MLX operations: the specification. It decodes all tokens, so it is for few of them."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.kernels.attend.parts import KEY_CODED, SIMDGROUPS, TILE, VALUE_CODED, Parts, Seen, divide
from tqcli.kernels.attend.prepare import coded_queries, offset_terms, restored
from tqcli.kernels.attend.readers import Groups, Levels, Packed, Raw, Tokens
from tqcli.kernels.bit_pack import unpack_bits
from tqcli.kernels.vector_quant import vector_dequantise


def attend(q: mx.array, keys: Tokens, values: Tokens, seen: Seen, sink_logits: mx.array | None = None) -> mx.array:
    """See `launch.attend`."""
    parts = divide(seen.segments(), 1)
    logits = [_hidden(_logits(q, keys, part), seen, part) for part in parts.table]
    extra = [] if sink_logits is None else [sink_logits.astype(mx.float32)[..., None]]
    joined = mx.concatenate([*logits, *extra], axis=-1)
    top = mx.max(joined, axis=-1, keepdims=True) if joined.shape[-1] else mx.zeros((*q.shape[:2], 1))
    weights = _weights(joined, top)
    total = mx.sum(weights, axis=-1, keepdims=True)
    weights = weights / mx.where(total == 0, 1, total)
    dims = values.raw.x.shape[2]
    coded, raw, shares = mx.zeros((*q.shape[:2], dims)), mx.zeros((*q.shape[:2], dims)), mx.zeros((*q.shape[:2], 1))
    column = 0
    for part in parts.table:
        of = weights[..., column : column + int(part[1] - part[0])]
        column += of.shape[-1]
        if part[3] & VALUE_CODED:
            coded = coded + of @ _values(values, part)
            shares = shares + mx.sum(of, axis=-1, keepdims=True)
        else:
            raw = raw + of @ _values(values, part)
    return restored(coded, shares, values.reader) + raw


def partial(q: mx.array, keys: Tokens, values: Tokens, seen: Seen, parts: Parts) -> list[mx.array]:
    """What the first kernel gives; see `launch.attend_launch`."""
    tops, totals, outputs = [], [], []
    for part in parts.table:
        logits = _hidden(_logits(q, keys, part), seen, part)
        x = _values(values, part)
        for own in _turns(int(part[1] - part[0])):
            if len(own):
                at = mx.array(own)
                some = mx.take(logits, at, axis=-1)
                top = mx.max(some, axis=-1, keepdims=True)
                weights = _weights(some, top)
                output = weights @ mx.take(x, at, axis=1)
            else:
                top, weights = mx.full((*q.shape[:2], 1), -mx.inf), mx.zeros((*q.shape[:2], 1))
                output = mx.zeros((*q.shape[:2], values.raw.x.shape[2]))
            tops.append(top[..., 0])
            totals.append(mx.sum(weights, axis=-1))
            outputs.append(output)
    return [mx.stack(of, axis=2) for of in (tops, totals, outputs)]


def reduce(parts: list[mx.array], coded_parts: int, sink_logits: mx.array | None = None) -> list[mx.array]:
    """What the second kernel gives of the first's outputs; see `launch.reduce_launch`."""
    tops, totals, outputs = parts
    top = mx.max(tops, axis=-1, keepdims=True)
    if sink_logits is not None:
        top = mx.maximum(top, sink_logits.astype(mx.float32)[..., None])
    shares = _weights(tops, top) * totals
    total = mx.sum(shares, axis=-1, keepdims=True)
    if sink_logits is not None:
        total = total + _weights(sink_logits.astype(mx.float32)[..., None], top)
    total = mx.where(total == 0, 1, total)
    sums = outputs * (_weights(tops, top) / total)[..., None]
    of_coded = mx.sum(shares[..., :coded_parts], axis=-1, keepdims=True) / total
    return [mx.sum(sums[:, :, :coded_parts], axis=2), mx.sum(sums[:, :, coded_parts:], axis=2), of_coded]


def elements(packed: Packed) -> mx.array:
    """Y of all tokens, float32 [vectors, capacity, dims]."""
    if isinstance(packed, Groups):
        y = mx.dequantize(packed.codes, packed.scales, packed.biases, group_size=packed.group, bits=packed.bits)
        return y.astype(mx.float32)
    if isinstance(packed, Levels):
        codes = unpack_bits(packed.planes[0], packed.bits[0], packed.dims, backend="mlx")
        for plane, bits in zip(packed.planes[1:], packed.bits[1:], strict=True):
            codes = (codes << bits) | unpack_bits(plane, bits, packed.dims, backend="mlx")
        inline = (packed.planes[0][..., -1] >> 16).astype(mx.uint16).view(mx.bfloat16)
        scales = inline if packed.scales is None else packed.scales
        return packed.levels[codes] * scales.astype(mx.float32)[..., None]
    codes = unpack_bits(packed.codes, packed.bits, packed.dims // packed.sub_dim, backend="mlx")
    vectors, capacity, _ = codes.shape
    return vector_dequantise(codes.reshape(vectors, -1), packed.codebook, backend="mlx").reshape(
        vectors, capacity, packed.dims
    )


def _logits(q: mx.array, keys: Tokens, part: NDArray[np.int32]) -> mx.array:
    """[vectors, rows, tokens] of the tokens of a part."""
    start, stop, _, kind = (int(x) for x in part)
    if not kind & KEY_CODED:
        return q @ _raw(keys.raw, start, stop).swapaxes(-1, -2)
    y = _coded(keys, start, stop)
    terms = offset_terms(q, keys.reader.offset)
    logits = coded_queries(q, keys.reader) @ y.swapaxes(-1, -2) + terms[..., -1:]
    if keys.reader.offset is None or not keys.reader.offset.frequencies:
        return logits
    angles = np.arange(start, stop) * np.array(keys.reader.offset.frequencies)[:, None]
    cosine, sine = (mx.array(of(angles).astype(np.float32)) for of in (np.cos, np.sin))
    return logits + terms[..., 0:-1:2] @ cosine + terms[..., 1:-1:2] @ sine


def _values(values: Tokens, part: NDArray[np.int32]) -> mx.array:
    """The values of a part, or their y, float32 [vectors, tokens, channels]."""
    start, stop, _, kind = (int(x) for x in part)
    return _coded(values, start, stop) if kind & VALUE_CODED else _raw(values.raw, start, stop)


def _coded(tokens: Tokens, start: int, stop: int) -> mx.array:
    reader, some = tokens.reader, slice(start - tokens.first, stop - tokens.first)
    y = elements(reader.packed)[:, some]
    return y if reader.sketch is None else mx.concatenate([y, elements(reader.sketch)[:, some]], axis=-1)


def _raw(raw: Raw, start: int, stop: int) -> mx.array:
    shift = 0 if stop <= raw.sinks else raw.first - raw.sinks
    return raw.x[:, start - shift : stop - shift].astype(mx.float32)


def _hidden(logits: mx.array, seen: Seen, part: NDArray[np.int32]) -> mx.array:
    """-inf where a query doesn't see a token of the part in this form."""
    start, stop, segment, _ = (int(x) for x in part)
    bounds = np.tile(seen.segments()[:, segment], (logits.shape[1] // len(seen.begins), 1))
    tokens = np.arange(start, stop)
    mask = (tokens >= bounds[:, :1]) & (tokens < bounds[:, 1:])
    return mx.where(mx.array(mask), logits, -mx.inf)


def _weights(logits: mx.array, top: mx.array) -> mx.array:
    return mx.where(logits == -mx.inf, 0, mx.exp(logits - top))


def _turns(tokens: int) -> Iterator[NDArray[np.int64]]:
    """Indices of the tokens of a part that each simdgroup takes."""
    for member in range(SIMDGROUPS):
        yield np.flatnonzero(np.arange(tokens) // TILE % SIMDGROUPS == member)
