"""A plan as a recipe: it measures the plan beside the codecs for all layers alike that take a little less and more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tqcli.errors import InputError
from tqcli.recipes.curves import METRIC, Curves
from tqcli.recipes.plan import Planned
from tqcli.report.run import RunResult
from tqcli.report.schema import Result

PLAN = "plan"
"""What the recipe calls the planned codec."""


@dataclass(frozen=True)
class Sweep:
    """What a plan needs to know of the run that it is made from."""

    result: Result
    """Of perplexity."""
    model: str
    dtype: str
    """What the model ran in."""
    cache_dtype: str
    """What stays uncompressed is held in, and a codec's scales."""
    settings: Mapping[str, Any]
    """Of the recipe that the plan is confirmed with: dataset, seed, perplexity."""


def settings_of(found: RunResult | Result) -> Sweep:
    """Reads them off a run or a perplexity result. Raises `InputError` where perplexity was not measured."""
    result = found.measures.get("perplexity") if isinstance(found, RunResult) else found
    if result is None or result.kind != "perplexity":
        raise InputError(
            "the run has no perplexity, by which a plan is made; add `perplexity: {per_layer: true}` to it"
        )
    dataset, measured = result.dataset, result.settings
    perplexity = {key: measured[key] for key in ("chunk", "cache_dtype") if measured.get(key) is not None}
    return Sweep(
        result=result,
        model=str(result.model["name"]),
        dtype=str(result.model["compute_dtype"]),
        cache_dtype=str(measured.get("cache_dtype") or result.model["compute_dtype"]),
        settings={
            "dataset": {"spec": dataset["spec"], "windows": dataset["windows"], "tokens": dataset["tokens"]},
            # Other windows than those that the plan was made from.
            "seed": int(dataset["seed"]) + 1,
            "measures": {"perplexity": perplexity},
        },
    )


def recipe_of(planned: Planned, curves: Curves, sweep: Sweep, model: str) -> dict[str, Any]:
    """The recipe, of JSON types, in the order in which it is read best."""
    uniform = str(planned.uniform.codec)
    return {
        "name": PLAN,
        "description": (
            f"{planned.bits_effective:.3f} bits an element at {planned.tokens} tokens by {curves.codec.name}, layer by "
            f"layer, beside {uniform} for all layers."
        ),
        "model": model,
        "dtype": sweep.dtype,
        "dataset": sweep.settings["dataset"],
        "seed": sweep.settings["seed"],
        "sinks": planned.plan.sinks,
        "recent": planned.plan.recent,
        "codecs": [
            {
                "name": PLAN,
                "codec": str(planned.plan.codec),
                "layer_bits": planned.layer_bits,
                "predicted": {METRIC: round(planned.kl_predicted, 8)},
            },
            uniform,
            *([] if planned.above is None else [str(planned.above.codec)]),
        ],
        "control": uniform,
        "measures": sweep.settings["measures"],
        "gates": [{"metric": METRIC, "codec": PLAN, "against": uniform, "max": 1.0}],
    }
