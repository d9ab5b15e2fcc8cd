"""How kernels that score coded tokens divide their work: some queries of one head, and a token a thread."""

from __future__ import annotations

_AT_MOST = 8


def queries_at_once(queries: int) -> int:
    """Queries that a threadgroup scores: a power of two up to 8, so that few kernels are compiled."""
    return min(_AT_MOST, 1 << (queries - 1).bit_length())


def scores_grid(heads: int, queries: int, tokens: int, threads: int) -> tuple[int, int, int]:
    """The grid of threadgroups of (threads, 1, 1)."""
    return -(-tokens // threads) * threads, -(-queries // queries_at_once(queries)), heads
