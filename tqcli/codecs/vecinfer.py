"""vecinfer: product vector quantisation with trained codebooks, of keys that were smoothed and rotated before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args

import mlx.core as mx
import numpy as np

from tqcli.codecs.base import Center, Codec, Encoded, State, Unsupported, check_bits, register
from tqcli.codecs.context import LayerContext
from tqcli.codecs.kmeans import kmeans
from tqcli.codecs.rotation import (
    RotationKind,
    check_rotation,
    rotation_matrix,
    rotation_remarks,
    shared_rotation,
    take_rotation,
)
from tqcli.errors import InputError
from tqcli.kernels import pack_bits, unpack_bits, vector_dequantise, vector_quantise, vector_scores, words_per_row
from tqcli.kernels.attend import Reader, Vectors

Scope = Literal["head", "layer", "model"]
_CODEBOOK, _SMOOTH = "codebook", "smooth"
_SHAPES = {
    0.5: (16, 8),
    0.75: (16, 12),
    1.0: (8, 8),
    1.25: (8, 10),
    1.5: (8, 12),
    2.0: (4, 8),
    2.5: (4, 10),
    3.0: (4, 12),
    4.0: (2, 8),
    5.0: (2, 10),
    6.0: (2, 12),
}
"""sub_dim and code_bits by bits an element."""
_CODE_BITS_AT_MOST = 12
_QUICK_CODE_BITS = 10
_SAMPLES_AT_LEAST, _SAMPLES_PER_ENTRY = 1 << 16, 64
_BF16_MAX = 3.3895313892515355e38
_FLOAT32_MAX = 3.4028234663852886e38


@register
@dataclass(frozen=True)
class VecInfer(Codec):
    """VecInfer (arXiv 2510.06175): each sub-vector of `sub_dim` elements to the nearest of 2**code_bits entries.

    Keys are coded as k' = R (k / s), with s the square root of the largest magnitude of each channel of each KV head
    in a calibration text and R an orthogonal rotation; a query becomes q' = R (q * s), so that <q', k'> = <q, k>.
    Values are coded as they are. Stored: codes uint32 [..., tokens, words], exactly `code_bits` bits a sub-vector and
    rows padded to whole words; and once, in bfloat16, the codebook and s.
    """

    name: ClassVar[str] = "vecinfer"
    summary: ClassVar[str] = "product vector quantiser with calibrated codebooks (VecInfer, arXiv 2510.06175)"
    bits_allowed: ClassVar[tuple[float, ...]] = tuple(_SHAPES)
    center_default: ClassVar[Center] = "rope"
    needs_calibration: ClassVar[bool] = True

    bits: float
    """Bits an element: code_bits / sub_dim."""
    sub_dim: int = 0
    """Elements of a sub-vector; 0 for what bits ask for."""
    code_bits: int = 0
    """Bits of a code, 1 to 12, so that a codebook has 2**code_bits entries; 0 for what bits ask for."""
    scope: Scope = "layer"
    """Whose sub-vectors share a codebook: those of one KV head, of a layer, or of all layers."""
    smooth: bool = True
    """Whether keys are divided by s."""
    rotation: RotationKind = "hadamard"
    """Of keys."""
    seed: int = 0
    """Of the rotation, and of what k-means starts from."""
    iterations: int = 60
    """Of k-means, at most."""

    def __post_init__(self) -> None:
        sub_dim, code_bits = self._shape()
        object.__setattr__(self, "sub_dim", sub_dim)
        object.__setattr__(self, "code_bits", code_bits)
        object.__setattr__(self, "bits", code_bits / sub_dim)
        if self.scope not in get_args(Scope):
            raise InputError(f"scope must be one of {', '.join(get_args(Scope))}, not {self.scope!r}")
        check_rotation(self.rotation, self.seed)
        if self.iterations < 1:
            raise InputError(f"iterations must be 1 or more, not {self.iterations}")

    def unsupported(self, ctx: LayerContext) -> str | None:
        if ctx.head_dim % self.sub_dim:
            return f"head_dim {ctx.head_dim} is not a multiple of vecinfer's sub_dim of {self.sub_dim}"
        return None

    @property
    def patience(self) -> str | None:
        if self.code_bits <= _QUICK_CODE_BITS:
            return None
        return f"codebooks of {self.code_bits} bits take seconds to a minute a tensor; fewer iterations are quicker"

    def remarks(self, ctx: LayerContext) -> list[str]:
        return rotation_remarks(self.rotation, ctx.head_dim) if ctx.tensor == "keys" else []

    def learns(self, ctx: LayerContext) -> tuple[str, ...]:
        return (_CODEBOOK, _SMOOTH) if self._smooths(ctx) else (_CODEBOOK,)

    def learned_bytes(self, vectors: int, ctx: LayerContext) -> int:
        codebooks = vectors if self.scope == "head" else 1
        elements = codebooks * (1 << self.code_bits) * self.sub_dim
        return (elements + self._smooths(ctx) * vectors * ctx.head_dim) * mx.bfloat16.size

    def shared_name(self, name: str, ctx: LayerContext) -> str:
        if name == _CODEBOOK and self.scope == "model":
            return f"{ctx.tensor}.{_CODEBOOK}.d{self.sub_dim}.b{self.code_bits}"
        return super().shared_name(name, ctx)

    def calibrate(self, x: mx.array, ctx: LayerContext) -> State:
        """The codebook, bfloat16 [entries, sub_dim], or [heads, entries, sub_dim] for scope `head`, and for keys s.

        s is `smooth`, bfloat16 [heads, 1, head_dim]; 1 for a channel of zeros.
        """
        return self.calibrate_layers([(ctx, x)])[ctx.layer]

    def calibrate_layers(self, layers: Iterable[tuple[LayerContext, mx.array]]) -> dict[int, State]:
        states: dict[int, dict[str, mx.array]] = {}
        pool = _Pool(self)
        for ctx, x in layers:
            state = {_SMOOTH: _largest_roots(x)} if self._smooths(ctx) else {}
            y = self._transformed(x, ctx, state).reshape(x.shape[0], x[0].size // self.sub_dim, self.sub_dim)
            if self.scope == "head":
                state[_CODEBOOK] = mx.stack([_Pool(self).add(head, ctx.layer).codebook() for head in y])
            elif self.scope == "layer":
                state[_CODEBOOK] = _Pool(self).add(y, ctx.layer).codebook()
            else:
                pool.add(y, ctx.layer)
            states[ctx.layer] = state
        if self.scope == "model" and states:
            codebook = pool.codebook()
            states = {layer: state | {_CODEBOOK: codebook} for layer, state in states.items()}
        return dict(states)

    def encode(self, x: mx.array, ctx: LayerContext, state: State | None = None) -> Encoded:
        if state is None:
            raise InputError(f"{self.name} learns from another text: name a capture of one with --calibration")
        *lead, tokens, head_dim = x.shape
        parts = head_dim // self.sub_dim
        y = self._transformed(x, ctx, state).reshape(*lead, tokens * parts, self.sub_dim)
        codes = vector_quantise(y, state[_CODEBOOK]).reshape(*lead, tokens, parts)
        return Encoded({"codes": pack_bits(codes, self.code_bits)}, tokens, self._shared(ctx), state)

    def decode(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        y = self._entries(enc, ctx)
        if ctx.tensor == "values":
            return y
        if self.rotation != "none":
            y = _product(y, self._rotation(enc.shared, ctx))
        return _clip(y * enc.state[_SMOOTH].astype(ctx.arithmetic)) if self._smooths(ctx) else y

    def scores(self, q: mx.array, enc: Encoded, ctx: LayerContext) -> mx.array:
        """<q', k'>: queries are turned to where the keys were coded, and keys are not turned back."""
        q = q.astype(ctx.arithmetic)
        if self._smooths(ctx):
            q = q * mx.repeat(enc.state[_SMOOTH].astype(ctx.arithmetic), ctx.gqa_ratio, axis=-3)
        if self.rotation != "none":
            q = q @ self._rotation(enc.shared, ctx).T
        return vector_scores(q, enc.arrays["codes"], enc.state[_CODEBOOK], self.code_bits)

    def attend_reader(self, enc: Encoded, ctx: LayerContext) -> Reader | None:
        packed = Vectors(ctx.head_dim, self.code_bits, self.sub_dim, enc.arrays["codes"], enc.state[_CODEBOOK])
        turned = ctx.tensor == "keys" and self.rotation != "none"
        matrix = self._rotation(enc.shared, ctx) if turned else None
        return Reader(packed, matrix=matrix, gains=enc.state[_SMOOTH] if self._smooths(ctx) else None)

    def quicker_decoded(self, queries: int, tokens: int, ctx: LayerContext) -> bool:
        return queries > tokens  # fewer keys to turn back than queries to turn

    @property
    def scores_operation(self) -> str | None:
        return "vector_scores"

    def bytes_nominal(self, vectors: int, tokens: int, ctx: LayerContext) -> int:
        return vectors * tokens * 4 * words_per_row(ctx.head_dim // self.sub_dim, self.code_bits)

    def _shape(self) -> tuple[int, int]:
        """sub_dim and code_bits, from bits where they aren't given. Raises `InputError` unless all three agree."""
        sub_dim, code_bits = self.sub_dim, self.code_bits
        if sub_dim < 0 or code_bits < 0 or code_bits > _CODE_BITS_AT_MOST:
            name, value = ("sub_dim", sub_dim) if sub_dim < 0 else ("code_bits", code_bits)
            allowed = "1 or more" if sub_dim < 0 else f"1 to {_CODE_BITS_AT_MOST}"
            raise InputError(f"vecinfer's {name} must be {allowed}, or 0 for what bits ask for, not {value}")
        if not sub_dim and not code_bits:
            check_bits(type(self), self.bits)
            return _SHAPES[self.bits]
        options = {"sub_dim": sub_dim, "code_bits": code_bits}
        given = " and ".join(f"{name}={value}" for name, value in options.items() if value)
        if self.bits > 0:
            sub_dim = sub_dim or round(code_bits / self.bits)
            code_bits = code_bits or round(self.bits * sub_dim)
        # Bits are written with six digits, so that a third is not exactly one.
        if not 1 <= code_bits <= _CODE_BITS_AT_MOST or not sub_dim or abs(code_bits / sub_dim - self.bits) > 1e-5:
            raise InputError(
                f"vecinfer@{self.bits:g} can't be had with {given}: bits are code_bits / sub_dim, "
                f"code_bits 1 to {_CODE_BITS_AT_MOST}"
            )
        return sub_dim, code_bits

    def _smooths(self, ctx: LayerContext) -> bool:
        return self.smooth and ctx.tensor == "keys"

    def _shared(self, ctx: LayerContext) -> dict[str, mx.array]:
        return dict(_rotation_arrays(self.rotation, ctx.head_dim, self.seed)) if ctx.tensor == "keys" else {}

    def _rotation(self, shared: dict[str, mx.array], ctx: LayerContext) -> mx.array:
        arrays = take_rotation(shared, self.name, self.rotation, ctx.head_dim, self.seed)
        return rotation_matrix(arrays, ctx.head_dim).astype(ctx.arithmetic)

    def _transformed(self, x: mx.array, ctx: LayerContext, state: State) -> mx.array:
        """What is coded in the place of x: R (x / s) for keys, x itself for values; float32."""
        y = x.astype(ctx.arithmetic)
        if not mx.isfinite(y).all().item():  # a codebook's entries are finite: the decoded tensor wouldn't show it
            raise Unsupported(f"layer {ctx.layer}'s {ctx.tensor} hold NaN or infinity")
        if self._smooths(ctx):
            y = _clip(y / state[_SMOOTH].astype(ctx.arithmetic))
        if ctx.tensor == "keys" and self.rotation != "none":
            y = _product(y, self._rotation(self._shared(ctx), ctx).T)
        return y

    def _entries(self, enc: Encoded, ctx: LayerContext) -> mx.array:
        """The coded vectors, not turned back: float32 [..., tokens, head_dim]."""
        codes = unpack_bits(enc.arrays["codes"], self.code_bits, ctx.head_dim // self.sub_dim)
        flat = codes.reshape(*codes.shape[:-2], codes.shape[-2] * codes.shape[-1])
        y = vector_dequantise(flat, enc.state[_CODEBOOK])
        return y.reshape(*codes.shape[:-1], ctx.head_dim).astype(ctx.arithmetic)


class _Pool:
    """Sub-vectors that a codebook is fitted to: a uniform sample of bounded size of all that are added."""

    def __init__(self, codec: VecInfer) -> None:
        self._codec = codec
        self._at_most = max(_SAMPLES_AT_LEAST, _SAMPLES_PER_ENTRY * 2**codec.code_bits)
        self._kept: np.ndarray[Any, np.dtype[np.float32]] = np.zeros((0, codec.sub_dim), dtype=np.float32)
        self._lots: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(0)

    def add(self, y: mx.array, layer: int) -> _Pool:
        """Takes up sub-vectors y [..., sub_dim]. Each draws a lot, and those of the lowest lots stay."""
        new = np.array(y).reshape(-1, self._codec.sub_dim)
        lots = np.concatenate([self._lots, np.random.default_rng([self._codec.seed, layer]).random(len(new))])
        kept = np.concatenate([self._kept, new])
        if len(kept) > self._at_most:
            lowest = np.sort(np.argpartition(lots, self._at_most)[: self._at_most])
            kept, lots = kept[lowest], lots[lowest]
        self._kept, self._lots = kept, lots
        return self

    def codebook(self) -> mx.array:
        """The codebook fitted to what was kept, bfloat16 [entries, sub_dim]."""
        codec = self._codec
        fitted = kmeans(mx.array(self._kept), 2**codec.code_bits, codec.iterations, codec.seed)
        return mx.clip(fitted, -_BF16_MAX, _BF16_MAX).astype(mx.bfloat16)


@lru_cache(maxsize=64)
def _rotation_arrays(kind: RotationKind, head_dim: int, seed: int) -> dict[str, mx.array]:
    return shared_rotation(VecInfer.name, kind, head_dim, seed)


def _largest_roots(x: mx.array) -> mx.array:
    """The square root of the largest magnitude of each channel over tokens, bfloat16 [heads, 1, head_dim]; never 0."""
    if x.shape[-2] == 0:
        return mx.ones((x.shape[0], 1, x.shape[-1]), dtype=mx.bfloat16)
    largest = mx.max(mx.abs(x.astype(mx.float32)), axis=-2, keepdims=True)
    return mx.sqrt(mx.where(largest == 0, 1, largest)).astype(mx.bfloat16)


def _product(x: mx.array, matrix: mx.array) -> mx.array:
    """Product with an orthonormal matrix, of rows of any finite size; what would overflow float32 is clipped."""
    if x.size == 0:
        return x
    peak = mx.max(mx.abs(x), axis=-1, keepdims=True)
    return _clip((x / mx.where(peak == 0, 1, peak)) @ matrix * peak)


def _clip(x: mx.array) -> mx.array:
    return mx.clip(x, -_FLOAT32_MAX, _FLOAT32_MAX)
