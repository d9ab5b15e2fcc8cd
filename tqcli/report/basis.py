"""What two runs were made of and with, where that differs: it says how far their numbers can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tqcli.report.run import RunResult
from tqcli.report.schema import Result

Part = Literal["model", "text", "calibration", "settings", "environment"]
_TEXT_IDENTITY = "text_sha256"
_TOKENS_IDENTITY = "tokens_sha256"
_MODEL_IDENTITY = "weights_sha256"
_SETUP = ("codec", "sinks", "recent", "layer_bits")
"""What makes a run's codec that codec."""
_WINDOWS = ("windows", "tokens", "seed", _TOKENS_IDENTITY)
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


def incomparable(a: RunResult | Result, b: RunResult | Result) -> str:
    """Why numbers of b can't be set against those of a at all; empty where they can.

    Windows of the same tokens are the same text, whatever the files are called.
    """
    if of := _differing("model", "", *({_MODEL_IDENTITY: run.model.get(_MODEL_IDENTITY)} for run in (a, b))):
        return f"it is of a model with other weights ({of[0].b}, not {of[0].a})"
    if not _same_tokens(a.dataset, b.dataset) and (
        of := _differing("text", "", *({_TEXT_IDENTITY: run.dataset.get(_TEXT_IDENTITY)} for run in (a, b)))
    ):
        return f"it is of another text ({of[0].b}, not {of[0].a})"
    return ""


def other_codec(a: RunResult, b: RunResult, name: str) -> str:
    """How b's codec of a name is another one than a's; empty where it isn't, or one of them doesn't know it."""
    ours, theirs = ({codec.name: codec for codec in run.codecs}.get(name) for run in (a, b))
    if ours is None or theirs is None:
        return ""
    differing = _differing("settings", "", *(of.model_dump(include=set(_SETUP)) for of in (ours, theirs)))
    return ", ".join(f"{of.what} {of.b}, not {of.a}" for of in differing)


def other_windows(a: Result, b: Result) -> str:
    """How b's windows are others than a's, on which values differ by that alone; empty where they are the same."""
    if _same_tokens(a.dataset, b.dataset):
        return ""
    windows = ({key: of.dataset.get(key) for key in _WINDOWS} for of in (a, b))
    differing = {of.what: f"{of.what} {of.b}, not {of.a}" for of in _differing("text", "", *windows)}
    if len(differing) > 1:
        differing.pop(_TOKENS_IDENTITY, None)
    return ", ".join(differing.values())


def _same_tokens(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.get(_TOKENS_IDENTITY) is not None and a[_TOKENS_IDENTITY] == b.get(_TOKENS_IDENTITY)


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
    if value is None or value == "":
        return _DASH
    return str(value)[:_SHOWN] if key.endswith("sha256") else str(value)
