"""The codecs of a recipe: every combination of the bits and options that its entries list."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product

from tqcli.codecs.spec import CodecPair, parse_codec
from tqcli.compression.plan import CompressionPlan, parse_layer_bits
from tqcli.errors import InputError
from tqcli.recipes.schema import CodecEntry, Gate, Recipe, Scalar

BASELINE = "baseline"
"""What a gate's `against` calls the stored run; no codec has this name."""
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

    Raises `InputError` for a codec that can't be built, and for two of the same name.
    """
    codecs: list[StudyCodec] = []
    for index in range(len(recipe.codecs)):
        try:
            codecs += unlike(expand_entry(recipe, index), codecs)
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
        name = " ".join([str(pair), *changed]) if entry.name is None else _checked_name(entry.name)
        made += unlike([StudyCodec(name, plan, text, entry.per_layer, entry.predicted)], made)
    return made


def unlike(codecs: list[StudyCodec], others: list[StudyCodec]) -> list[StudyCodec]:
    """The codecs. Raises `InputError` where one of the others has the name of one of them."""
    names = {codec.name for codec in others}
    for codec in codecs:
        if codec.name in names:
            raise InputError(f"two codecs are called {codec.name!r}; leave one out, or give one a name")
    return codecs


def gated(gate: Gate, names: list[str], control: str | None) -> list[str]:
    """Names of the codecs that a gate is about: those that match its pattern; of all, the control is left out."""
    pattern = gate.codec.replace("[", "[[]")
    return [name for name in names if fnmatchcase(name, pattern) and not (gate.codec == "*" and name == control)]


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
    for chosen in product(bits, *axes.values()):
        at = "" if chosen[0] is None else f"@{_bits_text(chosen[0])}"
        options = [_option_text(key, value) for key, value in zip(axes, chosen[1:], strict=True) if value is not None]
        yield ",".join([head + at, *rest, *options])


def _bits_text(bits: Scalar) -> str:
    text = f"{bits:g}" if isinstance(bits, float) else str(bits).replace(" ", "")
    if not _BITS.fullmatch(text):
        raise InputError(f"bits {text!r} is not a number, or two as in 4/2 for keys and values")
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


def _checked_name(name: str) -> str:
    if not name.strip() or name != name.strip() or len(name) > _LONGEST_NAME or set(name) & set("*?\n\t"):
        raise InputError(f"name {name!r} is empty, longer than {_LONGEST_NAME} characters, or holds * or ?; change it")
    if name == BASELINE:
        raise InputError(f"name {name!r} means the stored run in gates; choose another")
    return name
