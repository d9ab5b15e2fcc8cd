"""What two runs were made of and with, where that differs: it says how far their numbers can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tqcli.report.run import RunResult
from tqcli.report.schema import Result

Part = Literal["model", "text", "calibration", "settings", "environment"]
_TEXT_IDENTITY = "text_sha256"
_MODEL_IDENTITY = "weights_sha256"
_DASH = "none"
_SHOWN = 12
"""Characters of a hash that are shown."""


class BasisDifference(BaseModel):
    """One thing that two runs don't have in common."""

    model_config = ConfigDict(extra="forbid")

    part: Part
    what: str
    a: str
    b: str


def basis_differences(a: RunResult | Result, b: RunResult | Result) -> list[BasisDifference]:
    """Where models, texts, calibration, settings and environments differ, in this order."""
    found = [
        *_differing("model", "model ", a.model, b.model),
        *_differing("text", "text ", a.dataset, b.dataset),
    ]
    if isinstance(a, RunResult) and isinstance(b, RunResult):
        found += _differing("calibration", "calibration ", a.calibration or {}, b.calibration or {})
        found += _differing_codecs(a, b)
    ours, theirs = measures_of(a), measures_of(b)
    for name in ours:
        if name in theirs:
            found += _differing("settings", f"{name} ", ours[name].settings, theirs[name].settings)
    return found + _differing("environment", "", a.environment.model_dump(), b.environment.model_dump())


def measures_of(result: RunResult | Result) -> dict[str, Result]:
    """The measures of a run by name; of what `tq eval` printed, that one."""
    return result.measures if isinstance(result, RunResult) else {result.kind: result}


def incomparable(differences: list[BasisDifference]) -> str:
    """Why numbers can't be set against each other at all; empty where they can."""
    named = {of.what: of for of in differences}
    if of := named.get(f"model {_MODEL_IDENTITY}"):
        return f"it is of a model with other weights ({of.b}, not {of.a})"
    if of := named.get(f"text {_TEXT_IDENTITY}"):
        return f"it is of another text ({of.b}, not {of.a})"
    return ""


def _differing_codecs(a: RunResult, b: RunResult) -> list[BasisDifference]:
    theirs = {codec.name: codec for codec in b.codecs}
    found = []
    for codec in a.codecs:
        if codec.name in theirs:
            found += _differing("settings", f"{codec.name} ", codec.model_dump(), theirs[codec.name].model_dump())
    return found


def _differing(part: Part, prefix: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[BasisDifference]:
    return [
        BasisDifference(part=part, what=f"{prefix}{key}", a=_shown(key, a.get(key)), b=_shown(key, b.get(key)))
        for key in dict.fromkeys((*a, *b))
        if a.get(key) != b.get(key)
    ]


def _shown(key: str, value: Any) -> str:
    if value is None:
        return _DASH
    return str(value)[:_SHOWN] if key.endswith("sha256") else str(value)
