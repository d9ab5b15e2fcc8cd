"""Judges the gates of a recipe on what a run measured.

A gate is judged on its 95 % interval: it passes where all of that keeps the bound, fails where none of it does, and is
inconclusive where the bound lies inside. What can't be judged fails, with the reason: nothing passes unseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from tqcli.recipes.estimates import Estimate, Kind, Unclear, difference, ratio, verdict, worst
from tqcli.recipes.expand import BASELINE, gated
from tqcli.recipes.schema import Gate
from tqcli.report.basis import incomparable, other_codec, other_windows
from tqcli.report.run import GateResult, RunResult
from tqcli.report.schema import CodecResult, Metric, Metrics

_ALL = "*"
_RATIO_UNIT = "x"


def judge(gates: Sequence[Gate], result: RunResult, baseline: RunResult | None = None) -> list[GateResult]:
    """One result for each gate and each codec that it matches, in the order of the gates and of the run's codecs.

    A gate whose codec is `*`, as if left out, is not for the control; none is for the codec that it compares `against`.
    With `against` each layer is compared with the same layer. The interval of a ratio or a difference is taken from the
    ends of both intervals and therefore conservative: see `tqcli.recipes.estimates`. A gate that matches no codec, or a
    metric that isn't there, is a `fail` with a reason.
    """
    return [judged for gate in gates for judged in _judge(gate, result, baseline)]


def exit_code(results: Sequence[GateResult]) -> int:
    """1 if a gate failed, else 3 if one is inconclusive, else 0."""
    verdicts = {result.verdict for result in results}
    return 1 if "fail" in verdicts else 3 if "inconclusive" in verdicts else 0


def _judge(gate: Gate, result: RunResult, baseline: RunResult | None) -> Iterator[GateResult]:
    try:
        names = _matching(gate, result)
    except Unclear as e:
        yield _failed(gate, gate.codec, str(e))
        return
    for name in names:
        try:
            yield _judge_codec(gate, name, result, baseline)
        except Unclear as e:
            yield _failed(gate, name, str(e))


def _matching(gate: Gate, result: RunResult) -> list[str]:
    """Names of the codecs that a gate is for. Raises `Unclear` if there is none."""
    every = [codec.name for codec in result.codecs]
    # The floors of noise that a perplexity run adds are among its results alone.
    measured = dict.fromkeys(codec.codec for of in result.measures.values() for codec in of.codecs)
    names = gated(gate, every, result.control, tuple(measured))
    others = [name for name in names if name != gate.against]
    if others:
        return others
    if names:
        raise Unclear(f"only {gate.against} matches, and it isn't compared with itself")
    if gate.codec == _ALL:
        raise Unclear("there is no codec but the control, which a gate has to name")
    raise Unclear(f"no codec is called {gate.codec}{_near(gate.codec, [*every, *measured])}")


def _judge_codec(gate: Gate, name: str, result: RunResult, baseline: RunResult | None) -> GateResult:
    kind, bound = _bound(gate)
    if gate.measure is not None and gate.measure not in result.measures:
        raise Unclear(_not_measured(gate.measure, name, result))
    measure = gate.measure or _giving(gate, name, result)
    found = _find(gate, measure, name, result, name)
    places = list(found)
    estimates = [Estimate.of(metric, f"{gate.metric} of {name}, {place}") for place, metric in found.items()]
    remarks = []
    if gate.against is not None:
        other, theirs = _other_side(gate, measure, name, result, baseline)
        missing = [place for place in places if place not in theirs]
        if missing:
            raise Unclear(f"{other} has no {gate.metric} for {', '.join(missing)}")
        if left := [place for place in theirs if place not in found]:
            remarks.append(f"{other} also has {', '.join(left)}, which {name} lacks")
        if gate.against == BASELINE and baseline is not None:
            windows = other_windows(result.measures[measure], baseline.measures[measure])
            remarks += [f"the baseline has other windows: {windows}"] if windows else []
        combine = ratio if gate.compare == "ratio" else difference
        references = [Estimate.of(theirs[place], f"{other}'s {gate.metric}, {place}") for place in places]
        if any(of.has_interval for of in estimates) and not any(of.has_interval for of in references):
            remarks.append(f"{other} has no interval")
        estimates = [
            combine(ours, reference, f"{other}'s {gate.metric}, {place},")
            for place, ours, reference in zip(places, estimates, references, strict=True)
        ]
    metric = found[places[0]]
    higher = kind == "min" if metric.higher_is_better is None else metric.higher_is_better
    index, estimate = worst(estimates, higher)
    if not estimate.has_interval:
        remarks.insert(0, "there is no interval, the value itself decides")
    judged = verdict(estimate, kind, bound)
    if judged == "inconclusive":
        remarks.insert(0, "the bound lies inside the interval")
    return GateResult(
        metric=gate.metric,
        codec=name,
        measure=measure,
        where=places[index] + _chosen(gate, len(places)),
        value=estimate.value,
        ci_low=estimate.low,
        ci_high=estimate.high,
        unit=_RATIO_UNIT if gate.against and gate.compare == "ratio" else metric.unit,
        kind=kind,
        bound=bound,
        against=gate.against,
        compare=gate.compare if gate.against else "value",
        verdict=judged,
        reason="; ".join(remarks),
    )


def _other_side(
    gate: Gate, measure: str, name: str, result: RunResult, baseline: RunResult | None
) -> tuple[str, dict[str, Metric]]:
    """What the gate compares with: how to call it, and its metric by place."""
    assert gate.against is not None
    if gate.against != BASELINE:
        return gate.against, _find(gate, measure, gate.against, result, gate.against)
    if baseline is None:
        raise Unclear("there is no baseline run to compare with; name its folder as `baseline` of the recipe")
    if reason := incomparable(result, baseline):
        raise Unclear(f"the baseline can't be compared with: {reason}")
    if differing := other_codec(result, baseline, name):
        raise Unclear(f"the baseline's {name} is another codec: {differing}; measure the baseline anew, or rename one")
    if measure not in baseline.measures:
        raise Unclear(f"the baseline run has no {measure}")
    return "the baseline", _find(gate, measure, name, baseline, f"the baseline's {name}")


def _giving(gate: Gate, name: str, result: RunResult) -> str:
    """The one measure that gives the gate's metric. Raises `Unclear` where none does, or several do."""
    giving = [
        measure
        for measure, of in result.measures.items()
        if any(gate.metric in metrics for codec in of.codecs for metrics in _rows(gate, codec).values())
    ]
    if len(giving) == 1:
        return giving[0]
    if giving:
        raise Unclear(f"{' and '.join(giving)} give {gate.metric}; name one of them as `measure`")
    raise Unclear(_no_metric(gate, name, result))


def _find(gate: Gate, measure: str, name: str, result: RunResult, called: str) -> dict[str, Metric]:
    """A codec's metric by place, at the level of the gate. Raises `Unclear` if there is none."""
    for codec in result.measures[measure].codecs:
        if codec.codec == name:
            found = {place: rows[gate.metric] for place, rows in _rows(gate, codec).items() if gate.metric in rows}
            if found:
                return found
            raise Unclear(f"{measure} gives no {gate.metric} of {called}, {_level(gate)}" + _elsewhere(gate, codec))
    known = [codec.codec for codec in result.measures[measure].codecs]
    raise Unclear(
        _failure(measure, name, result) or f"{measure} has no codec that is called {called}{_near(name, known)}"
    )


def _rows(gate: Gate, codec: CodecResult) -> dict[str, Metrics]:
    """Metrics by place, at the level of the gate: the total alone, or rows of layers.

    Where the gate names no tensor, or both, these are what a layer comes to as a whole, or its keys and its values.
    """
    if _is_total(gate):
        if gate.tensor is None or gate.tensor == "both":
            return {"total": codec.total}
        return {f"{gate.tensor}, total": codec.by_tensor.get(gate.tensor, {})}
    rows = [row for row in codec.layers if gate.layer is None or row.layer == gate.layer]
    if gate.tensor in ("keys", "values"):
        rows = [row for row in rows if row.tensor == gate.tensor]
    return {row.place: row.metrics for row in rows}


def _is_total(gate: Gate) -> bool:
    return gate.layer is None and gate.level == "total"


def _level(gate: Gate) -> str:
    """The level of a gate in words."""
    tensor = "" if gate.tensor in (None, "both") else f"{gate.tensor}, "
    if gate.layer is not None:
        return f"{tensor}layer {gate.layer}"
    return tensor + ("total" if gate.level == "total" else "worst layer")


def _elsewhere(gate: Gate, codec: CodecResult) -> str:
    """Where else a codec has the metric."""
    places = ["in total"] if gate.metric in codec.total else []
    places += [f"for {tensor} in total" for tensor, metrics in codec.by_tensor.items() if gate.metric in metrics]
    layers = {f"for {row.tensor} by layer" for row in codec.layers if gate.metric in row.metrics}
    places += sorted(layer.replace("for both ", "") for layer in layers)
    return f"; there is one {', '.join(places)}" if places else ""


def _no_metric(gate: Gate, name: str, result: RunResult) -> str:
    """Why no measure gives the metric at this level."""
    codecs = [codec for of in result.measures.values() for codec in of.codecs]
    for codec in codecs:
        if elsewhere := _elsewhere(gate, codec):
            return f"no measure gives {gate.metric}, {_level(gate)}{elsewhere}"
    known = {name for codec in codecs for rows in (codec.total, *(r.metrics for r in codec.layers)) for name in rows}
    failure = _failure(None, name, result)
    return f"no measure gives {gate.metric}" + (f"; {failure}" if failure else _near(gate.metric, sorted(known)))


def _not_measured(measure: str, name: str, result: RunResult) -> str:
    return _failure(measure, name, result) or f"{measure} was not measured"


def _failure(measure: str | None, name: str, result: RunResult) -> str:
    """What went wrong of a measure with a codec; empty if nothing did."""
    own = [of for of in result.failures if of.codec in (None, name)]
    of_measure = [of for of in own if of.step == measure] or own
    return f"{of_measure[0].step} failed: {of_measure[0].error}" if of_measure else ""


def _chosen(gate: Gate, among: int) -> str:
    """How a place was chosen, in words."""
    if gate.layer is None:
        return "" if gate.level == "total" else " (worst)"
    return " (the worse)" if among > 1 else ""


def _bound(gate: Gate) -> tuple[Kind, float]:
    if gate.max is not None:
        return "max", gate.max
    assert gate.min is not None  # the schema has one of them
    return "min", gate.min


def _near(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _failed(gate: Gate, codec: str, reason: str) -> GateResult:
    """A gate that can't be judged."""
    kind, bound = _bound(gate)
    return GateResult(
        metric=gate.metric,
        codec=codec,
        measure=gate.measure or "",
        where=_level(gate),
        value=None,
        unit="",
        kind=kind,
        bound=bound,
        against=gate.against,
        compare=gate.compare if gate.against else "value",
        verdict="fail",
        reason=reason,
    )
