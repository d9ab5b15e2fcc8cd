"""What a recipe comes to: its codecs, measures and gates, without running it."""

from __future__ import annotations

from typing import Any

from tqcli.recipes.check_gates import measures_of
from tqcli.recipes.expand import BASELINE, expand, gated
from tqcli.recipes.schema import Gate, Recipe, TextSettings


def outline(recipe: Recipe) -> dict[str, Any]:
    """The recipe with its defaults filled in, the codecs that it stands for, and what each gate is about.

    `recipe` is one that `load_recipe` gave.
    """
    codecs = expand(recipe)
    names = [codec.name for codec in codecs]
    return {
        "name": recipe.name,
        "description": recipe.description,
        "codecs": [
            {
                "name": codec.name,
                "codec": str(codec.plan.codec),
                "sinks": codec.plan.sinks,
                "recent": codec.plan.recent,
                "layer_bits": codec.layer_bits,
            }
            for codec in codecs
        ],
        "measures": recipe.measures.model_dump(exclude_none=True),
        "gates": [
            {
                "text": gate_text(gate),
                "measure": measures_of(recipe, gate)[0],
                "codecs": gated(gate, names, recipe.control),
            }
            for gate in recipe.gates
        ],
        "recipe": recipe.model_dump(mode="json"),
    }


def gate_text(gate: Gate) -> str:
    """A gate in words, without its codecs: `worst layer's logit_correlation at least 0.99`."""
    where = f"layer {gate.layer}'s " if gate.layer is not None else ""
    where = "worst layer's " if not where and gate.level == "worst_layer" else where
    of = f" of {gate.tensor}" if gate.tensor in ("keys", "values") else ""
    bound = f"at least {gate.min:.10g}" if gate.min is not None else f"at most {gate.max:.10g}"
    if gate.against is not None:
        other = "the baseline's" if gate.against == BASELINE else f"that of {gate.against}"
        of += f" {'over' if gate.compare == 'ratio' else 'minus'} {other}"
    return f"{where}{gate.metric}{of} {bound}"


def text_words(text: TextSettings, seed: int) -> str:
    """Windows of a text in words; `seed` is what is drawn by unless the text has its own."""
    count = f"{text.windows} window{'s' if text.windows > 1 else ''} of {text.tokens} tokens"
    return f"{text.spec}, {count}, seed {seed if text.seed is None else text.seed}"
