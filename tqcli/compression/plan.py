"""Which codec codes which tensor of which layer, and which tokens stay uncompressed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tqcli.codecs.context import Tensor
from tqcli.codecs.spec import VALUES_DEFAULT, CodecPair, CodecSpec, find_codec, values_beside
from tqcli.codecs.warm_up import WarmUp
from tqcli.errors import InputError

_LAYER = re.compile("[0-9]{1,6}")
_BITS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3})?")
LayerBits = Mapping[int, tuple[float, float | None]]
"""Bits of keys and of values, by layer; None for values that follow the keys."""


@dataclass(frozen=True)
class CompressionPlan:
    """A codec for keys and one for values, other bits for some layers, and the tokens that stay uncompressed."""

    codec: CodecPair
    layer_bits: LayerBits = field(default_factory=dict)
    sinks: int = 0
    """Leading tokens kept in the cache's dtype."""
    recent: int = 0
    """Most recent tokens kept in the cache's dtype."""

    def __post_init__(self) -> None:
        for name in ("sinks", "recent"):
            if getattr(self, name) < 0:
                raise InputError(f"--{name} must be 0 or more, not {getattr(self, name)}")

    @property
    def values_stand_in(self) -> bool:
        """Whether values have another codec because that of the keys codes keys alone."""
        return "values" not in find_codec(self.codec.keys.name).applies_to and self.codec.values.name == VALUES_DEFAULT

    def spec(self, layer: int, tensor: Tensor) -> CodecSpec:
        """The codec of one tensor as text."""
        spec = self.codec.of(tensor)
        if layer not in self.layer_bits:
            return spec
        if spec.bits is None:
            raise InputError(f"--layer-bits doesn't go with {spec.name}, which has no choice of bits")
        keys, values = self.layer_bits[layer]
        if tensor == "keys" or values is None:
            stands_in = tensor == "values" and self.values_stand_in
            return values_beside(self.codec.keys.with_bits(keys)) if stands_in else spec.with_bits(keys)
        return spec.with_bits(values)

    def codec_of(self, layer: int, tensor: Tensor) -> WarmUp:
        """The codec of one tensor, built once."""
        key = (self.spec(layer, tensor), tensor)
        if key not in self._built:
            self._built[key] = key[0].build(tensor)
        return self._built[key]

    def check_layers(self, layers: list[int]) -> None:
        """Raises `InputError` if `layer_bits` names a layer that isn't among these."""
        for layer in self.layer_bits:
            if layer not in layers:
                raise InputError(f"--layer-bits names layer {layer}; there are {_ranges(layers)}")
            self.codec_of(layer, "keys")
            self.codec_of(layer, "values")

    @cached_property
    def _built(self) -> dict[tuple[CodecSpec, Tensor], WarmUp]:
        return {}


def parse_layer_bits(text: str) -> dict[int, tuple[float, float | None]]:
    """Reads `layer:bits` or `layer:kbits/vbits`, separated by commas. Raises `InputError` naming what is wrong."""
    result: dict[int, tuple[float, float | None]] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        layer, colon, bits = part.partition(":")
        numbers = bits.split("/")
        if not colon or not _LAYER.fullmatch(layer) or len(numbers) > 2 or not all(map(_BITS.fullmatch, numbers)):
            raise InputError(f"{part!r} in --layer-bits is not layer:bits or layer:kbits/vbits, for example 0:4,29:4/8")
        if int(layer) in result:
            raise InputError(f"--layer-bits names layer {layer} twice")
        result[int(layer)] = (float(numbers[0]), float(numbers[1]) if len(numbers) == 2 else None)
    return result


def _ranges(layers: list[int]) -> str:
    if layers == list(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]} to {layers[-1]}"
    return "layers " + ", ".join(map(str, layers))
