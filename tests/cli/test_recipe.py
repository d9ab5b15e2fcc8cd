from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from running import done, make_capture, refusal, tq, workplace

from tqcli.recipes.metric_names import METRICS
from tqcli.recipes.schema import MeasureName

CODEC = "turboquant-mse@3"
PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_validate_prints_what_a_recipe_comes_to(tmp_path: Path) -> None:
    change = ["--set", "codecs.0={codec: affine, bits: [2, 3]}", "--set", "gates.0={metric: kl_mean, max: 0.1}"]
    text = done("recipe", "validate", "smoke", *change).out
    assert "smollm2-135m" in text and "perplexity (windows 1)" in text
    for line in (
        "affine@2 ",
        "affine@3 ",
        "affine@4 ",
        "gate: kl_mean at most 0.1 (perplexity), for affine@2, affine@3",
    ):
        assert f"\n{line}" in text
    assert text.endswith("\nvalid: 3 codecs, 4 measures, 1 gate\n")


def test_validate_prints_one_json_document() -> None:
    document = done("recipe", "validate", "regression", "--json").document
    assert [codec["name"] for codec in document["codecs"]] == ["turboquant-mse@4", "affine@4", "fp16"]
    assert set(document["measures"]) == {"attention", "memory", "perplexity"}
    assert {"text", "measure", "codecs"} == set(document["gates"][0])
    assert document["recipe"]["dataset"]["spec"] == "sample"


def test_a_wrong_recipe_is_one_line_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("name: x\ncodecs:\n  - codec: turboquant-mse\n    bit: 4\n")
    assert refusal("recipe", "validate", "x.yaml", folder=tmp_path) == (
        "x.yaml:4: codecs.0 has no key 'bit'; did you mean 'bits'?"
    )
    assert refusal("recipe", "validate", "smoke", "--set", "codec.0.bits=3").startswith("--set codec.0.bits=3: ")
    assert "nowhere.yaml" in refusal("recipe", "validate", "nowhere.yaml")
    assert tq("recipe", "validate").code == 2


def test_the_schema_is_one_for_editors() -> None:
    document = done("recipe", "schema").document
    assert document["$schema"].endswith("schema")
    assert set(document["required"]) == {"name", "codecs"}
    assert "bits" in json.dumps(document)


def test_list_names_every_packaged_recipe() -> None:
    rows = done("recipe", "list", "--json").document["recipes"]
    text = done("recipe", "list").out
    assert {"smoke", "quickstart"} <= {row["name"] for row in rows}
    for row in rows:
        assert row["description"] in text
        assert Path(row["file"]).is_file()


def test_the_page_shows_a_recipe_and_changes_that_are_right(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(name: .*?)```", page, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(example)
    assert len(done("recipe", "validate", "mine.yaml", "--json", folder=tmp_path).document["codecs"]) == 10
    changes = re.findall(r"^--set '?(\S+?=(?:\[.*?\]|\S+?))'?(?: +#.*)?$", page, re.MULTILINE)
    assert len(changes) == 8
    for change in changes:
        done("recipe", "validate", "smoke", "--set", change)
    (tmp_path / "mine.yaml").write_text(example.replace("    bits:", "    bit:"))
    for words, shown in re.findall(r"^\$ tq (recipe validate .*)\ntq: (.*)$", page, re.MULTILINE):
        assert refusal(*words.split(" "), folder=tmp_path) == shown


def _check_known(measure: MeasureName, document: dict[str, Any]) -> None:
    """What a gate can ask for is what the measure gives, total and layer by layer."""
    (codec,) = (codec for codec in document["codecs"] if codec["codec"] == CODEC)
    known = METRICS[measure]
    total = set(codec["total"]) | {name for of in codec["by_tensor"].values() for name in of}
    assert {name for name in total if not name.endswith("worst_layer")} == set(known)
    layers = {name for row in codec["layers"] for name in row["metrics"]}
    assert layers <= {name for name, of in known.items() if of.layers}
    if measure != "perplexity":
        assert layers == {name for name, of in known.items() if of.layers}
    for tensor in ("keys", "values"):
        assert set(codec["by_tensor"].get(tensor, {})) <= {name for name, of in known.items() if tensor in of.tensors}


def test_gates_know_the_metrics_of_every_measure(tmp_path: Path) -> None:
    capture = make_capture(tmp_path / "capture")
    codec = ["--codec", CODEC, "--json"]
    for measure in ("distortion", "attention", "memory"):
        _check_known(measure, done("eval", measure, capture, *codec).document)
    there = workplace()
    run = ["eval", "perplexity", there / "model", "--dataset", there / "book.txt", "--windows", 2, "--tokens", 96]
    more = ["--recent", 4, "--rechunk", 32, "--per-layer", "--out", tmp_path / "run", *codec]
    _check_known("perplexity", done(*run, *more).document)
