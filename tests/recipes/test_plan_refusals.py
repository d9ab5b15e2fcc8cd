"""`tq plan`: sweeps that don't tell enough, models that weren't swept, and plans that `tq run` would refuse."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from running import done, refusal, workplace
from studies import recipe, result
from tiny_models import write_tiny_model

CODECS = [
    {"name": "low", "codec": "turboquant-mse@2", "per_layer": True},
    {"name": "turboquant-mse@3", "codec": "turboquant-mse@4", "per_layer": True},
    {"codec": "turboquant-mse@2", "layer_bits": "0:8"},
    {"codec": "affine@4", "sinks": 0},
]
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep whose codecs are called by names that say nothing, or something else."""
    folder = tmp_path_factory.mktemp("sweep")
    file = recipe(folder, name="sweep", codecs=CODECS, control=None, measures={"perplexity": {}})
    done("run", file, folder=folder)
    return folder / "runs" / "sweep"


def edited(sweep: Path, to: Path, edit: Edit) -> Path:
    """The sweep's result in another file, changed."""
    document = result(sweep.parents[1], "sweep")
    edit(document)
    to.write_text(json.dumps(document))
    return to


def codecs(document: dict[str, Any]) -> Any:
    return document["measures"]["perplexity"]["codecs"]


def set_layer(document: dict[str, Any], layer: int, value: float) -> None:
    for codec in codecs(document)[:2]:
        codec["layers"][layer]["metrics"]["kl_mean"]["value"] = value


def drop_layer(document: dict[str, Any]) -> None:
    for codec in codecs(document)[:2]:
        del codec["layers"][1]


def planned(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(done("plan", *arguments).out)
    return found


def test_codecs_are_what_they_are_and_not_what_they_are_called(sweep: Path) -> None:
    found = planned(sweep, "--bits", 3.6)
    (plan, *beside) = found["codecs"]
    assert plan["codec"] in ("turboquant-mse@2", "turboquant-mse@4")
    assert {part.partition(":")[2] for part in plan["layer_bits"].split(",")} <= {"2", "4"}
    assert found["control"] == beside[0]
    assert found["gates"] == [{"metric": "kl_mean", "codec": "plan", "against": beside[0], "max": 1.0}]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (drop_layer, "the keys of layer 1 are compressed, but were not swept"),
        (lambda of: set_layer(of, 1, math.inf), "the divergence of layer 1 is infinite at all bits that were swept"),
        (lambda of: of["codecs"][0].update(recent=7), "with sinks: 1, recent: 0 and sinks: 1, recent: 7"),
        (lambda of: of["codecs"][0].update(layer_bits="0:3"), "at 4 bits alone"),
    ],
)
def test_a_sweep_that_does_not_tell_enough(sweep: Path, tmp_path: Path, edit: Edit, words: str) -> None:
    assert words in refusal("plan", edited(sweep, tmp_path / "result.json", edit), "--bits", 3.6)


def test_one_infinite_divergence_is_a_choice_less(sweep: Path, tmp_path: Path) -> None:
    def edit(of: dict[str, Any]) -> None:
        for codec in codecs(of)[:2]:
            codec["total"]["kl_mean"]["value"] = math.inf

    found = planned(edited(sweep, tmp_path / "result.json", edit), "--bits", 3.6)
    assert math.isfinite(found["codecs"][0]["predicted"]["kl_mean"])


def test_another_model_than_was_swept(sweep: Path, tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "other", layers=2, heads=2, kv_heads=1, head_dim=32)
    words = refusal("plan", sweep, "--bits", 3.6, "--model", tmp_path / "other")
    assert "isn't the model that was swept: its weights_sha256 is" in words and "--model" in words
    assert planned(sweep, "--bits", 3.6, "--model", workplace() / "model")["name"] == "plan"


def test_a_plan_of_the_same_bits_everywhere_has_no_gate_and_both_neighbours(sweep: Path, tmp_path: Path) -> None:
    outcome = done("plan", sweep, "--bits", 9)
    found = yaml.safe_load(outcome.out)
    assert [found["codecs"][0][key] for key in ("codec", "layer_bits")] == ["turboquant-mse@4", ""]
    assert found["codecs"][1:] == ["turboquant-mse@3.5", "turboquant-mse@4.5"]
    assert "gates" not in found and "control" not in found
    assert "so the recipe has no gate" in outcome.err
    (tmp_path / "plan.yaml").write_text(outcome.out)
    done("recipe", "validate", tmp_path / "plan.yaml")


def test_what_tq_run_would_refuse_is_not_printed(sweep: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.yaml"
    words = refusal("plan", sweep, "--bits", 32, "--recent", 100, "--out", out)
    assert "4 sinks and 100 recent tokens leave nothing to compress of windows of 96 tokens" in words
    assert not out.exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--context", 10**11, "--bits", 3), "--context must be 1 to 16777216, not 100000000000"),
        (("--memory", "9" * 400), "--memory must be more than 0, and a finite number, not 9999"),
        (("--memory", "1MB", "--bits", 3), "--bits and --memory are named"),
        ((), "none is named"),
    ],
)
def test_options_that_say_nothing(sweep: Path, option: tuple[object, ...], words: str) -> None:
    line = refusal("plan", sweep, *option)
    assert words in line and len(line) < 200


def test_a_divergence_without_bounds_takes_the_fewest_bits(sweep: Path) -> None:
    assert planned(sweep, "--kl", 1e308)["codecs"][0]["codec"] == "turboquant-mse@2"
