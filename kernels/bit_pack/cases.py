"""Small launches of the bit packing kernels with the outputs they must have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import mlx.core as mx
import numpy as np

from tqcli.kernels.bit_pack import reference
from tqcli.kernels.bit_pack.launch import pack_launch, unpack_launch
from tqcli.kernels.runtime.case import Case, exactly

_SHAPES = (
    (1, (3, 33)),
    (2, (7, 16)),
    (3, (2, 3, 80)),
    (4, (5, 1)),
    (5, (1, 63)),
    (6, (3, 31)),
    (7, (4, 96)),
    (8, (9, 7)),
)
_WIDER = ((9, (2, 33)), (12, (3, 80)), (13, (1, 31)), (16, (5, 3)))


def cases() -> Iterator[Case]:
    """Every width of code, in rows that end within a word and at its end, of more and of fewer than one threadgroup.

    The last has too many rows for its threads, as a very large array has.
    """
    for bits, shape in (*_SHAPES, *_WIDER):
        codes = np.random.default_rng(bits).integers(0, 2**bits, shape)
        yield from _both_ways(mx.array(codes.astype(np.uint8 if bits <= 8 else np.uint16)), bits)
    many = np.random.default_rng(0).integers(0, 8, (70, 24)).astype(np.uint8)
    yield from _both_ways(mx.array(many), 3, threads=96)


def _both_ways(codes: mx.array, bits: int, **limit: int) -> Iterator[Case]:
    words, n = reference.pack_bits(codes, bits), codes.shape[-1]
    note = f"{bits} bits, {list(codes.shape)}" + (", in parts" if limit else "")
    pack, unpack = pack_launch(codes, bits, **limit), unpack_launch(words, bits, n, **limit)
    yield Case("bit_pack", replace(pack, note=note), lambda: [words], exactly)
    yield Case("bit_pack", replace(unpack, note=note), lambda: [codes], exactly)
