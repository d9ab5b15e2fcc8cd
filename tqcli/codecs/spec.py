"""Codecs as users write them: `name@bits[,key=value...]`, or `name@kbits/vbits` for keys and values apart."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, cast, get_args, get_type_hints

from tqcli.codecs.base import Center, Codec, registered_codecs
from tqcli.codecs.centring import Centred
from tqcli.codecs.context import Tensor
from tqcli.codecs.split import ChannelSplit
from tqcli.codecs.warm_up import WarmUp
from tqcli.errors import InputError

VALUES_DEFAULT = "turboquant-mse"
"""What codes values where the codec that was asked for codes keys alone."""
_OUTLIERS = "outliers"

_OFF_ON = {"false": False, "no": False, "0": False, "true": True, "yes": True, "1": True}


@dataclass(frozen=True)
class CodecSpec:
    """One codec by name, with its bits (None where it has no such choice) and its options as text."""

    name: str
    bits: float | None = None
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        bits = "" if self.bits is None else f"@{self.bits:g}"
        return self.name + bits + "".join(f",{key}={value}" for key, value in self.options)

    def with_bits(self, bits: float) -> CodecSpec:
        """The same codec and options at other bits."""
        return CodecSpec(self.name, bits, self.options)

    def build(self, tensor: Tensor) -> WarmUp:
        """The codec for keys or for values. Raises `InputError` for an unknown name, option or value."""
        cls = find_codec(self.name)
        if tensor not in cls.applies_to:
            raise InputError(f"{self.name} codes {' and '.join(cls.applies_to)}, not {tensor}; name another for them")
        options = dict(self.options)
        center = cast(Center | None, options.pop("center", None))
        outliers = options.pop(_OUTLIERS, None) if cls.splits_channels else None
        codec = cls(**_arguments(cls, self.bits, options))
        count = _convert(self.name, _OUTLIERS, outliers or "0", int)
        if count or codec.splits_by_itself:
            codec = ChannelSplit(codec, count)
        if center is None:
            center = cls.center_default if tensor == "keys" else "none"
        return WarmUp(codec if center == "none" else Centred(codec, center))


@dataclass(frozen=True)
class CodecPair:
    """What codes the keys and what codes the values."""

    keys: CodecSpec
    values: CodecSpec

    def __str__(self) -> str:
        k, v = self.keys, self.values
        if k == v:
            return str(k)
        if (k.name, k.options) == (v.name, v.options) and k.bits is not None:
            return str(k).replace(f"@{k.bits:g}", f"@{k.bits:g}/{v.bits:g}", 1)
        return f"{k} | {v}"

    def of(self, tensor: Tensor) -> CodecSpec:
        """The one for keys or for values."""
        return self.keys if tensor == "keys" else self.values


def parse_codec(text: str) -> CodecPair:
    """Reads `name`, `name@bits`, `name@kbits/vbits`, each with `,key=value...`; `KEYS | VALUES` gives two specs.

    Both are built once, so that a wrong name, bits or option is an `InputError` here and not half-way through a run.
    """
    key_text, separator, value_text = text.partition("|")
    if separator:
        for part in (key_text, value_text):
            if "/" in part.partition(",")[0]:
                raise InputError(f"{part.strip()!r} in {text!r} names bits for keys and values; name one number")
        keys, values = _parse_one(key_text.strip()), _parse_one(value_text.strip())
        named = values.values if values.values.name == values.keys.name else values.keys  # as written, not a stand-in
        pair = CodecPair(keys.keys, named)
    else:
        pair = _parse_one(text.strip())
    pair.keys.build("keys")
    pair.values.build("values")
    return pair


def find_codec(name: str) -> type[Codec]:
    """The codec class of that name, or an `InputError` with the nearest one."""
    known = registered_codecs()
    if name in known:
        return known[name]
    near = [other for other in known if name and other.startswith(name)]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    raise InputError(f"there is no codec {name!r}; {hint}")


def _parse_one(text: str) -> CodecPair:
    head, *option_texts = [part.strip() for part in text.split(",")]
    name, at, bits_text = head.partition("@")
    find_codec(name)
    options: list[tuple[str, str]] = []
    for option in option_texts:
        key, equals, value = option.partition("=")
        if not equals or not key or not value:
            raise InputError(f"{option!r} in {text!r} is not an option; write key=value")
        if key.strip() in dict(options):
            raise InputError(f"{text!r} names the option {key.strip()} twice")
        options.append((key.strip(), value.strip()))
    if not at:
        spec = CodecSpec(name, None, tuple(options))
        return CodecPair(spec, spec)
    bits = [_parse_bits(part, text) for part in bits_text.split("/")]
    if len(bits) > 2:
        raise InputError(f"{text!r} has more than two bit counts; write name@bits or name@kbits/vbits")
    keys = CodecSpec(name, bits[0], tuple(options))
    if "values" in find_codec(name).applies_to:
        return CodecPair(keys, CodecSpec(name, bits[-1], tuple(options)))
    return CodecPair(keys, values_beside(keys, bits[1] if len(bits) == 2 else None))


def values_beside(keys: CodecSpec, bits: float | None = None) -> CodecSpec:
    """The codec of the values where that of the keys codes keys alone: turboquant-mse at as many bits, at least 2."""
    return CodecSpec(VALUES_DEFAULT, max(2, math.ceil(keys.bits or 2)) if bits is None else bits)


def _parse_bits(part: str, text: str) -> float:
    try:
        bits = float(part)
    except ValueError:
        bits = math.nan
    if not math.isfinite(bits):
        raise InputError(f"{part!r} in {text!r} is not a number of bits; write for example turboquant-mse@4")
    return bits


def _arguments(cls: type[Codec], bits: float | None, options: Mapping[str, str]) -> dict[str, Any]:
    """Constructor arguments from text, by the types of the codec's fields."""
    hints = get_type_hints(cls)
    known = {f.name: f for f in fields(cls) if f.name != "bits"}  # type: ignore[arg-type]
    names = sorted([*known, "center", *([_OUTLIERS] if cls.splits_channels else [])])
    arguments: dict[str, Any] = {}
    if cls.bits_allowed:
        if bits is None:
            example = 4 if 4 in cls.bits_allowed else cls.bits_allowed[0]
            raise InputError(f"{cls.name} needs a number of bits; write {cls.name}@{example:g}")
        arguments["bits"] = bits
    elif bits is not None:
        raise InputError(f"{cls.name} has no choice of bits; write {cls.name} instead of {cls.name}@{bits:g}")
    for key, value in options.items():
        if key not in known:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(names)}"
            raise InputError(f"{cls.name} has no option {key!r}; {hint}")
        arguments[key] = _convert(cls.name, key, value, hints[key])
    missing = [f.name for f in known.values() if f.default is MISSING and f.name not in arguments]
    if missing:
        raise InputError(f"{cls.name} needs the option {missing[0]}; write {cls.name}@...,{missing[0]}=VALUE")
    return arguments


def _convert(codec: str, key: str, value: str, hint: Any) -> Any:
    try:
        if hint is bool:
            return _OFF_ON[value.lower()]
        if hint in (int, float):
            return hint(value)
    except (KeyError, ValueError):
        kind = {bool: "true or false", int: "a whole number", float: "a number"}[hint]
        raise InputError(f"{codec}'s option {key} must be {kind}, not {value!r}") from None
    choices = get_args(hint)
    if choices and value not in choices:
        raise InputError(f"{codec}'s option {key} must be one of {', '.join(map(str, choices))}, not {value!r}")
    return value
