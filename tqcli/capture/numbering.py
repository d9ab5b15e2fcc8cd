"""Which layer of the model an attention call belongs to."""

from __future__ import annotations

from typing import Any

from tqcli.capture.attention import AttentionCall


class LayerNumbers:
    """Numbers calls by the model's blocks.

    mlx-lm's prompt cache has an entry a block, in order; but some models leave out blocks that hold no cache, or have
    several blocks read one entry. There a call's block is the one that its attention module is part of.
    """

    def __init__(self, model: Any, cache: list[Any]) -> None:
        blocks = list(model.layers)
        self.count = max(len(blocks), len(cache))
        self._by_cache = len(blocks) == len(cache)
        self._block_of: dict[int, int] = {}
        if not self._by_cache:
            for index, block in enumerate(blocks):
                for _, module in block.named_modules():
                    self._block_of.setdefault(id(module), index)

    def of(self, call: AttentionCall) -> int:
        """The layer's number, from 0."""
        if self._by_cache:
            return call.cache_index
        return self._block_of.get(id(call.module), call.cache_index)
