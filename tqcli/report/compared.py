"""The codecs of a run side by side: what each has, and which is best at its bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tqcli.report.run import RunCodec, RunResult
from tqcli.report.schema import Metric, Metrics

SAME_BYTES = 1.02
"""So many times a codec's bits count as the same bytes."""
JUDGED = (("perplexity", "kl_mean"), ("attention", "attention_error"), ("distortion", "relative_mse"))
"""What codecs are ranked by: the first of these that was measured. Of all, less is better."""
_SIZED = ("perplexity", "attention", "distortion", "memory")
"""Whose bits are taken for the ranking, in this order."""
_UNCODED = ("identity", "fp16")
_SPEC = re.compile(r"(?P<name>[^@,/|]+)(?:@(?P<keys>[\d.]+)(?:/(?P<values>[\d.]+))?)?(?P<options>,.*)?", re.DOTALL)


@dataclass
class Compared:
    """One codec of a run with what every measure says of it."""

    name: str
    spec: str
    run: RunCodec | None
    """None for what a measure ran besides, as floors of float noise."""
    totals: dict[str, Metrics] = field(default_factory=dict)
    """By measure."""
    tensors: dict[tuple[str, str], Metrics] = field(default_factory=dict)
    """By measure and tensor."""
    control: bool = False

    @property
    def floor(self) -> bool:
        """Whether nothing is coded: identity and fp16."""
        return self.uncoded("keys") and self.uncoded("values")

    def side(self, tensor: str) -> str:
        """What codes the keys, or the values, alone."""
        sides = self.spec.split(" | ")
        side = sides[0 if tensor == "keys" else -1]
        name, keys, values, options = _parts(side)
        bits = keys if tensor == "keys" else values
        return side if bits is None else f"{name}@{bits:g}{options}"

    def uncoded(self, tensor: str) -> bool:
        """Whether the keys, or the values, stay as they are."""
        return _parts(self.side(tensor))[0] in _UNCODED

    def total(self, measure: str, metric: str) -> Metric | None:
        """A total, or None."""
        return self.totals.get(measure, {}).get(metric)

    def size(self, metric: str) -> Metric | None:
        """Of the first measure that has this size: bits_effective or ratio."""
        return next((m for name in _SIZED if (m := self.total(name, metric)) and m.value is not None), None)

    @property
    def bits(self) -> float | None:
        """Effective bits an element."""
        size = self.size("bits_effective")
        return size.value if size else None


@dataclass(frozen=True)
class Family:
    """Codecs that differ in their number of bits alone."""

    label: str
    members: tuple[Compared, ...]
    """Ascending in effective bits."""

    @property
    def control(self) -> bool:
        """Whether the control is one of them."""
        return any(codec.control for codec in self.members)


def compared(result: RunResult) -> list[Compared]:
    """All codecs of the run and its measures, fewest effective bits first, those of unknown size last."""
    found = {codec.name: Compared(codec.name, codec.codec, codec) for codec in result.codecs}
    for measure, of in result.measures.items():
        for codec in of.codecs:
            entry = found.setdefault(codec.codec, Compared(codec.codec, codec.codec, None))
            entry.totals[measure] = codec.total
            entry.tensors |= {(measure, tensor): metrics for tensor, metrics in codec.by_tensor.items()}
    if result.control in found:
        found[result.control].control = True
    return sorted(found.values(), key=lambda codec: math.inf if codec.bits is None else codec.bits)


def judged_by(result: RunResult) -> tuple[str, str] | None:
    """The measure and metric that codecs are ranked by; None where none was measured."""
    for measure, metric in JUDGED:
        of = result.measures.get(measure)
        if of and any(codec.total.get(metric) for codec in of.codecs):
            return measure, metric
    return None


def judged(codec: Compared, by: tuple[str, str] | None) -> Metric | None:
    """The metric that a codec is ranked by; None without a finite value: such a codec is never the best."""
    metric = codec.total(*by) if by else None
    return metric if metric and metric.value is not None and math.isfinite(metric.value) else None


def best_within(codecs: Iterable[Compared], bits: float, by: tuple[str, str] | None) -> Compared | None:
    """The best coded one of so many effective bits or fewer; None if there is none."""
    fits = [codec for codec in within(codecs, bits) if judged(codec, by)]
    return min(fits, key=lambda codec: _value(judged(codec, by)), default=None)


def within(codecs: Iterable[Compared], bits: float) -> list[Compared]:
    """The coded ones of so many effective bits or fewer."""
    return [c for c in codecs if not c.floor and c.bits is not None and c.bits <= bits * SAME_BYTES]


def standing(codec: Compared, codecs: Iterable[Compared], by: tuple[str, str] | None) -> str:
    """What a codec is among those of its bytes or fewer, in words: best, level with the best, or how far behind."""
    if codec.floor:
        return "floor"
    metric = judged(codec, by)
    if codec.bits is None or metric is None:
        return ""
    best = best_within(codecs, codec.bits, by)
    if best is None or best is codec:
        return "best"
    other = judged(best, by)
    if overlap(metric, other):
        return f"level with {best.name}"
    ratio = ratio_of(metric, other)
    return f"behind {best.name}" if ratio is None else f"{ratio:.3g} times {best.name}"


def overlap(one: Metric | None, other: Metric | None) -> bool:
    """Whether two intervals have a number in common; of two equal values without intervals, yes."""
    if one is None or other is None:
        return False
    if one.value == other.value:
        return True
    bounds = (one.ci_low, one.ci_high, other.ci_low, other.ci_high)
    if None in bounds:
        return False
    low, high, other_low, other_high = (float(bound or 0) for bound in bounds)
    return low <= other_high and other_low <= high


def ratio_of(one: Metric | None, other: Metric | None) -> float | None:
    """One value over another; None where that is no number."""
    if one is None or other is None or not one.value or not other.value:
        return None
    ratio = one.value / other.value
    return ratio if math.isfinite(ratio) else None


def families(codecs: Iterable[Compared], tensor: str | None = None) -> list[Family]:
    """Coded ones grouped by all but their bits, in the order of their first members.

    tensor: keys or values alone, so that codecs that treat this tensor alike are one; both if left out.
    """
    codecs = [codec for codec in codecs if not (codec.uncoded(tensor) if tensor else codec.floor)]
    kept = {(codec.run.sinks, codec.run.recent) for codec in codecs if codec.run}
    groups: dict[str, dict[str, Compared]] = {}
    for codec in codecs:
        suffix = _suffix(codec, len(kept) > 1)
        label = _family(codec, tensor) + suffix
        member = codec.side(tensor) + suffix if tensor else codec.name
        known = groups.setdefault(label, {})
        if member not in known or codec.control:
            known[member] = codec
    return [Family(label if len(of) > 1 else next(iter(of)), tuple(of.values())) for label, of in groups.items()]


def _family(codec: Compared, tensor: str | None) -> str:
    parts = [_parts(codec.side(one)) for one in ((tensor,) if tensor else ("keys", "values"))]
    names = dict.fromkeys(name + options for name, _, _, options in parts)
    keys, values = parts[0][1], parts[-1][1]
    apart = f" (keys {keys - values:+g} bits)" if keys is not None and values is not None and keys != values else ""
    return " | ".join(names) + apart


def _suffix(codec: Compared, tell_kept: bool) -> str:
    run = codec.run
    layers = f" (layer bits {run.layer_bits})" if run and run.layer_bits else ""
    kept = f" ({run.sinks} sinks, {run.recent} recent)" if run and tell_kept else ""
    return layers + kept


def _parts(spec: str) -> tuple[str, float | None, float | None, str]:
    """Name, bits of keys and of values, and options with their comma; all of what can't be read is the name."""
    match = _SPEC.fullmatch(spec)
    if match is None:
        return spec, None, None, ""
    try:
        keys = float(match["keys"]) if match["keys"] else None
        values = float(match["values"]) if match["values"] else keys
    except ValueError:
        return spec, None, None, ""
    return match["name"], keys, values, match["options"] or ""


def _value(metric: Metric | None) -> float:
    return math.inf if metric is None or metric.value is None else metric.value
