"""Small studies of a tiny model, to run in a folder of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from running import Outcome, tq, workplace


def recipe(folder: Path, **changes: Any) -> Path:
    """A recipe with all measures; changes replace its keys, and None removes one."""
    there = workplace()
    document = {
        "name": "small",
        "model": str(there / "model"),
        "dataset": {"spec": str(there / "book.txt"), "windows": 2, "tokens": 96},
        "capture": {"queries": 8},
        "codecs": ["turboquant-mse@4", "affine@4"],
        "control": "affine@4",
        "sinks": 1,
        "recent": 0,
        "measures": {"distortion": {}, "attention": {}, "memory": {}, "perplexity": {}},
        **changes,
    }
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in document.items() if value is not None}))
    return file


def run(folder: Path, *more: object, **changes: Any) -> Outcome:
    """`tq run` of such a recipe, in the folder."""
    return tq("run", recipe(folder, **changes), *more, folder=folder)


def result(folder: Path, name: str = "small") -> dict[str, Any]:
    """What the run wrote."""
    found: dict[str, Any] = json.loads((folder / "runs" / name / "result.json").read_text())
    return found


def steps_done(outcome: Outcome) -> list[str]:
    """The steps that a run told as done, such as `capture` and `distortion of affine@4`."""
    lines = [line.removeprefix("tq: ") for line in outcome.err.splitlines()]
    return [line.partition(" done in ")[0] for line in lines if " done in " in line]
