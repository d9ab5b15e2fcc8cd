"""The codecs of a recipe: every combination of the bits and options that its entries list."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from math import prod

from tqcli.codecs.spec import CodecPair, parse_codec
from tqcli.compression.plan import CompressionPlan, parse_layer_bits
from tqcli.errors import InputError
from tqcli.recipes.schema import CodecEntry, Gate, Recipe, Scalar

BASELINE = "baseline"
"""What a gate's `against` calls the stored run; no codec has this name."""
FLOORS = ("identity", "fp16")
"""Codecs that a perplexity run with `rechunk` adds, as floors of noise, where the recipe doesn't name them."""
_RESERVED = ("uncompressed", *FLOORS)
"""What reports call things that code nothing."""
_MOST = 1000
"""Codecs of a recipe."""
_BITS = re.compile(r"[0-9.]+(/[0-9.]+)?")
_LONGEST_LAYERS = 32
_LONGEST_NAME = 80


@dataclass(frozen=True)
class StudyCodec:
    """One codec of a study."""

    name: str
    """What results and gates call it."""
    plan: CompressionPlan
    layer_bits: str
    """Those of the plan as on the command line, layers in order; empty for none."""
    per_layer: bool | None = None
    """Whether perplexity also compresses one layer at a time; as the measure says if None."""
    predicted: Mapping[str, float] = field(default_factory=dict)
    """Metrics that were foretold."""


def expand(recipe: Recipe) -> list[StudyCodec]:
    """All codecs in the order written; within an entry the last option changes fastest, and bits slowest.

    Raises `InputError` for a codec that can't be built, for two of the same name, and for more than a study can have.
    """
    codecs: list[StudyCodec] = []
    names: set[str] = set()
    for index in range(len(recipe.codecs)):
        try:
            codecs += unlike(expand_entry(recipe, index), names)
        except InputError as e:
            raise InputError(f"codecs.{index}: {e}") from e
    return codecs


def expand_entry(recipe: Recipe, index: int) -> list[StudyCodec]:
    """The codecs of one entry. Raises `InputError` for what can't be built; it names a value, but not the entry."""
    entry = recipe.codecs[index]
    entry = CodecEntry(codec=entry) if isinstance(entry, str) else entry
    pairs = [parse_codec(text) for text in _texts(entry)]
    if entry.name is not None and len(pairs) > 1:
        raise InputError(
            f"name {entry.name!r} stands for {len(pairs)} codecs; leave it out, or write an entry for each"
        )
    sinks = recipe.sinks if entry.sinks is None else entry.sinks
    recent = recipe.recent if entry.recent is None else entry.recent
    own_layers, usual_layers = _layer_bits(entry.layer_bits), _layer_bits(recipe.layer_bits)
    made: list[StudyCodec] = []
    names: set[str] = set()
    for pair in pairs:
        layers = own_layers
        if entry.layer_bits is None:
            layers = usual_layers if _has_bits(pair) else {}
        plan = CompressionPlan(pair, layers, sinks, recent)
        _build(plan)
        text = _layers_text(layers)
        changed = [f"sinks={sinks}"] if sinks != recipe.sinks else []
        changed += [f"recent={recent}"] if recent != recipe.recent else []
        if layers != usual_layers and _has_bits(pair):
            changed.append(f"layers {_shortened(text) or 'alike'}")
        name = " ".join([str(pair), *changed]) if entry.name is None else _checked_name(entry.name, pair)
        made += unlike([StudyCodec(name, plan, text, entry.per_layer, entry.predicted)], names)
    return made


def unlike(codecs: list[StudyCodec], names: set[str]) -> list[StudyCodec]:
    """The codecs; their names are added to those that are taken.

    Raises `InputError` where a name is taken already, and where there are more codecs than a study can have.
    """
    for codec in codecs:
        if codec.name in names:
            raise InputError(f"two codecs are called {codec.name!r}; leave one out, or give one a name")
        names.add(codec.name)
    _check_number(len(names))
    return codecs


def gated(gate: Gate, names: Sequence[str], control: str | None, floors: Sequence[str] = FLOORS) -> list[str]:
    """Names of the codecs that a gate is about: those of the recipe that match its pattern.

    Of all, the control is left out. floors: what is measured besides, which a gate has to name exactly.
    """
    pattern = gate.codec.replace("[", "[[]")
    found = [name for name in names if fnmatchcase(name, pattern) and not (gate.codec == "*" and name == control)]
    return found or [name for name in floors if name == gate.codec]


def _check_number(codecs: int) -> None:
    if codecs > _MOST:
        raise InputError(f"that comes to {codecs:,} codecs; a recipe may have {_MOST:,}; leave some out")


def _texts(entry: CodecEntry) -> Iterator[str]:
    """The entry's codecs as on the command line."""
    head, *rest = (part.strip() for part in entry.codec.split(","))
    bits = entry.bits if isinstance(entry.bits, list) else [entry.bits]
    axes = {key: value if isinstance(value, list) else [value] for key, value in entry.options.items()}
    beside = [name for name in ("bits", "options") if getattr(entry, name) not in (None, {})]
    if "|" in entry.codec and beside:
        raise InputError(f"{entry.codec!r} names two codecs; write {' and '.join(beside)} inside it")
    if "@" in head and entry.bits is not None:
        raise InputError(f"{entry.codec!r} names its bits already; leave out bits")
    for key, values in {"bits": bits, **axes}.items():
        if not values:
            raise InputError(f"{key} is an empty list; name at least one value")
    _check_number(prod(map(len, (bits, *axes.values()))))
    for chosen in product(bits, *axes.values()):
        at = "" if chosen[0] is None else f"@{_bits_text(chosen[0])}"
        options = [_option_text(key, value) for key, value in zip(axes, chosen[1:], strict=True) if value is not None]
        yield ",".join([head + at, *rest, *options])


def _bits_text(bits: Scalar) -> str:
    text = f"{bits:g}" if isinstance(bits, float) and bits.is_integer() else str(bits).replace(" ", "")
    if not _BITS.fullmatch(text):
        raise InputError(f"bits {text!r} is not a number, or two as in 4/2 for keys and values")
    for part in text.split("/"):
        # Codecs write bits in six digits: what these don't hold would be measured as other bits than were asked for.
        if part.count(".") <= 1 and part.strip(".") and float(part) != float(f"{float(part):g}"):
            raise InputError(f"bits {text!r} has more digits than bits are told apart by; round it")
    return text


def _option_text(key: str, value: Scalar) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value).strip()
    for part in (key, text):
        if not part or set(part) & set(",=|\n"):
            raise InputError(f"option {key!r} can't be {text!r}; name one value")
    return f"{key}={text}"


def _has_bits(pair: CodecPair) -> bool:
    return pair.keys.bits is not None or pair.values.bits is not None


def _layer_bits(text: str | None) -> Mapping[int, tuple[float, float | None]]:
    try:
        return dict(sorted(parse_layer_bits(text or "").items()))
    except InputError as e:
        raise _named_as_here(e) from e


def _build(plan: CompressionPlan) -> None:
    """Builds the codecs of the layers with other bits, so that wrong ones are found now."""
    try:
        for layer in plan.layer_bits:
            plan.codec_of(layer, "keys")
            plan.codec_of(layer, "values")
    except InputError as e:
        raise _named_as_here(e) from e


def _named_as_here(error: InputError) -> InputError:
    text = str(error).replace("--layer-bits", "layer_bits")
    return InputError(text if "layer_bits" in text else f"layer_bits: {text}")


def _layers_text(layers: Mapping[int, tuple[float, float | None]]) -> str:
    return ",".join(
        f"{layer}:{keys:g}" + ("" if values is None else f"/{values:g}") for layer, (keys, values) in layers.items()
    )


def _shortened(text: str) -> str:
    """A long list of layers as its beginning, its length and a digest, which keeps different ones apart."""
    if len(text) <= _LONGEST_LAYERS:
        return text
    parts = text.split(",")
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{','.join(parts[:2])},... ({len(parts)} layers, {digest})"


def _checked_name(name: str, pair: CodecPair) -> str:
    if not name.strip() or name != name.strip() or len(name) > _LONGEST_NAME or set(name) & set("*?\n\t"):
        raise InputError(f"name {name!r} is empty, longer than {_LONGEST_NAME} characters, or holds * or ?; change it")
    if name == BASELINE:
        raise InputError(f"name {name!r} means the stored run in gates; choose another")
    if name in _RESERVED and name != str(pair):
        raise InputError(f"name {name!r} means something else in reports, which codes nothing; choose another")
    return name
