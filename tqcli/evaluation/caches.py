"""Compressed caches for a walk: made anew for each window, and asked what they hold after it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from tqcli.compression.calibration import States
from tqcli.compression.plan import CompressionPlan
from tqcli.report.schema import SkippedTensor


class CacheSource(Protocol):
    """Where the caches of a walk come from; plans are named by their index."""

    def make(self, plan: int, only: int | None = None) -> list[Any]:
        """An empty prompt cache, all layers compressed or one alone."""

    def reading(self) -> AbstractContextManager[None]:
        """While the context lasts, the model's attention reads these caches."""

    def layers(self, plan: int) -> list[int]:
        """The layers that the plan compresses."""

    def skipped(self, plan: int) -> list[SkippedTensor]:
        """What it doesn't compress, and why."""

    def coded_tokens(self, cache: Sequence[Any]) -> tuple[int, int]:
        """How many tokens' keys, and values, a used cache has coded, over all layers."""


class CodedCaches:
    """Those of `tqcli.cache`.

    states: for each plan, what its codecs learned from a calibration capture. cache_dtype: of what stays uncompressed;
    by default what the model computes keys in.
    """

    def __init__(
        self,
        model: Any,
        plans: Sequence[CompressionPlan],
        states: Sequence[States | None] | None = None,
        cache_dtype: str | None = None,
    ) -> None:
        """Raises `InputError` for a plan that compresses nothing of this model or lacks a calibration."""
        self._model, self._plans, self._cache_dtype = model, plans, cache_dtype
        self._states = states or [None] * len(plans)
        self._unused: dict[tuple[int, int | None], list[Any]] = {}
        self._first = [self._made(plan, None) for plan in range(len(plans))]

    def make(self, plan: int, only: int | None = None) -> list[Any]:
        # Finding out a model's layers takes a run of it: one for each kind of cache, not for each window.
        return copy.deepcopy(self._made(plan, only))

    def _made(self, plan: int, only: int | None) -> list[Any]:
        if (plan, only) not in self._unused:
            self._unused[plan, only] = self._make(plan, only)
        return self._unused[plan, only]

    def _make(self, plan: int, only: int | None) -> list[Any]:
        from tqcli.cache import compress_cache

        return compress_cache(
            self._model,
            self._plans[plan],
            states=self._states[plan],
            only=None if only is None else [only],
            cache_dtype=self._cache_dtype,
        )

    def reading(self) -> AbstractContextManager[None]:
        from tqcli.cache import compressed_attention

        return compressed_attention(self._model)

    def layers(self, plan: int) -> list[int]:
        return sorted(self._first[plan].compressed)  # type: ignore[attr-defined]

    def skipped(self, plan: int) -> list[SkippedTensor]:
        left = self._first[plan].skipped  # type: ignore[attr-defined]
        return [SkippedTensor(layer=of.layer, tensor=of.tensor, reason=of.reason) for of in left]

    def coded_tokens(self, cache: Sequence[Any]) -> tuple[int, int]:
        compressed = cache.compressed.values()  # type: ignore[attr-defined]
        return sum(of.keys.coded_tokens for of in compressed), sum(of.values.coded_tokens for of in compressed)


@dataclass(frozen=True)
class CacheSize:
    """What a prompt cache takes after a window, in bytes."""

    resident: int
    """Of its live buffers, what layers share counted once."""
    fp16: int
    """What the keys and values that it holds would take in 16 bits, without spare room; 0 where it holds none."""

    @classmethod
    def of(cls, cache: Sequence[Any]) -> CacheSize:
        """Of mlx-lm's own entries and compressed ones; 16-bit bytes are counted of mlx-lm's own alone.

        Of a sliding window's cache they are those of the window: after a prefill step it holds some tokens more.
        """
        from tqcli.capture.attention import leaves

        entries = [leaf for entry in cache for leaf in leaves(entry) if leaf is not None and not is_empty(leaf)]
        fp16 = sum(_fp16_bytes(leaf) for leaf in entries if hasattr(leaf, "keys_and_values"))
        return cls(sum(leaf.nbytes for leaf in entries) + getattr(cache, "shared_bytes", 0), fp16)


def _fp16_bytes(leaf: Any) -> int:
    """Of the keys and values of one of mlx-lm's caches, [batch, heads, tokens, channels] each."""
    window = getattr(leaf, "max_size", None)
    arrays = [array for array in leaf.keys_and_values() if isinstance(array, mx.array)]
    held = [(array.size // max(1, array.shape[2]), array.shape[2]) for array in arrays]
    return sum(2 * size * (tokens if window is None else min(tokens, window)) for size, tokens in held)


def most_coded(cache: Sequence[Any]) -> int:
    """Tokens that a used compressed cache holds in coded form, of the layer and tensor that holds most."""
    compressed = cache.compressed.values()  # type: ignore[attr-defined]
    return max(int(of.coded_tokens) for entry in compressed for of in (entry.keys, entry.values))


def is_empty(entry: Any) -> bool:
    """Whether a cache has seen nothing: its state can't be asked for then."""
    return hasattr(entry, "empty") and bool(entry.empty())
