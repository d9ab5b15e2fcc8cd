"""What the kernel is told about coded tokens: how they are packed, and what makes vectors of them again.

A coded vector is y, read from the codes; the vector that it stands for is (y @ matrix) * gains + offset. Attention
works on y: a query is turned to q' = (q * gains) @ matrix.T once, and so is what is summed of values, turned back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.core as mx


@dataclass(frozen=True)
class Levels:
    """y = scale * level of each code; codes of several planes are joined, the upper bits first."""

    dims: int
    bits: tuple[int, ...]
    """Bits of one or two planes, at most 8 in all."""
    planes: tuple[mx.array, ...]
    """uint32 [vectors, capacity, words] as `pack_bits` makes them, one for each of `bits`."""
    scales: mx.array | None
    """[vectors, capacity], 16 bits or float32; None where they are the upper half of the first plane's last words."""
    levels: mx.array
    """float32 [2**sum(bits)]."""


@dataclass(frozen=True)
class Groups:
    """y = scale * code + bias, as `mx.quantize` packs it."""

    dims: int
    bits: int
    group: int
    codes: mx.array
    """uint32 [vectors, capacity, words]."""
    scales: mx.array
    """Float [vectors, capacity, dims / group]."""
    biases: mx.array


@dataclass(frozen=True)
class Vectors:
    """y = entries of a codebook, one after the other."""

    dims: int
    bits: int
    sub_dim: int
    codes: mx.array
    """uint32 [vectors, capacity, words]."""
    codebook: mx.array
    """Float [entries, sub_dim], or [vectors, entries, sub_dim]; entries = 2**bits."""


Packed = Levels | Groups | Vectors


@dataclass(frozen=True)
class Offset:
    """What was subtracted before coding: a mean, or one that turns with the position (rotary embedding)."""

    mean: mx.array
    """Float [vectors, 1, head_dim]."""
    frequencies: tuple[float, ...] = ()
    """Radians per position of each rotated pair of the leading channels; none for a mean that stays."""
    interleaved: bool = False
    """True: pair i is channels (2i, 2i + 1). False: (i, i + number of pairs)."""


@dataclass(frozen=True)
class Reader:
    """Coded keys or values; see the module's description. Capacity may exceed the tokens held."""

    packed: Packed
    sketch: Levels | None = None
    """Signs, one bit, whose y are appended to those of `packed`, which are `Levels` of one plane then."""
    matrix: mx.array | None = None
    """float32 [all dims, head_dim]; None for the identity."""
    gains: mx.array | None = None
    """Float [vectors, 1, head_dim]; None for ones."""
    offset: Offset | None = None

    def with_sketch(self, other: Reader) -> Reader:
        """A reader of the sum of what this one and a sketch read. Raises `ValueError` for one that isn't a sketch."""
        if not isinstance(other.packed, Levels) or self.matrix is None or other.matrix is None:
            raise ValueError(f"levels with a matrix are needed, not {self} and {other}")
        return replace(self, sketch=other.packed, matrix=mx.concatenate([self.matrix, other.matrix]))

    @property
    def dims(self) -> int:
        """Elements of y."""
        return self.packed.dims + (0 if self.sketch is None else self.sketch.dims)


@dataclass(frozen=True)
class Raw:
    """Uncompressed tokens [vectors, n, head_dim]: the sinks, and behind them those from position `first` on."""

    x: mx.array
    sinks: int
    first: int


@dataclass(frozen=True)
class Tokens:
    """One layer's keys, or its values, in both forms."""

    reader: Reader
    first: int
    """Position of the first coded token that is held."""
    raw: Raw
