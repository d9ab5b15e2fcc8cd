"""Fused attention: its specification against a computation in float64, and both kernels on the checker against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tqcli  # noqa: F401  # before mlx.core: puts a fast BLAS in front

# isort: split
import mlx.core as mx
import numpy as np

from tqcli.kernels.attend import attend, launch, reference
from tqcli.kernels.attend.cases import SHAPES, Example, Shape, cases, example
from tqcli.kernels.attend.parts import Seen, divide, split_tokens
from tqcli.kernels.attend.prepare import turn_tables
from tqcli.kernels.attend.readers import Levels, Raw, Reader, Tokens
from tqcli.kernels.checker.check import check, check_all
from tqcli.kernels.runtime import Launch
from tqcli.kernels.runtime.case import to_numpy

Array = np.ndarray[Any, Any]


def call(of: Example, backend: str | None = None) -> Array:
    return np.array(attend(of.q, of.keys, of.values, of.seen, of.sink_logits, backend))


def worst(a: Array, b: Array) -> float:
    """Relative to the root mean square of b."""
    return float(np.abs(a - b).max() / max(float(np.sqrt(np.mean(b**2))), 1e-9))


def whole(tokens: Tokens, count: int) -> tuple[Array, Array]:
    """Every token as decoded and as it came, float64 [vectors, count, head_dim]; NaN where there is no such form."""
    reader, raw = tokens.reader, np.array(tokens.raw.x.astype(mx.float32), float)
    y = np.array(reference.elements(reader.packed), float)
    if reader.sketch is not None:
        y = np.concatenate([y, np.array(reference.elements(reader.sketch), float)], axis=-1)
    x = y if reader.matrix is None else y @ np.array(reader.matrix, float)
    x = x if reader.gains is None else x * np.array(reader.gains.astype(mx.float32), float)
    decoded, came = (np.full((x.shape[0], count, x.shape[2]), np.nan) for _ in range(2))
    for t in range(tokens.first, min(count, tokens.first + x.shape[1])):
        decoded[:, t] = x[:, t - tokens.first] + offset_at(reader, t)
    sinks = tokens.raw.sinks
    came[:, :sinks] = raw[:, :sinks]
    came[:, tokens.raw.first :] = raw[:, sinks:]
    return decoded, came


def offset_at(reader: Reader, t: int) -> Array:
    """What is added to the token at position t, [vectors, head_dim]."""
    if reader.offset is None:
        return np.zeros(1)
    x = np.array(reader.offset.mean.astype(mx.float32), float)[:, 0]
    turned, pairs = x.copy(), len(reader.offset.frequencies)
    for i, frequency in enumerate(reader.offset.frequencies):
        a, b = (2 * i, 2 * i + 1) if reader.offset.interleaved else (i, i + pairs)
        cosine, sine = np.cos(t * frequency), np.sin(t * frequency)
        turned[:, a], turned[:, b] = x[:, a] * cosine - x[:, b] * sine, x[:, a] * sine + x[:, b] * cosine
    return turned


def by_hand(of: Example) -> Array:
    """Query by query, token by token."""
    count, sinks, positions = max(of.seen.ends), of.seen.sinks, len(of.seen.begins)
    keys, values = whole(of.keys, count), whole(of.values, count)
    q = np.array(of.q, float)
    output = np.zeros((*q.shape[:2], values[0].shape[2]))
    for vector, row in np.ndindex(*q.shape[:2]):
        i = row % positions
        begin, end = of.seen.begins[i], of.seen.ends[i]
        k, v = (
            np.array([x[0 if sinks <= t < stops[i] else 1][vector, t] for t in range(begin, end)])
            for x, stops in ((keys, of.seen.key_stops), (values, of.seen.value_stops))
        )
        if begin < end:
            extra = 0.0 if of.sink_logits is None else np.exp(of.sink_logits[vector, row].item())
            weights = np.exp(k @ q[vector, row])
            output[vector, row] = weights @ v / (weights.sum() + extra)
    return output


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_specification_is_attention_over_what_each_query_sees(shape: Shape) -> None:
    of = example(shape)
    assert worst(call(of), by_hand(of)) < 1e-5


def test_kernels_do_what_the_specification_says_on_the_checker() -> None:
    found = list(cases())
    for case, checked in zip(found, check_all([case.launch for case in found]), strict=True):
        assert not checked.findings, case.launch.note
        assert not case.differs(checked.outputs, [to_numpy(x) for x in case.expected()]), case.launch.note


@pytest.mark.parametrize(
    "shape",
    [
        Shape("levels 4", "levels 4", tokens=700, ratio=9, positions=2, recent=3, sinks=4, sink_logits=True),
        Shape("prod 3 80", "vectors 8 4", tokens=130, head_dim=80, ratio=3, recent=200, offset="rope"),
        Shape("affine 8 32", "levels 3+2", tokens=257, value_head_dim=96, positions=7, window=100, dtype=mx.float32),
    ],
    ids=str,
)
def test_the_two_kernels_one_after_the_other_are_the_specification(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_checker(of: Launch, backend: str) -> list[mx.array]:
        checked = check(of)
        assert not checked.findings
        return [mx.array(x) for x in checked.outputs]

    monkeypatch.setattr(launch, "run", on_checker)
    of = example(shape)
    arguments = (of.q, of.keys, of.values, of.seen, of.sink_logits)
    got = launch.attend_by("cuda", *arguments)
    assert worst(np.array(got), np.array(launch.attend_by("mlx", *arguments))) < 1e-5


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    of = example(Shape("levels 4", "levels 4", tokens=9, positions=2))
    unseen = replace(of.seen, begins=[9, 0], ends=[9, 9])
    output = call(replace(of, seen=unseen)).reshape(2, 2, 64)
    assert (output[:, 0] == 0).all()
    assert (output[:, 1] != 0).all()


def test_parts_cover_what_is_seen_once() -> None:
    for tokens, groups in ((1, 1), (4096, 8), (100_003, 8), (1 << 20, 64), (1 << 20, 5000)):
        seen = Seen([0], [tokens], [max(0, tokens - 32)], [max(0, tokens - 50)], min(4, tokens))
        parts = divide(seen.segments(), groups)
        size = split_tokens(tokens, groups)
        assert len(parts.table) <= 256 + 5
        assert size % 128 == 0
        covered = np.zeros(tokens, dtype=int)
        for start, stop, _, _ in parts.table:
            covered[start:stop] += 1
            assert stop - start <= size
        assert (covered == 1).all()
        kinds = parts.table[:, 3] >= 2
        assert kinds[: parts.of_coded_values].all()
        assert not kinds[parts.of_coded_values :].any()


def test_turns_are_exact_far_out() -> None:
    frequencies = tuple(10000.0 ** (-i / 32) for i in range(32))
    coarse, fine = (np.array(x, float) for x in turn_tables(frequencies, 1 << 20))
    for t in (0, 63, 64, 99_999, (1 << 20) - 1):
        far, near = coarse[t // 64], fine[:, t % 64]
        cosine, sine = far[:, 0] * near[:, 0] - far[:, 1] * near[:, 1], far[:, 1] * near[:, 0] + far[:, 0] * near[:, 1]
        assert np.abs(cosine - np.cos(t * np.array(frequencies))).max() < 2e-7
        assert np.abs(sine - np.sin(t * np.array(frequencies))).max() < 2e-7


def test_wrong_arguments_are_told() -> None:
    of = example(Shape("levels 4", "levels 4", tokens=20, recent=5))
    q, keys, values = of.q, of.keys, of.values
    raw = Raw(keys.raw.x[:, :1], 0, keys.raw.first)
    packed = keys.reader.packed
    assert isinstance(packed, Levels)
    few = replace(keys, reader=replace(keys.reader, packed=replace(packed, levels=packed.levels[:8])))
    for words, changed in {
        "q must be float32": {"q": q.astype(mx.float16)},
        "1 to 16 query positions": {"seen": Seen([0] * 17, [20] * 17, [15] * 17, [15] * 17, 0)},
        "sink logits": {"sink_logits": mx.zeros((3, 2))},
        "raw values": {"values": replace(values, raw=Raw(values.raw.x[0], 0, values.raw.first))},
        "keys are raw from": {"keys": replace(keys, raw=raw)},
        "keys are coded from": {"keys": replace(keys, first=9)},
        "need 16 levels": {"keys": few},
        "heads of 264 channels": {"q": mx.zeros((1, 2, 264)), "keys": wide(keys), "values": wide(values)},
    }.items():
        with pytest.raises(ValueError, match=words):
            call(replace(of, **changed))  # type: ignore[arg-type]


def wide(tokens: Tokens) -> Tokens:
    """The same with more channels than the kernel takes."""
    packed = tokens.reader.packed
    assert isinstance(packed, Levels)
    planes = (mx.zeros((*packed.planes[0].shape[:2], 33), dtype=mx.uint32),)
    reader = Reader(replace(packed, dims=264, planes=planes), matrix=mx.eye(264))
    return replace(tokens, reader=reader, raw=replace(tokens.raw, x=mx.zeros((*tokens.raw.x.shape[:2], 264))))
