"""Which tokens each query sees, in which form, and how the tokens are divided among threadgroups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TILE = 32
"""Tokens that a simdgroup takes at a time."""
SIMDGROUPS = 4
KEY_CODED, VALUE_CODED = 1, 2
_KINDS = (KEY_CODED | VALUE_CODED, VALUE_CODED, KEY_CODED, 0, 0)
"""Of the segments: those of coded values first, then sinks, then raw tokens after the coded ones."""
_GROUPS_WANTED = 1024
_SPLIT_AT_MOST = 256
PARTS_AT_MOST = _SPLIT_AT_MOST + len(_KINDS)
"""Of one launch whose parts have no given size: each segment may end in a part that isn't whole."""


@dataclass(frozen=True)
class Seen:
    """For each query position, the tokens that it sees: [begin, end), coded between the sinks and a stop, else raw.

    All are positions; keys and values may be coded up to different ones.
    """

    begins: Sequence[int]
    ends: Sequence[int]
    key_stops: Sequence[int]
    value_stops: Sequence[int]
    sinks: int
    """Leading tokens that are raw to every query."""

    def segments(self) -> NDArray[np.int32]:
        """[queries, 5, 2]: where each query's tokens of each of five kinds begin and end; see `_KINDS`."""
        begin, end, keys, values = (
            np.array(x, dtype=np.int64) for x in (self.begins, self.ends, self.key_stops, self.value_stops)
        )
        first = np.maximum(begin, self.sinks)
        both, either = np.minimum(keys, values), np.maximum(keys, values)
        ranges = [
            (first, np.minimum(both, end)),
            (np.maximum(first, keys), np.minimum(values, end)),
            (np.maximum(first, values), np.minimum(keys, end)),
            (begin, np.minimum(end, self.sinks)),
            (np.maximum(first, either), end),
        ]
        return np.stack([np.stack([low, np.maximum(low, high)], axis=-1) for low, high in ranges], axis=1).astype(
            np.int32
        )


@dataclass(frozen=True)
class Parts:
    """Tokens divided among threadgroups."""

    table: NDArray[np.int32]
    """[parts, 4]: start, stop, segment, and the sum of KEY_CODED and VALUE_CODED; those of coded values first."""
    of_coded_values: int
    """How many parts are of coded values."""


def split_tokens(tokens: int, groups: int) -> int:
    """Tokens a part, for `groups` threadgroups that each go through all `tokens`.

    As many parts as give the device about 1024 threadgroups, but at most 256, since they are joined one after the
    other, and none of fewer than 128 tokens, which is a tile for each of four simdgroups.
    """
    least = TILE * SIMDGROUPS
    parts = min(max(1, _GROUPS_WANTED // max(groups, 1)), _SPLIT_AT_MOST)
    return max(1, -(-tokens // (parts * least))) * least


def divide(segments: NDArray[np.int32], groups: int, size: int | None = None) -> Parts:
    """Parts that cover what any query sees of each segment [queries, 5, 2]; at least one, which may be empty.

    Each has `size` tokens, a multiple of `TILE`, or fewer; left out, as `split_tokens` has it.
    """
    occupied = segments[..., 1] > segments[..., 0]
    rows, coded = [], 0
    spans = []
    for segment in range(segments.shape[1]):
        some = occupied[:, segment]
        if some.any():
            spans.append((segment, int(segments[some, segment, 0].min()), int(segments[some, segment, 1].max())))
    size = size or split_tokens(sum(stop - start for _, start, stop in spans), groups)
    for segment, first, last in spans:
        kind = _KINDS[segment]
        for start in range(first, last, size):
            rows.append((start, min(start + size, last), segment, kind))
            coded += bool(kind & VALUE_CODED)
    return Parts(np.array(rows or [(0, 0, 0, 0)], dtype=np.int32), coded)
