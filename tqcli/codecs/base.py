"""The Codec protocol, what a codec makes, and the registry that commands, recipes and tests read.

A codec is one file in this folder: a frozen dataclass whose fields are its options, marked with `@register`.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import mlx.core as mx

from tqcli.codecs.context import LayerContext, Tensor
from tqcli.errors import InputError, TqError

Center = Literal["none", "mean", "rope"]
State = Mapping[str, mx.array]
"""What calibration learns of one layer's keys or values; a codec decides what is in it."""


class Unsupported(TqError):
    """A codec can't code this tensor; reports record the reason and the tensor stays uncompressed."""


@dataclass(frozen=True)
class Encoded:
    """One layer's keys or values in coded form."""

    arrays: dict[str, mx.array]
    """What grows with the tokens, or belongs to this cache alone."""
    tokens: int
    shared: dict[str, mx.array] = field(default_factory=dict)
    """What all tensors with the same key share (a rotation, a codebook, a calibrated mean): stored and counted once."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are this tensor's own."""
        return sum(a.nbytes for a in self.arrays.values())


class Codec(ABC):
    """An algorithm with its settings; x is [..., tokens, head_dim] of any float dtype; arithmetic is float32.

    The same input, options and seed give the same bytes. Methods raise `Unsupported` for a tensor they can't code.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for lists: what it does, and the paper."""
    applies_to: ClassVar[tuple[Tensor, ...]] = ("keys", "values")
    bits_allowed: ClassVar[tuple[int, ...]] = ()
    """Bits an element that a user can ask for; empty where the codec has no such choice."""
    center_default: ClassVar[Center] = "none"
    """Centring of keys unless the user asks otherwise; see `centring.py`."""

    def bits_nominal(self, ctx: LayerContext) -> float:
        """Bits an element that a user would call it by."""
        return float(getattr(self, "bits", 0))

    def unsupported(self, ctx: LayerContext) -> str | None:
        """Why this layer can't be coded, known from its shape alone; None where it can."""
        return None

    def calibrate(self, x: mx.array, ctx: LayerContext) -> State | None:
        """Learns from x what `encode` may use for other tokens of the same layer; None if there is nothing to learn."""
        return None

    @abstractmethod
    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        """Codes x [..., tokens, head_dim]; 0 tokens are fine."""

    @abstractmethod
    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        """The reconstruction, float32 [..., tokens, head_dim]."""

    @abstractmethod
    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        """Bytes by formula for `vectors` KV heads of `tokens` tokens each; what `Encoded.nbytes` must come to."""

    def relative_mse_theory(self, head_dim: int) -> float | None:
        """Expected ||x - decoded||**2 / ||x||**2 of what it codes, whatever the data; None if unknown."""
        return None

    def offset(self, enc: Encoded, ctx: LayerContext) -> mx.array | None:
        """What was subtracted before coding and is added back, [..., tokens, head_dim]; None for nothing."""
        return None

    def scores(self, q: mx.array, enc: Encoded, ctx: LayerContext) -> mx.array:
        """Estimates of <q, key>: q [n_q_heads, queries, head_dim] to float32 [n_q_heads, queries, tokens].

        Without `ctx.scale`. Query head h reads KV head h // gqa_ratio.
        """
        keys = mx.repeat(self.decode(enc, ctx), ctx.gqa_ratio, axis=-3)
        return q.astype(mx.float32) @ keys.swapaxes(-1, -2)

    def attend(
        self,
        q: mx.array,
        k_enc: Encoded,
        v_codec: Codec,
        v_enc: Encoded,
        mask: mx.array | None,
        ctx: LayerContext,
    ) -> mx.array:
        """softmax(scale * scores + mask) @ values, float32 [n_q_heads, queries, value_head_dim].

        `self` coded the keys and `v_codec` the values. mask [..., queries, tokens]: bool (True attends) or additive.
        """
        logits = self.scores(q, k_enc, ctx) * ctx.scale
        if mask is not None:
            logits = mx.where(mask, logits, -mx.inf) if mask.dtype == mx.bool_ else logits + mask
        weights = mx.softmax(logits, axis=-1, precise=True)
        return weights @ mx.repeat(v_codec.decode(v_enc, ctx), ctx.gqa_ratio, axis=-3)


_REGISTRY: dict[str, type[Codec]] = {}


def register(cls: type[Codec]) -> type[Codec]:
    """Class decorator: makes a codec known under its `name`."""
    if cls.name in _REGISTRY:
        raise ValueError(f"two codecs are called {cls.name}: {_REGISTRY[cls.name]} and {cls}")
    _REGISTRY[cls.name] = cls
    return cls


def registered_codecs() -> dict[str, type[Codec]]:
    """Every codec by name; imports each module of this folder, so that a new file is found by itself."""
    package = __name__.rpartition(".")[0]
    folder = importlib.import_module(package)
    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{package}.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def check_bits(codec: type[Codec], bits: int) -> None:
    """Raises `InputError` unless the codec can be had with this many bits."""
    allowed = codec.bits_allowed
    if bits not in allowed:
        span = range(allowed[0], allowed[-1] + 1)
        text = f"{allowed[0]} to {allowed[-1]}" if allowed == tuple(span) else ", ".join(map(str, allowed))
        raise InputError(f"{codec.name} takes {text} bits, not {bits}")


def to_cache_dtype(x: mx.array, ctx: LayerContext) -> mx.array:
    """Casts x to the dtype of the model's own cache. Raises `Unsupported` if a finite element would overflow it."""
    dtype: mx.Dtype = getattr(mx, ctx.cache_dtype)
    cast = x.astype(dtype)
    if dtype == mx.float16 and x.dtype != mx.float16 and x.size and not mx.isfinite(cast).all().item():
        largest = mx.max(mx.abs(x)).item()
        raise Unsupported(f"an element of {largest:.6g} doesn't fit float16 (at most 65504)")
    return cast
