"""Small launches of both kernels, with random codes of every kind, for checks of the kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx
import numpy as np

from tqcli.kernels.attend import reference
from tqcli.kernels.attend.launch import attend_launch, reduce_launch
from tqcli.kernels.attend.parts import Seen
from tqcli.kernels.attend.readers import Groups, Levels, Offset, Packed, Raw, Reader, Tokens, Vectors
from tqcli.kernels.bit_pack.reference import pack_bits
from tqcli.kernels.runtime.case import Case, close, each
from tqcli.kernels.scales import has_embedded_scale


@dataclass(frozen=True)
class Shape:
    """What is attended to, and how it is stored."""

    keys: str
    """`levels 4`, `levels 2+1`, `signs 64`, `prod 2 64`, `affine 4 32` (bits, group), `vectors 8 4` (bits, sub_dim)."""
    values: str
    tokens: int = 63
    head_dim: int = 64
    value_head_dim: int = 64
    ratio: int = 2
    kv_heads: int = 1
    positions: int = 1
    """Query positions, the last ones of the tokens."""
    sinks: int = 0
    recent: int = 0
    ahead: int = 0
    """Tokens more of which values are coded than of keys; fewer where negative."""
    window: int | None = None
    later: int = 0
    """Tokens by which each query position sees fewer of the first ones than the one before."""
    part: int | None = None
    """Tokens a part."""
    offset: str = ""
    """Of keys: `mean`, `rope`, or `interleaved`, which leaves some channels unturned."""
    sink_logits: bool = False
    dtype: mx.Dtype = mx.float16
    spare: int = 0
    """Tokens of capacity that hold none."""
    seed: int = 0

    @property
    def seen(self) -> Seen:
        """Causal, with a window if there is one; tokens become coded as they leave the recent ones."""
        at = range(self.tokens - self.positions, self.tokens)
        stops = [max(self.sinks, t + 1 - self.recent) for t in at]
        return Seen(
            begins=[i * self.later if self.window is None else max(0, t + 1 - self.window) for i, t in enumerate(at)],
            ends=[t + 1 for t in at],
            key_stops=stops,
            value_stops=[min(max(self.sinks, stop + self.ahead), t + 1) for stop, t in zip(stops, at, strict=True)],
            sinks=min(self.sinks, self.tokens),
        )


@dataclass(frozen=True)
class Example:
    """Arguments of `attend`."""

    q: mx.array
    keys: Tokens
    values: Tokens
    seen: Seen
    sink_logits: mx.array | None


def example(shape: Shape) -> Example:
    """Random arguments of this shape."""
    rng = np.random.default_rng([shape.seed, shape.tokens, shape.head_dim])
    rows = shape.ratio * shape.positions
    q = rng.standard_normal((shape.kv_heads, rows, shape.head_dim)) / shape.head_dim**0.5
    logits = mx.array(rng.standard_normal((shape.kv_heads, rows)).astype(np.float32)) if shape.sink_logits else None
    offset = _offset(rng, shape) if shape.offset else None
    seen = shape.seen if shape.tokens else Seen([0], [0], [0], [0], 0)
    return Example(
        q=mx.array(q.astype(np.float32)),
        keys=_tokens(rng, shape, shape.keys, shape.head_dim, seen.key_stops, offset),
        values=_tokens(rng, shape, shape.values, shape.value_head_dim, seen.value_stops, None),
        seen=seen,
        sink_logits=logits,
    )


SHAPES = (
    Shape("levels 4", "levels 4", tokens=1),
    Shape("levels 4", "levels 4", tokens=0, sink_logits=True),
    Shape("levels 4", "levels 2", tokens=130, sinks=4, recent=9, offset="rope", dtype=mx.bfloat16, spare=3),
    Shape("levels 3", "levels 5", head_dim=80, value_head_dim=96, ratio=3, kv_heads=2, recent=7, dtype=mx.float32),
    Shape("levels 1", "levels 8", tokens=7, head_dim=32, value_head_dim=128, ratio=7, sink_logits=True),
    Shape("levels 2+1", "levels 2+2", kv_heads=2, positions=3, recent=4, window=20, offset="mean", spare=2),
    Shape("levels 4+3", "levels 1+1", tokens=40, head_dim=80, value_head_dim=192, ratio=1, positions=4, sinks=2),
    Shape("levels 8", "levels 7", tokens=33, head_dim=256, value_head_dim=256, ratio=1),
    Shape("signs 80", "levels 2", head_dim=80, value_head_dim=80, sinks=3, recent=5, offset="interleaved"),
    Shape("prod 2 64", "levels 3", recent=8, offset="rope"),
    Shape("affine 4 32", "affine 3 64", positions=2, recent=3, dtype=mx.bfloat16),
    Shape("affine 5 32", "affine 6 32", head_dim=96, value_head_dim=32, ratio=7, dtype=mx.float32),
    Shape("vectors 8 4", "vectors 6 8", value_head_dim=80, ratio=9, kv_heads=2, offset="rope"),
    Shape("vectors 12 8", "vectors 5 2 each", tokens=7, kv_heads=2, positions=2, recent=1),
    Shape("levels 4", "levels 4", positions=5, recent=6, ahead=9, sinks=2),
    Shape("levels 4", "levels 4", tokens=300, positions=3, later=70, part=512),
    Shape("levels 4", "levels 4", positions=5, recent=6, ahead=-9, window=40, sinks=2),
)


def cases() -> Iterator[Case]:
    """Each shape, as a launch of the first kernel; and of the second, with random parts."""
    agree = close(rtol=2e-5, atol=2e-5)
    rules = each(agree, agree, agree)
    for shape in SHAPES:
        of = example(shape)
        launch, parts = attend_launch(of.q, of.keys, of.values, of.seen, shape.part)
        expected = partial(reference.partial, of.q, of.keys, of.values, of.seen, parts)
        note = f"{shape.keys} | {shape.values}, {shape.tokens} tokens, d {shape.head_dim}"
        yield Case("attend", replace(launch, note=note), expected, rules)
    for rows, count, of_coded, d, sinks in ((3, 5, 3, 80, True), (2, 70, 64, 64, False), (1, 1, 0, 32, True)):
        softmaxes, logits = _softmaxes(rows, count, d)
        launch = reduce_launch(softmaxes, of_coded, logits if sinks else None)
        expected = partial(reference.reduce, softmaxes, of_coded, logits if sinks else None)
        yield Case("attend", replace(launch, note=f"{count} parts, {of_coded} coded, d {d}"), expected, rules)


def _softmaxes(rows: int, count: int, d: int) -> tuple[list[mx.array], mx.array]:
    """What the first kernel might give for two vectors, some parts being empty, and sink logits."""
    rng = np.random.default_rng([rows, count])
    tops, totals = rng.standard_normal((2, rows, count)), rng.uniform(1, 9, (2, rows, count))
    outputs = rng.standard_normal((2, rows, count, d))
    for of in (totals, outputs):
        of[0, :, 1::3] = 0
    tops[0, :, 1::3] = -np.inf
    tops[1, :, -1] = 100  # whose exponential is no float32
    arrays = [mx.array(x.astype(np.float32)) for x in (tops, totals, outputs)]
    return arrays, mx.array(rng.standard_normal((2, rows)).astype(np.float32))


def _tokens(
    rng: np.random.Generator, shape: Shape, kind: str, d: int, stops: Sequence[int], offset: Offset | None
) -> Tokens:
    sinks = min(shape.sinks, shape.tokens)
    first = sinks if shape.window is None else max(sinks, shape.tokens - shape.positions + 1 - shape.window)
    capacity = max(0, max(stops) - first) + shape.spare
    held = max(0, min(shape.tokens, min(stops)) - sinks)
    raw = rng.standard_normal((shape.kv_heads, shape.tokens - held, d)).astype(np.float32)
    reader = _reader(rng, kind, (shape.kv_heads, capacity), d, shape.dtype, offset)
    return Tokens(reader, first, Raw(mx.array(raw).astype(shape.dtype), sinks, sinks + held))


def _reader(
    rng: np.random.Generator, kind: str, lead: tuple[int, int], d: int, dtype: mx.Dtype, offset: Offset | None
) -> Reader:
    name, first, *others = kind.split()
    packed: Packed
    if name == "affine":
        bits, group = int(first), int(others[0])
        x = mx.array(rng.standard_normal((*lead, d)).astype(np.float32)).astype(dtype)
        return Reader(Groups(d, bits, group, *mx.quantize(x, group_size=group, bits=bits)), offset=offset)
    if name == "vectors":
        bits, sub_dim = int(first), int(others[0])
        books = lead[:1] if others[1:] else ()
        book = mx.array(rng.standard_normal((*books, 1 << bits, sub_dim)).astype(np.float32)).astype(mx.bfloat16)
        packed = Vectors(d, bits, sub_dim, _codes(rng, lead, d // sub_dim, bits), book)
        return Reader(packed, matrix=_matrix(rng, d, d), gains=_row(rng, lead[0], d), offset=offset)
    if name == "signs":
        rows = int(first)
        return Reader(_signs(rng, lead, rows), matrix=_matrix(rng, rows, d), offset=offset)
    sketch = _signs(rng, lead, int(others[0])) if name == "prod" else None
    dims = d + (0 if sketch is None else sketch.dims)
    stages = tuple(int(b) for b in first.split("+"))
    levels = mx.array(np.sort(rng.standard_normal(1 << sum(stages))).astype(np.float32))
    planes, scales = [_codes(rng, lead, d, b) for b in stages], _scales(rng, lead)
    inline = has_embedded_scale(d, stages[0])
    if inline:
        in_words = scales.view(mx.uint16).astype(mx.uint32)[..., None] << 16
        planes[0] = mx.concatenate([planes[0][..., :-1], planes[0][..., -1:] | in_words], axis=-1)
    packed = Levels(d, stages, tuple(planes), None if inline else scales, levels)
    return Reader(packed, sketch, _matrix(rng, dims, d), offset=offset)


def _codes(rng: np.random.Generator, lead: tuple[int, int], n: int, bits: int) -> mx.array:
    codes = rng.integers(0, 1 << bits, (*lead, n))
    return pack_bits(mx.array(codes.astype(np.uint8 if bits <= 8 else np.uint16)), bits)


def _signs(rng: np.random.Generator, lead: tuple[int, int], rows: int) -> Levels:
    return Levels(rows, (1,), (_codes(rng, lead, rows, 1),), _scales(rng, lead), mx.array([-1.0, 1.0]))


def _scales(rng: np.random.Generator, lead: tuple[int, int]) -> mx.array:
    return mx.array(rng.uniform(0.5, 1.5, lead).astype(np.float32)).astype(mx.bfloat16)


def _matrix(rng: np.random.Generator, rows: int, d: int) -> mx.array:
    return mx.array((rng.standard_normal((rows, d)) / d**0.5).astype(np.float32))


def _row(rng: np.random.Generator, vectors: int, d: int) -> mx.array:
    return mx.array(rng.uniform(0.5, 1.5, (vectors, 1, d)).astype(np.float32)).astype(mx.bfloat16)


def _offset(rng: np.random.Generator, shape: Shape) -> Offset:
    mean = _row(rng, shape.kv_heads, shape.head_dim)
    if shape.offset == "mean":
        return Offset(mean)
    pairs = shape.head_dim // (4 if shape.offset == "interleaved" else 2)
    frequencies = tuple(100.0 ** (-i / pairs) for i in range(pairs))
    return Offset(mean, frequencies, shape.offset == "interleaved")
