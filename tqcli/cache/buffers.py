"""Arrays that grow with the tokens, in steps, and shrink at either end."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

STEP = 64
"""Tokens by which the arrays grow: 1.6 % of 4,096."""


class TokenBuffers:
    """Arrays [vectors, tokens, ...] of the same tokens, by name. Their capacity is a multiple of `STEP` tokens."""

    def __init__(self) -> None:
        self.arrays: dict[str, mx.array] = {}
        self.count = 0
        """Tokens held."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(array.nbytes for array in self.arrays.values())

    def append(self, new: Mapping[str, mx.array], tokens: int) -> None:
        """Adds `tokens` tokens at the end; the names are the same every time."""
        stop = self.count + tokens
        for name, array in new.items():
            held = self.arrays.get(name)
            if held is None or held.shape[1] < stop or held.dtype != array.dtype:  # the wider dtype is kept
                self.arrays[name] = _extended(held, self.count, array)
            else:
                held[:, self.count : stop] = array
        self.count = stop

    def read(self, start: int, stop: int) -> dict[str, mx.array]:
        """The arrays of tokens start to stop, counted from the first that is held."""
        return {name: array[:, start:stop] for name, array in self.arrays.items()}

    def drop(self, tokens: int) -> None:
        """Forgets the first `tokens` tokens."""
        if tokens >= self.count:
            self.arrays, self.count = {}, 0
        elif tokens:
            left = self.count - tokens
            for name, array in self.arrays.items():
                self.arrays[name] = _extended(None, 0, array[:, tokens : self.count])
            self.count = left

    def truncate(self, tokens: int) -> None:
        """Forgets all but the first `tokens` tokens; the memory stays for those to come."""
        if tokens <= 0:
            self.arrays, self.count = {}, 0
        else:
            self.count = min(self.count, tokens)


def own(x: mx.array, start: int, stop: int) -> mx.array:
    """Tokens start to stop of x [vectors, tokens, ...] in memory of their own: a slice would keep all of x alive."""
    return mx.take(x, mx.arange(start, stop), axis=1)


def _extended(held: mx.array | None, count: int, new: mx.array) -> mx.array:
    """The first `count` tokens of `held`, then `new`, then zeros up to the next multiple of `STEP`."""
    parts = [new] if held is None or not count else [held[:, :count], new]
    tokens = count + new.shape[1]
    if spare := -tokens % STEP:
        parts.append(mx.zeros((new.shape[0], spare, *new.shape[2:]), dtype=new.dtype))
    return mx.concatenate(parts, axis=1) if len(parts) > 1 else own(new, 0, new.shape[1])
