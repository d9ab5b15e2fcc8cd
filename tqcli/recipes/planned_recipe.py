"""A plan as a recipe: it measures the plan beside the codecs for all layers alike that take a little less and more."""

from __future__ import annotations

from typing import Any

from tqcli.errors import InputError
from tqcli.recipes.curves import METRIC, Curves
from tqcli.recipes.load import parse_recipe
from tqcli.recipes.plan import Planned
from tqcli.recipes.sweep import Sweep

PLAN = "plan"
"""What the recipe calls the planned codec."""


def recipe_of(planned: Planned, curves: Curves, sweep: Sweep, model: str) -> dict[str, Any]:
    """The recipe, of JSON types, in the order in which it is read best.

    A plan of the same bits for all layers has nothing to be compared with that takes as much, and so no gate.
    """
    beside = [str(plan.codec) for plan in (planned.uniform, planned.above) if plan is not None]
    alike = planned.is_uniform
    control = None if alike or planned.uniform is None else str(planned.uniform.codec)
    layers = "the same for all layers" if alike else "layer by layer"
    layers += "" if control is None else f", beside {control} for all layers"
    return {
        "name": PLAN,
        "description": (
            f"{planned.bits_effective:.3f} bits an element at {planned.tokens} tokens by {curves.codec.name}, {layers}."
        ),
        "model": model,
        "dtype": sweep.dtype,
        **{key: sweep.settings[key] for key in ("dataset", "calibration", "seed") if key in sweep.settings},
        "sinks": planned.plan.sinks,
        "recent": planned.plan.recent,
        "codecs": [
            {
                "name": PLAN,
                "codec": str(planned.plan.codec),
                "layer_bits": planned.layer_bits,
                "predicted": {METRIC: round(planned.kl_predicted, 8)},
            },
            *beside,
        ],
        **({} if control is None else {"control": control}),
        "measures": sweep.settings["measures"],
        **({} if control is None else {"gates": [{"metric": METRIC, "codec": PLAN, "against": control, "max": 1.0}]}),
    }


def check_recipe(text: str) -> None:
    """Raises `InputError` if `tq run` would refuse the recipe."""
    try:
        parse_recipe(text, "plan.yaml")
    except InputError as e:
        raise InputError(f"the plan's recipe could not be run: {e}; plan with other options") from None
