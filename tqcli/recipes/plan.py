"""Plans bits for each layer's keys and values from a finished sweep, and writes the plan as a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tqcli.codecs.context import LayerContext, Tensor
from tqcli.codecs.spec import CodecPair, CodecSpec
from tqcli.compression.plan import CompressionPlan
from tqcli.compression.tensor import nominal_bytes
from tqcli.errors import InputError
from tqcli.evaluation.coder import TENSORS
from tqcli.recipes.allocate import Choice, allocate
from tqcli.recipes.curves import Curves, Part

_ALIKE = 1.01
"""Bytes that are so many times as much or less count as no more."""
_LARGEST_KL = 1e6
"""Divergences that are larger are kept by anything."""
_UNIFORM_STEPS = [n / 2 for n in range(2, 17)]
"""Bits that a uniform codec may have."""


@dataclass(frozen=True)
class Budget:
    """What a plan must keep; one of the three."""

    bits: float | None = None
    """Bits an element, every byte counted."""
    bytes: float | None = None
    """Of the whole cache."""
    kl: float | None = None
    """Mean KL divergence of the whole model, in nats."""


@dataclass(frozen=True)
class Planned:
    """Bits for each layer, what they take, and what they are foretold to cost."""

    plan: CompressionPlan
    layer_bits: str
    """As on the command line."""
    tokens: int
    bytes: float
    """Of the whole cache of so many tokens, by formula."""
    bits_effective: float
    kl_predicted: float
    uniform: CompressionPlan | None
    """One codec for all that takes no more bytes, and of such the most; another one than the plan, if there is one."""
    above: CompressionPlan | None
    """One codec for all with the next more bits, if there is one: the plan lies between the two."""

    @property
    def is_uniform(self) -> bool:
        """Whether all layers have the same bits."""
        return not self.plan.layer_bits


class CacheBytes:
    """Bytes by formula of a model's cache, tensor by tensor."""

    def __init__(self, contexts: Mapping[tuple[int, Tensor], LayerContext], tokens: int, sinks: int, recent: int):
        self._contexts, self._tokens, self._sinks, self._recent = contexts, tokens, sinks, recent

    @classmethod
    def of_model(cls, model: Any, spec: CodecSpec, tokens: int, sinks: int, recent: int, dtype: str) -> CacheBytes:
        """For a model as mlx-lm has it. Raises `InputError` if the codec compresses nothing of it."""
        from tqcli.cache import compress_cache

        made = compress_cache(model, CompressionPlan(CodecPair(spec, spec), {}, sinks, recent), cache_dtype=dtype)
        contexts: dict[tuple[int, Tensor], LayerContext] = {}
        for layer, of in made.compressed.items():
            contexts |= {(layer, "keys"): of.keys.ctx, (layer, "values"): of.values.ctx}
        return cls(contexts, tokens, sinks, recent)

    def of(self, spec: CodecSpec, layer: int, part: Part) -> float:
        """Of one layer's keys, values or both."""
        tensors: Sequence[Tensor] = TENSORS if part == "both" else (part,)
        total = 0
        for tensor in tensors:
            ctx = self._contexts[layer, tensor]
            held = self._tokens if ctx.window is None else min(self._tokens, ctx.window)
            total += nominal_bytes(spec.build(tensor), ctx, held, self._sinks, self._recent, seen=self._tokens)
        return total

    def check_swept(self, parts: Iterable[tuple[int, Part]]) -> None:
        """Raises `InputError` where the swept tensors aren't those that the model's cache has compressed."""
        swept = {(layer, tensor) for layer, part in parts for tensor in (TENSORS if part == "both" else (part,))}
        for layer, tensor in sorted(swept ^ set(self._contexts)):
            what = f"the {tensor} of layer {layer}"
            if (layer, tensor) in swept:
                raise InputError(f"{what} were swept, but the model's cache has none; name the model that was swept")
            raise InputError(f"{what} are compressed, but were not swept; sweep every layer, keys and values")

    def uniform(self, spec: CodecSpec) -> float:
        """Of the whole cache with one codec."""
        return sum(self.of(spec, layer, tensor) for layer, tensor in self._contexts)

    @property
    def elements(self) -> int:
        """Of the whole cache."""
        return sum(
            (self._tokens if ctx.window is None else min(self._tokens, ctx.window)) * ctx.n_kv_heads * ctx.head_dim
            for ctx in self._contexts.values()
        )


def plan_bits(curves: Curves, sizes: CacheBytes, budget: Budget, tokens: int, sinks: int, recent: int) -> Planned:
    """The allocation of least predicted divergence within the budget, or of fewest bytes within a divergence.

    Raises `InputError` for a budget that the swept bits can't keep, and for layers that were not swept.
    """
    sizes.check_swept(curves.kl)
    choices = {
        (layer, part): [
            Choice(bits, sizes.of(curves.codec.with_bits(bits), layer, part), kl) for bits, kl in curve.items()
        ]
        for (layer, part), curve in curves.kl.items()
    }
    most = budget.bytes if budget.bits is None else budget.bits * sizes.elements / 8
    try:
        if budget.kl is None:
            assert most is not None, "a budget keeps something"
            taken = allocate(choices, byte_budget=most)
        else:
            taken = allocate(choices, kl_budget=_parts_for(curves, budget.kl))
    except ValueError as e:
        raise InputError(f"no plan keeps that: {e}; sweep other bits, or allow more") from None
    spent = sum(choice.bytes for choice in taken.values())
    base, layer_bits = _as_layer_bits(taken)
    spec = curves.codec.with_bits(base)
    uniform, above = _beside(curves.codec, sizes, spent, None if layer_bits else spec)

    def alike(spec: CodecSpec | None) -> CompressionPlan | None:
        return None if spec is None else CompressionPlan(CodecPair(spec, spec), {}, sinks, recent)

    return Planned(
        plan=CompressionPlan(CodecPair(spec, spec), layer_bits, sinks, recent),
        layer_bits=",".join(f"{layer}:{k:g}" + ("" if k == v else f"/{v:g}") for layer, (k, v) in layer_bits.items()),
        tokens=tokens,
        bytes=spent,
        bits_effective=8 * spent / sizes.elements,
        kl_predicted=curves.predicted(sum(choice.kl for choice in taken.values())),
        uniform=alike(uniform),
        above=alike(above),
    )


def _parts_for(curves: Curves, kl: float) -> float:
    """The sum of parts' divergences at which the whole model's is foretold to be `kl`."""
    kl = min(kl, _LARGEST_KL)
    low, high = 0.0, max(kl, 1e-12)
    while curves.predicted(high) < kl:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if curves.predicted(middle) < kl else (low, middle)
    return low


def _as_layer_bits(taken: Mapping[tuple[int, Part], Choice]) -> tuple[float, dict[int, tuple[float, float]]]:
    """The commonest bits, and each layer's keys' and values' where they are others."""
    layers: dict[int, dict[Tensor, float]] = {}
    for (layer, part), choice in taken.items():
        for tensor in TENSORS if part == "both" else (part,):
            layers.setdefault(layer, {})[tensor] = choice.bits
    every = [bits for of in layers.values() for bits in of.values()]
    base = max(sorted(set(every)), key=every.count)
    pairs = {layer: (of["keys"], of["values"]) for layer, of in sorted(layers.items())}
    return base, {layer: pair for layer, pair in pairs.items() if pair != (base, base)}


def _beside(
    codec: CodecSpec, sizes: CacheBytes, most: float, but: CodecSpec | None
) -> tuple[CodecSpec | None, CodecSpec | None]:
    """The codec with one number of bits for all that takes at most so many bytes, and the next larger one.

    Neither is `but`.
    """
    found: dict[float, CodecSpec] = {}
    for bits in _UNIFORM_STEPS:
        spec = replace(codec, bits=bits)
        if spec == but:
            continue
        try:
            found[sizes.uniform(spec)] = spec
        except InputError:
            continue
    fitting, larger = ([size for size in found if (size <= most * _ALIKE) is fits] for fits in (True, False))
    return found[max(fitting)] if fitting else None, found[min(larger)] if larger else None
