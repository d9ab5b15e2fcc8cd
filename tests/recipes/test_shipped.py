"""The recipes that come with tq."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import tq

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
    assert ".venv/bin/tq run quickstart\n" in makefile


@pytest.mark.parametrize("name", SHIPPED)
def test_each_runs_on_the_real_model(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    changes = ["dataset.windows=1", "dataset.tokens=112", "capture.queries=16"]
    if recipe.calibration is not None:
        changes += ["calibration.windows=1", "calibration.tokens=272"]
    if recipe.measures.perplexity is not None:
        changes += ["measures.perplexity.windows=1"]
    if name == "bits-sweep":  # one or two of each of its kinds
        fewer = ["[2, 3/2, 2.5]", "3", "2", "2", "2", "4", "4"]
        changes += [f"codecs.{n}.bits={bits}" for n, bits in enumerate(fewer)]
    outcome = tq("run", name, *(part for change in changes for part in ("--set", change)), folder=tmp_path)
    assert outcome.code in (0, 1, 3), outcome.err
    found = json.loads((tmp_path / "runs" / name / "result.json").read_text())
    assert found["failures"] == []
    assert set(found["measures"]) == set(recipe.measures.model_dump(exclude_none=True))
    assert (tmp_path / "runs" / name / "report.html").is_file()
