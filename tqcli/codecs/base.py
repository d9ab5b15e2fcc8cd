"""The Codec protocol, what a codec makes, and the registry that commands, recipes and tests read.

A codec is one file in this folder: a frozen dataclass whose fields are its options, marked with `@register`.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import mlx.core as mx

from tqcli.codecs.context import LayerContext, Tensor
from tqcli.errors import InputError, TqError
from tqcli.kernels.attend import Reader

Center = Literal["none", "mean", "rope"]
State = Mapping[str, mx.array]
"""What is learned of one layer's keys or values before they are coded, by name: a mean, a codebook."""


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
    state: State = field(default_factory=dict)
    """What was learned before encoding, where the codec learns anything. It is kept in `arrays` or in `shared`."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are this tensor's own."""
        return sum(a.nbytes for a in self.arrays.values())


class Codec(ABC):
    """An algorithm with its settings; x is [..., tokens, head_dim] of any float dtype.

    Arithmetic is `ctx.arithmetic`: float32, so that "float32" below is float64 where the context says so.

    The same input, options and seed give the same bytes. Methods raise `Unsupported` for a tensor they can't code.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for lists: what it does, and the paper."""
    applies_to: ClassVar[tuple[Tensor, ...]] = ("keys", "values")
    bits_allowed: ClassVar[tuple[float, ...]] = ()
    """Bits an element that a user can ask for; empty where the codec has no such choice."""
    center_default: ClassVar[Center] = "none"
    """Centring of keys unless the user asks otherwise; see `centring.py`."""
    needs_calibration: ClassVar[bool] = False
    """Whether what it learns takes a calibration capture; else the first tokens of each cache will do."""
    splits_channels: ClassVar[bool] = False
    """Whether it has `split`, and so the option `outliers`; see `split.py`."""
    has_stages: ClassVar[bool] = False
    """Whether it has the option `stages`: how many of the stages that it stores are decoded."""

    def centring(self, ctx: LayerContext) -> Center:
        """How this tensor is centred."""
        return "none"

    def bits_nominal(self, ctx: LayerContext) -> float:
        """Bits an element that a user would call it by."""
        return float(getattr(self, "bits", 0))

    def check(self, ctx: LayerContext) -> None:
        """Raises `InputError` for options that don't go with this shape: a slip of the user, not a tensor to skip."""
        return

    def unsupported(self, ctx: LayerContext) -> str | None:
        """Why this layer can't be coded, known from its shape alone; None where it can."""
        return None

    @property
    def patience(self) -> str | None:
        """What to know before it learns, where that takes minutes."""
        return None

    def remarks(self, ctx: LayerContext) -> list[str]:
        """What it does otherwise than asked for, for this shape: one line each, for the report."""
        return []

    @property
    def splits_by_itself(self) -> bool:
        """Whether its bits ask for a channel split, without outliers being asked for."""
        return False

    def split(self, outliers: int, head_dim: int) -> tuple[Codec, Codec]:
        """The codecs of head_dim - outliers ordinary channels and of the outliers; where `splits_channels` is set.

        Neither may learn anything. Raises `InputError` where the bits don't suffice for both. Asked only of a codec
        with `splits_channels`, which has its own.
        """
        raise NotImplementedError(f"{self.name} doesn't say how to split channels: it needs `split`")

    def outliers_default(self, head_dim: int) -> int:
        """How many outlier channels its bits ask for by themselves."""
        return 0

    def learns(self, ctx: LayerContext) -> tuple[str, ...]:
        """Names of the arrays of the state that `encode` needs for this tensor; none where it needs no state."""
        return ()

    def learned_bytes(self, vectors: int, ctx: LayerContext) -> int:
        """Bytes of the state by formula, for `vectors` KV heads; of a codec that learns from a cache's first tokens."""
        if self.learns(ctx):
            names = ", ".join(self.learns(ctx))
            raise NotImplementedError(f"{self.name} learns {names} but not how many bytes that is: add `learned_bytes`")
        return 0

    def shared_name(self, name: str, ctx: LayerContext) -> str:
        """Key among what is shared of an array of a calibrated state; the same key means the same array."""
        return f"{ctx.layer}.{ctx.tensor}.{name}"

    def calibrate(self, x: mx.array, ctx: LayerContext) -> State:
        """Learns from x [heads, tokens, head_dim] what `encode` uses for other tokens of the same layer."""
        return {}

    def calibrate_layers(self, layers: Iterable[tuple[LayerContext, mx.array]]) -> dict[int, State]:
        """`calibrate` for each layer of a model; a codec whose layers share what they learn overrides it.

        Each layer's x is in memory only while the iteration is at it: keep no more of it than is needed.
        """
        return {ctx.layer: self.calibrate(x, ctx) for ctx, x in layers}

    @abstractmethod
    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        """Codes x [..., tokens, head_dim]; 0 tokens are fine. A codec that `learns` is given a state.

        What is made of a token depends on that token and the state alone: a cache codes tokens as they come.
        """

    @abstractmethod
    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        """The reconstruction, float32 [..., tokens, head_dim]."""

    @abstractmethod
    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        """Bytes by formula for `vectors` KV heads of `tokens` tokens each; what a codec learned is not among them."""

    def relative_mse_theory(self, head_dim: int) -> float | None:
        """Expected ||x - decoded||**2 / ||x||**2 of what it codes, whatever the data; None if unknown."""
        return None

    def ip_variance_theory(self, head_dim: int) -> float | None:
        """Expected head_dim * (score - <q, x>)**2 / (||q||**2 ||x||**2) over q of random direction; None if unknown."""
        return self.relative_mse_theory(head_dim)

    def offset(self, enc: Encoded, ctx: LayerContext) -> mx.array | None:
        """What is subtracted before coding and added back, float32 [..., tokens or 1, head_dim]; None for nothing."""
        return None

    def scores(self, q: mx.array, enc: Encoded, ctx: LayerContext) -> mx.array:
        """Estimates of <q, key>: q [n_q_heads, queries, head_dim] to float32 [n_q_heads, queries, tokens].

        Without `ctx.scale`. Query head h reads KV head h // gqa_ratio.
        """
        keys = mx.repeat(self.decode(enc, ctx), ctx.gqa_ratio, axis=-3)
        return q.astype(ctx.arithmetic) @ keys.swapaxes(-1, -2)

    def quicker_decoded(self, queries: int, tokens: int, ctx: LayerContext) -> bool:
        """Whether `scores` of so many queries and tokens a KV head take longer than products with what `decode` gives.

        Only where both are the same but for rounding.
        """
        return type(self).scores is Codec.scores

    @property
    def scores_operation(self) -> str | None:
        """The kernel operation that `scores` calls; None where that is a product with what `decode` gives."""
        return None

    def attend_reader(self, enc: Encoded, ctx: LayerContext) -> Reader | None:
        """How fused attention reads these codes without decoding them; None where it can't, and decodes them."""
        return None

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


def check_bits(codec: type[Codec], bits: float) -> None:
    """Raises `InputError` unless the codec can be had with this many bits."""
    allowed = codec.bits_allowed
    if bits in allowed:
        return
    step = allowed[1] - allowed[0]
    even = allowed == tuple(allowed[0] + step * i for i in range(len(allowed)))
    text = f"{allowed[0]:g} to {allowed[-1]:g}" if even else ", ".join(f"{b:g}" for b in allowed)
    steps = "" if not even or step == 1 else f" in steps of {step:g}"
    raise InputError(f"{codec.name} takes {text} bits{steps}, not {bits:g}")


def check_outlier_bits(codec: type[Codec], bits: int) -> None:
    """Raises `InputError` unless outlier channels can have so many bits."""
    if bits not in codec.bits_allowed:
        raise InputError(f"outlier channels take one bit more, {bits}, which {codec.name} hasn't; give it fewer bits")


def keep_uncompressed(x: mx.array, ctx: LayerContext) -> mx.array:
    """X in the dtype of the model's own cache, or in its own where a finite element would overflow that."""
    try:
        return to_cache_dtype(x, ctx)
    except Unsupported:
        return x


def to_cache_dtype(x: mx.array, ctx: LayerContext) -> mx.array:
    """Casts x to the dtype of the model's own cache. Raises `Unsupported` if a finite element would overflow it."""
    dtype: mx.Dtype = getattr(mx, ctx.cache_dtype)
    cast = x.astype(dtype)
    if dtype == mx.float16 and x.dtype != mx.float16 and x.size and not mx.isfinite(cast).all().item():
        largest = mx.max(mx.abs(x)).item()
        raise Unsupported(f"an element of {largest:.6g} doesn't fit float16 (at most 65504)")
    return cast
