"""What a finished sweep tells of single layers: their divergence over bits, and how divergences add up."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeGuard

from tqcli.codecs.spec import CodecPair, CodecSpec, parse_codec
from tqcli.errors import InputError
from tqcli.report.schema import CodecResult, Result

Part = Literal["keys", "values", "both"]
METRIC = "kl_mean"
_UNCODED = "identity"


@dataclass(frozen=True)
class Curves:
    """Of one codec at several bits."""

    codec: CodecSpec
    """At any of its bits."""
    kl: Mapping[tuple[int, Part], Mapping[float, float]]
    """By layer and tensor, then bits: mean KL divergence in nats with that alone compressed."""
    whole: Mapping[float, float]
    """By bits: mean KL divergence with everything compressed, where that was measured."""

    def predicted(self, parts: float) -> float:
        """The divergence of the whole model, from the sum of its parts' divergences.

        Parts don't quite add up; how far they don't is read off the uniform codecs of the sweep, on logarithmic axes.
        """
        known = sorted((self._sum(bits), kl) for bits, kl in self.whole.items() if self._is_whole(bits) and kl > 0)
        if not known or parts <= 0:
            return parts
        if parts <= known[0][0]:
            return parts * known[0][1] / known[0][0]
        if parts >= known[-1][0]:
            return parts * known[-1][1] / known[-1][0]
        (x1, y1), (x2, y2) = next((a, b) for a, b in pairwise(known) if a[0] <= parts <= b[0])
        share = math.log(parts / x1) / math.log(x2 / x1)
        return float(y1 * (y2 / y1) ** share)

    def _sum(self, bits: float) -> float:
        return sum(curve[bits] for curve in self.kl.values())

    def _is_whole(self, bits: float) -> bool:
        return all(bits in curve for curve in self.kl.values()) and self._sum(bits) > 0


def read_curves(result: Result) -> Curves:
    """The curves of a perplexity result's layers.

    The sweep has, at several bits, one codec for keys beside uncompressed values and the other way round
    (`turboquant-mse@3 | identity`, `identity | turboquant-mse@3`), or for both alike, each with `--per-layer`.
    Raises `InputError` where there is no such thing, or codecs differ in more than bits.
    """
    kl: dict[tuple[int, Part], dict[float, float]] = defaultdict(dict)
    whole: dict[CodecSpec, dict[float, float]] = defaultdict(dict)
    specs: set[CodecSpec] = set()
    for codec in result.codecs:
        found = _part(parse_codec(codec.codec))
        if found is None:
            continue
        part, spec = found
        total = codec.total.get(METRIC)
        if part == "both" and spec.bits is not None and total is not None and _is_number(total.value):
            whole[replace(spec, bits=None)][spec.bits] = total.value
        if codec.layers and spec.bits is not None:
            specs.add(replace(spec, bits=None))
            _add_layers(kl, codec, part, spec.bits)
    if not kl:
        raise InputError(
            "the run has no divergence of single layers; measure perplexity with per_layer and codecs such as "
            "'turboquant-mse@3 | identity' and 'identity | turboquant-mse@3' at several bits"
        )
    if len(specs) > 1:
        raise InputError(f"the run sweeps several codecs, {' and '.join(sorted(map(str, specs)))}; keep one")
    apart = {key: curve for key, curve in kl.items() if key[1] != "both"}
    chosen = _complete(apart or kl)
    swept = specs.pop()
    return Curves(swept, chosen, whole[swept])


def _part(pair: CodecPair) -> tuple[Part, CodecSpec] | None:
    """What a pair compresses, and with what; None for two codecs, or other bits for values."""
    if pair.keys == pair.values:
        return None if pair.keys.bits is None else ("both", pair.keys)
    if pair.values.name == _UNCODED:
        return "keys", pair.keys
    return ("values", pair.values) if pair.keys.name == _UNCODED else None


def _add_layers(kl: dict[tuple[int, Part], dict[float, float]], codec: CodecResult, part: Part, bits: float) -> None:
    for row in codec.layers:
        metric, curve = row.metrics.get(METRIC), kl[row.layer, part]  # known, even if it has no finite divergence
        if metric is not None and _is_number(metric.value):
            curve[bits] = metric.value


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _complete(kl: Mapping[tuple[int, Part], dict[float, float]]) -> dict[tuple[int, Part], dict[float, float]]:
    """Raises `InputError` for a layer of which only keys, or only values, were swept, or too few bits."""
    layers: dict[int, set[Part]] = defaultdict(set)
    for (layer, part), curve in kl.items():
        layers[layer].add(part)
        if not curve:
            of = f"layer {layer}" if part == "both" else f"the {part} of layer {layer}"
            raise InputError(f"the divergence of {of} is infinite at all bits that were swept; sweep more bits")
        if len(curve) < 2:
            raise InputError(f"layer {layer} was swept at {next(iter(curve)):g} bits alone; add other bits")
    every: Sequence[set[Part]] = list(layers.values())
    for layer, parts in layers.items():
        if parts != set().union(*every):
            missing = sorted(set().union(*every) - parts)
            raise InputError(f"the {missing[0]} of layer {layer} were not swept; add that codec to the sweep")
    return dict(kl)
