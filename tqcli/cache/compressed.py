"""`CompressedKVCache`: one layer's entry of an mlx-lm prompt cache, packed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from tqcli.cache.attention import attend
from tqcli.cache.tensor import TensorCache
from tqcli.cache.visibility import Visibility

_FORMAT = 1


class CompressedKVCache:
    """Keys and values of one layer in coded form; attention reads them through `attend`, by way of `hook.py`.

    keys, values: where they are kept; see `TensorCache`. rotating: whether it stands in for mlx-lm's
    `RotatingKVCache`, whose masks cover the window alone.
    """

    def __init__(self, keys: TensorCache, values: TensorCache, rotating: bool = False) -> None:
        if rotating and keys.ctx.window is None:
            raise ValueError("a cache in the place of a rotating one needs the layer's window")
        self.keys, self.values, self.rotating = keys, values, rotating

    def __bool__(self) -> bool:
        return True  # mlx-lm asks `if cache`

    @property
    def offset(self) -> int:
        """Tokens seen so far, which is the position of the next one."""
        return self.keys.tokens

    def size(self) -> int:
        """Tokens seen so far."""
        return self.offset

    def empty(self) -> bool:
        """Whether it has seen no token."""
        return self.offset == 0

    @property
    def nbytes(self) -> int:
        """Bytes of its live buffers, as allocated; what all layers share is in `shared`."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def shared(self) -> dict[str, mx.array]:
        """What it has in common with other layers, by name: the same name is the same array."""
        return self.keys.shared | self.values.shared

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Takes up new tokens [batch, n_kv_heads, new, head_dim] and returns them as they came.

        Raises `RuntimeError` if attention has passed the update before by, and `Unsupported` for keys or values that
        the codec can't hold.
        """
        for cache, new in ((self.keys, keys), (self.values, values)):
            batch, heads, tokens, head_dim = new.shape
            if (heads, head_dim) != (cache.ctx.n_kv_heads, cache.ctx.head_dim):
                raise ValueError(
                    f"{cache.ctx.tensor} of layer {cache.ctx.layer} have {heads} heads of {head_dim} channels, "
                    f"not {cache.ctx.n_kv_heads} of {cache.ctx.head_dim}"
                )
            cache.append(new.reshape(batch * heads, tokens, head_dim))
        return keys, values

    def attend(
        self, queries: mx.array, scale: float, mask: mx.array | str | None = None, sinks: mx.array | None = None
    ) -> mx.array:
        """Attention of the queries [batch, n_q_heads, new, head_dim] of the tokens that the last update brought.

        mask: "causal", an array over the last columns (bool, or added to the logits), or None. sinks: learned sink
        logits [n_q_heads]. Returns [batch, n_q_heads, new, value_head_dim] in the queries' dtype. It answers once an
        update: what it needs of the raw tokens is let go of.
        """
        first = self.keys.step.first
        if queries.shape[2] != self.offset - first:
            raise ValueError(f"{queries.shape[2]} queries don't go with an update of {self.offset - first} tokens")
        visible = Visibility.of(mask, first, self.offset, self.keys.ctx.window)
        output = attend(self.keys, self.values, queries, scale, visible, sinks)
        self.keys.finish()
        self.values.finish()
        return output

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> mx.array | str | None:
        """The mask of the next N tokens, of the shape that the cache it stands in for would give it."""
        from mlx_lm.models.base import create_causal_mask
        from mlx_lm.models.cache import create_attention_mask

        if not self.rotating:
            return _mask(create_attention_mask(N, self.offset, return_array, window_size))
        longest = self.keys.ctx.window
        assert longest is not None
        window = window_size or longest
        if N > 1:
            offset = min(longest - 1, self.offset)
            if offset + N > window or return_array:
                return _mask(create_causal_mask(N, offset, window_size=window))
            return "causal"
        if window < longest and self.offset >= window:
            size = min(self.offset + 1, longest)
            return mx.arange(size) >= size - window
        return None

    def is_trimmable(self) -> bool:
        """Whether `trim` is possible: not after coded tokens have left a sliding window."""
        return self.keys.trimmable and self.values.trimmable

    def trim(self, n: int) -> int:
        """Takes back the last n tokens, or all there are, and returns how many; tokens that were coded stay coded."""
        n = max(0, min(self.offset, n))
        self.keys.trim(n)
        self.values.trim(n)
        return n

    @property
    def meta_state(self) -> str:
        """What the arrays of `state` are, and the settings, as JSON."""
        described = {"keys": self.keys.save()[0], "values": self.values.save()[0]}
        return json.dumps({"format": _FORMAT, "rotating": self.rotating, **described})

    @property
    def state(self) -> list[mx.array]:
        """`meta_state` as bytes, then every array that is needed to go on: of the keys, then of the values."""
        text = mx.array(np.frombuffer(self.meta_state.encode(), dtype=np.uint8))
        return [text, *self.keys.save()[1], *self.values.save()[1]]

    @state.setter
    def state(self, state: Sequence[mx.array]) -> None:
        text, *arrays = state
        described = json.loads(bytes(np.array(text)))
        if described.get("format") != _FORMAT:
            raise ValueError(f"a compressed cache of format {described.get('format')} can't be read, only {_FORMAT}")
        self.rotating = described["rotating"]
        k = described["keys"]
        count = sum(len(k[part] or ()) for part in ("held", "coded", "state"))
        self.keys = TensorCache.load(k, arrays[:count])
        self.values = TensorCache.load(described["values"], arrays[count:])

    @classmethod
    def from_state(cls, state: Sequence[mx.array]) -> CompressedKVCache:
        """The cache that had this `state`."""
        made = cls.__new__(cls)
        made.state = state
        return made


def _mask(mask: Any) -> mx.array | str | None:
    return mask  # type: ignore[no-any-return]
