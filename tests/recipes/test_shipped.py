"""The recipes that come with tq."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tqcli.recipes.load import load_recipe, packaged_recipes
from tqcli.recipes.outline import outline
from tqcli.recipes.schema import Recipe

SHIPPED = packaged_recipes()


def test_they_are_all_there() -> None:
    assert {"quickstart", "smoke", "seed-claims", "paper-turboquant", "bits-sweep", "regression"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_each_is_right_and_says_what_it_answers(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description.endswith(".")
    assert load_recipe(str(SHIPPED[name])) == recipe
    assert all(gate["codecs"] for gate in outline(recipe)["gates"])
    comment = SHIPPED[name].read_text(encoding="utf-8")
    if name != "smoke":
        assert comment.startswith("# ") and " on 2 cores" in comment


def test_every_key_is_explained_in_the_schema() -> None:
    document = json.loads(json.dumps(Recipe.model_json_schema()))
    models = [document, *document["$defs"].values()]
    assert all(model["additionalProperties"] is False for model in models)
    described = {
        name for model in models for name, of in model["properties"].items() if "description" in of or "$ref" in of
    }
    unexplained = {name for model in models for name in model["properties"]} - described
    assert unexplained <= {"capture", "measures", "gates", "outputs", "distortion", "attention", "memory", "perplexity"}


def test_quickstart_is_what_make_quickstart_runs() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    (codecs,) = re.findall(r"^QUICK_CODECS := (.*)$", makefile, re.MULTILINE)
    recipe = load_recipe("quickstart")
    assert list(recipe.codecs) == codecs.split(" ")
    assert f"--sinks {recipe.sinks} " in makefile and recipe.recent == 0
    assert f"smollm2-135m --windows {recipe.dataset.windows} --out" in makefile
