"""What a gate can have wrong: codecs, measures and metrics that the recipe doesn't have."""

from __future__ import annotations

from tqcli.layers import parse_layers
from tqcli.recipes.expand import BASELINE, FLOORS, gated
from tqcli.recipes.metric_names import METRICS, Given
from tqcli.recipes.schema import Gate, MeasureName, Recipe
from tqcli.recipes.tree import Path
from tqcli.recipes.validation import nearest


def measures_of(recipe: Recipe, gate: Gate) -> list[MeasureName]:
    """The recipe's measures that give the metric of a gate, which may name one of them."""
    measured = [name for name in METRICS if getattr(recipe.measures, name) is not None]
    return [name for name in measured if gate.metric in METRICS[name] and gate.measure in (None, name)]


def gate_problem(recipe: Recipe, gate: Gate, names: list[str]) -> tuple[Path, str] | None:
    """The key of the gate that is wrong, and why; `names` are those of all codecs."""
    return _codec_problem(recipe, gate, names) or _metric_problem(recipe, gate)


def _codec_problem(recipe: Recipe, gate: Gate, names: list[str]) -> tuple[Path, str] | None:
    perplexity = recipe.measures.perplexity
    floors = FLOORS if perplexity is not None and perplexity.rechunk and gate.measure in (None, "perplexity") else ()
    if not gated(gate, names, recipe.control, floors):
        others = "; the control alone is there" if gate.codec == "*" else f"; {nearest(gate.codec, names)}"
        return ("codec",), f"no codec is called {gate.codec!r}{others}"
    if gate.against == BASELINE:
        if recipe.baseline is None:
            return ("against",), "the recipe names no baseline; add baseline: with the folder of a run, or --baseline"
    elif gate.against is not None and gate.against not in names:
        return ("against",), f"no codec is called {gate.against!r}; {nearest(gate.against, [*names, BASELINE])}"
    return None


def _metric_problem(recipe: Recipe, gate: Gate) -> tuple[Path, str] | None:
    measured = [name for name in METRICS if getattr(recipe.measures, name) is not None]
    if gate.measure is not None and gate.measure not in measured:
        return ("measure",), f"{gate.measure} is not measured; add it to measures, which has {', '.join(measured)}"
    asked = measured if gate.measure is None else [gate.measure]
    giving = measures_of(recipe, gate)
    if not giving:
        others = [name for name in METRICS if gate.metric in METRICS[name]]
        known = dict.fromkeys(metric for name in asked for metric in METRICS[name])
        hint = f"{' and '.join(others)} would" if others else nearest(gate.metric, known)
        return ("metric",), f"{' or '.join(asked)} gives no {gate.metric!r}; {hint}"
    if len(giving) > 1:
        return ("metric",), f"{gate.metric} comes of {' and '.join(giving)}; say which with measure"
    return _level_problem(recipe, gate, giving[0], METRICS[giving[0]][gate.metric])


def _level_problem(recipe: Recipe, gate: Gate, measure: MeasureName, given: Given) -> tuple[Path, str] | None:
    settings = getattr(recipe.measures, measure)
    if given.needs is not None and not getattr(settings, given.needs):
        return ("metric",), f"{gate.metric} takes {measure}'s {given.needs}; add it to measures.{measure}"
    if (gate.tensor or "both") not in given.tensors:
        there = " alone" if len(given.tensors) == 1 else ""
        of = (
            f"of {' and '.join(given.tensors)}{there}" if "both" not in given.tensors else "of keys and values together"
        )
        remedy = "leave tensor out" if "both" in given.tensors else f"add tensor: {given.tensors[0]}"
        return ("tensor",), f"{gate.metric} is {of}; {remedy}"
    if gate.layer is None and gate.level == "total":
        return None
    key = "level" if gate.layer is None else "layer"
    if not given.layers:
        return (key,), f"{gate.metric} is a total, not measured layer by layer; leave {key} out"
    if given.layers_need is not None and not getattr(settings, given.layers_need):
        return (key,), f"{measure} is measured layer by layer with {given.layers_need}: true alone; add it"
    captured = recipe.capture.layers if measure != "perplexity" else None
    if gate.layer is not None and captured is not None and gate.layer not in parse_layers(captured):
        return (key,), f"layer {gate.layer} isn't captured; capture.layers is {captured}"
    return None
