"""Plans bits for each layer's keys and values from a finished sweep, and writes the plan as a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    uniform: CompressionPlan
    """One codec for all that takes no more bytes, and of such the most."""
    above: CompressionPlan | None
    """One codec for all with the next more bits, if there is one: the plan lies between the two."""
    uniform_bytes: float


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
        """Of one layer's keys, values or both. Raises `InputError` for a layer that isn't compressed."""
        tensors: Sequence[Tensor] = TENSORS if part == "both" else (part,)
        total = 0
        for tensor in tensors:
            if (layer, tensor) not in self._contexts:
                raise InputError(f"the {tensor} of layer {layer} were swept, but the model's cache has none")
            ctx = self._contexts[layer, tensor]
            held = self._tokens if ctx.window is None else min(self._tokens, ctx.window)
            total += nominal_bytes(spec.build(tensor), ctx, held, self._sinks, self._recent, seen=self._tokens)
        return total

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

    Raises `InputError` for a budget that the swept bits can't keep.
    """
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
    uniform, above = _uniform(curves.codec, sizes, spent)
    pair = CodecPair(spec, spec)
    return Planned(
        plan=CompressionPlan(pair, layer_bits, sinks, recent),
        layer_bits=",".join(f"{layer}:{k:g}" + ("" if k == v else f"/{v:g}") for layer, (k, v) in layer_bits.items()),
        tokens=tokens,
        bytes=spent,
        bits_effective=8 * spent / sizes.elements,
        kl_predicted=curves.predicted(sum(choice.kl for choice in taken.values())),
        uniform=CompressionPlan(CodecPair(uniform, uniform), {}, sinks, recent),
        uniform_bytes=sizes.uniform(uniform),
        above=None if above is None else CompressionPlan(CodecPair(above, above), {}, sinks, recent),
    )


def _parts_for(curves: Curves, kl: float) -> float:
    """The sum of parts' divergences at which the whole model's is foretold to be `kl`."""
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


def _uniform(codec: CodecSpec, sizes: CacheBytes, most: float) -> tuple[CodecSpec, CodecSpec | None]:
    """The codec with one number of bits for all that takes at most so many bytes, and the next larger one."""
    found: dict[float, CodecSpec] = {}
    for bits in _UNIFORM_STEPS:
        spec = replace(codec, bits=bits)
        try:
            found[sizes.uniform(spec)] = spec
        except InputError:
            continue
    fitting, larger = ([size for size in found if (size <= most * _ALIKE) is fits] for fits in (True, False))
    if not fitting:
        raise InputError(f"no {codec.name} alike for all layers takes as little as the plan, to compare it with")
    return found[max(fitting)], found[min(larger)] if larger else None
