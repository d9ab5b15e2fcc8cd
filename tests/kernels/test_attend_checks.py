"""What doesn't fit together is refused before a kernel reads it, on every back-end alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from tqcli.kernels.attend import Groups, Levels, Offset, Raw, Reader, Seen, Tokens, Vectors, attend, unlaunchable
from tqcli.kernels.attend.cases import Example, Shape, example
from tqcli.kernels.runtime import backend

LEVELS, SPARE = Shape("levels 4", "levels 4", tokens=20, kv_heads=2), Shape("levels 3", "levels 3", head_dim=80)
SIGNS = Shape("prod 2 64", "levels 3", tokens=20, offset="rope")
AFFINE = Shape("affine 4 32", "affine 4 32", tokens=20, kv_heads=2)
VECTORS = Shape("vectors 6 8", "vectors 5 2 each", tokens=20, kv_heads=2)


def of_reader(tokens: Tokens, **changed: Any) -> Tokens:
    return replace(tokens, reader=replace(tokens.reader, **changed))


def of_packed(tokens: Tokens, **changed: Any) -> Tokens:
    return of_reader(tokens, packed=replace(tokens.reader.packed, **changed))


def refused(of: Example, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attend(of.q, of.keys, of.values, of.seen, of.sink_logits)


@pytest.mark.parametrize("name", ["keys", "values"])
def test_levels_of_other_shapes_or_dtypes(name: str) -> None:
    of = example(LEVELS)
    tokens = getattr(of, name)
    packed: Levels = tokens.reader.packed
    assert packed.scales is not None
    (plane,) = packed.planes
    for words, changed in {
        f"codes of {name} must be uint32 .*, not int32": {"planes": (plane.astype(mx.int32),)},
        f"{name}: planes must be uint32": {"planes": (plane[..., 1:],)},
        f"scales of {name} must be .*, not bfloat16 \\(2, 1\\)": {"scales": packed.scales[:, :1]},
        f"scales of {name} must be .*, not uint16": {"scales": packed.scales.view(mx.uint16)},
        f"{name}: rows of 64 codes of 4 bits have no room": {"scales": None},
        f"{name}: .* 16 levels, not float16": {"levels": packed.levels.astype(mx.float16)},
    }.items():
        refused(replace(of, **{name: of_packed(tokens, **changed)}), words)


def test_a_sketch_has_one_bit_and_scales_of_its_own() -> None:
    of = example(SIGNS)
    sketch = of.keys.reader.sketch
    assert sketch is not None
    assert sketch.scales is not None
    for words, changed in {
        "a sketch has 1 bit and scales": {"scales": None},
        "scales of sketches of keys must be": {"scales": sketch.scales[:, 1:]},
        "sketches of keys: planes must be": {"planes": (sketch.planes[0][:, 1:],)},
    }.items():
        refused(replace(of, keys=of_reader(of.keys, sketch=replace(sketch, **changed))), words)


@pytest.mark.parametrize("name", ["keys", "values"])
def test_groups_of_other_shapes_or_dtypes(name: str) -> None:
    of = example(AFFINE)
    tokens = getattr(of, name)
    packed: Groups = tokens.reader.packed
    for words, changed in {
        f"codes of {name} must be uint32 .*, not int32": {"codes": packed.codes.astype(mx.int32)},
        f"codes of {name} must be uint32 \\(2, 20, 8\\)": {"codes": packed.codes[..., 1:]},
        f"codes of {name} must be uint32 \\(2, 20, 10\\)": {"bits": 5},
        f"scales of {name} must be float \\(2, 20, 2\\)": {"scales": packed.scales[..., :1]},
        f"scales of {name} .* \\(2, 1, 2\\)": {"scales": packed.scales[:, :1]},
        f"biases of {name} must be float16 \\(2, 20, 2\\)": {"biases": packed.biases[:1]},
        f"{name}: 64 elements of 4 bits in groups of 48": {"group": 48},
        f"{name}: 64 elements of 7 bits": {"bits": 7},
    }.items():
        refused(replace(of, **{name: of_packed(tokens, **changed)}), words)


@pytest.mark.parametrize("name", ["keys", "values"])
def test_vectors_of_other_shapes_or_dtypes(name: str) -> None:
    of = example(VECTORS)
    tokens = getattr(of, name)
    packed: Vectors = tokens.reader.packed
    for words, changed in {
        f"codes of {name} must be uint32 .*, not int32": {"codes": packed.codes.astype(mx.int32)},
        f"codes of {name} must be uint32 \\(2, 20, .": {"codes": packed.codes[..., 1:]},
        f"the codebook of {name} must be float": {"codebook": packed.codebook[..., 1:, :]},
        f"the codebook of {name} must be float .*, not int32": {"codebook": packed.codebook.astype(mx.int32)},
        f"the codebook of {name} .*, not bfloat16 \\(3,": {"codebook": mx.zeros((3, *book_of(packed)), mx.bfloat16)},
        f"{name}: codes of 1 to 16 bits for a divisor of 64 elements are needed, not 17": {"bits": 17},
        f"{name}: .* not . bits for 7": {"sub_dim": 7},
    }.items():
        refused(replace(of, **{name: of_packed(tokens, **changed)}), words)


def book_of(packed: Vectors) -> tuple[int, int]:
    return 1 << packed.bits, packed.sub_dim


def test_matrices_gains_and_means_of_other_shapes_or_dtypes() -> None:
    of = example(replace(VECTORS, offset="rope"))
    reader = of.keys.reader
    assert reader.matrix is not None
    assert reader.gains is not None
    assert reader.offset is not None
    for words, changed in {
        "the matrix of keys must be float32": {"matrix": reader.matrix.astype(mx.float16)},
        "gains of keys must be float": {"gains": reader.gains[..., 1:]},
        r"gains of keys .*\(2, 1, 64\), not bfloat16 \(4, 1, 64\)": {"gains": mx.concatenate([reader.gains] * 2)},
        r"the mean of keys .*\(2, 1, 64\)": {"offset": Offset(mx.concatenate([reader.offset.mean] * 2, axis=1))},
        "33 pairs of 64 channels": {"offset": Offset(reader.offset.mean, (1.0,) * 33)},
    }.items():
        refused(replace(of, keys=of_reader(of.keys, **changed)), words)


def test_scales_in_the_codes_need_room_there() -> None:
    of = example(SPARE)
    assert isinstance(of.keys.reader.packed, Levels)
    assert of.keys.reader.packed.scales is None
    attend(of.q, of.keys, of.values, of.seen)


@pytest.mark.parametrize(
    ("raw", "seen", "words"),
    [
        (Raw(mx.zeros((1, 2, 64)), 4, 4), Seen([0], [4], [4], [4], 4), "2 tokens, of which 4 can't be sinks"),
        (Raw(mx.zeros((1, 2, 64)), -1, 0), Seen([0], [2], [0], [0], -1), "of which -1 can't be sinks"),
        (Raw(mx.zeros((1, 9, 64)), 4, 2), Seen([0], [4], [4], [4], 4), "4 can't be sinks and the rest from 2"),
        (Raw(mx.zeros((1, 9, 64)), 0, 0), Seen([-3], [4], [0], [0], 0), "can be seen, not -3 to 4"),
        (Raw(mx.zeros((1, 9, 64)), 0, 0), Seen([0], [2**31], [0], [0], 0), "can be seen, not 0 to 2147483648"),
        (Raw(mx.zeros((1, 9, 64)), 0, 0), Seen([0], [10], [0], [0], 0), "keys are raw from 0 to 9 but seen so beyond"),
    ],
)
def test_tokens_that_are_not_there(raw: Raw, seen: Seen, words: str) -> None:
    of = example(Shape("levels 4", "levels 4", tokens=20, ratio=1))
    refused(replace(of, keys=replace(of.keys, raw=raw), values=replace(of.values, raw=raw), seen=seen), words)


def test_sink_logits_are_floats() -> None:
    of = example(LEVELS)
    refused(replace(of, sink_logits=mx.zeros(of.q.shape[:2], dtype=mx.int32)), "sink logits must be float, not")


def many(vectors: int) -> Tokens:
    """A coded token and a raw one of each vector; zeros, which are never allocated."""
    codes, scales = mx.zeros((vectors, 1, 8), dtype=mx.uint32), mx.zeros((vectors, 1))
    packed = Levels(64, (4,), (codes,), scales, mx.zeros((16,)))
    return Tokens(Reader(packed), 0, Raw(mx.zeros((vectors, 1, 64)), 0, 1))


@pytest.mark.parametrize(
    ("vectors", "rows", "words"),
    [
        (65535, 1, None),
        (65536, 1, "65536 threadgroups along z"),
        (65535, 1040, "threads along x"),  # of the second launch
        (1, 8 * 65536, "65536 threadgroups along y"),
    ],
)
def test_a_launch_too_large_for_a_gpu_takes_plain_operations(
    vectors: int, rows: int, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "available", lambda: ("cuda", "mlx"))
    tokens = many(vectors)
    q = mx.zeros((vectors, rows, 64))
    assert (unlaunchable(q.shape, tokens, tokens) is None) == (words is None)
    if words is not None:
        with pytest.raises(ValueError, match=f"attend has no cuda kernel for this call: .*{words}"):
            attend(q, tokens, tokens, Seen([0], [2], [1], [1], 0), None, "cuda")


def test_float64_takes_plain_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "available", lambda: ("cuda", "mlx"))
    of = example(replace(VECTORS, offset="mean", recent=3))
    vectors, groups, logits = of.keys, example(AFFINE).keys, mx.zeros(of.q.shape[:2])
    assert isinstance(vectors.reader.packed, Vectors)
    assert isinstance(groups.reader.packed, Groups)
    assert vectors.reader.gains is not None
    assert vectors.reader.offset is not None
    with mx.stream(mx.cpu):
        wide = [
            replace(vectors, raw=replace(vectors.raw, x=vectors.raw.x.astype(mx.float64))),
            of_packed(vectors, codebook=vectors.reader.packed.codebook.astype(mx.float64)),
            of_reader(vectors, gains=vectors.reader.gains.astype(mx.float64)),
            of_reader(vectors, offset=Offset(vectors.reader.offset.mean.astype(mx.float64))),
            of_packed(groups, scales=groups.reader.packed.scales.astype(mx.float64)),
        ]
        assert [unlaunchable(of.q.shape, x, of.values) for x in wide] == ["float64"] * len(wide)
        assert [unlaunchable(of.q.shape, of.values, x) for x in wide] == ["float64"] * len(wide)
        assert unlaunchable(of.q.shape, vectors, groups) is None
        for keys, sinks in ((wide[0], None), (vectors, logits.astype(mx.float64))):
            with pytest.raises(ValueError, match="no cuda kernel for this call: float64"):
                attend(of.q, keys, of.values, of.seen, sinks, "cuda")
            assert mx.all(mx.isfinite(attend(of.q, keys, of.values, of.seen, sinks, "mlx"))).item()
