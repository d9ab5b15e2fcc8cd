"""The schema of a run: what `tq run` makes of a recipe, and `result.json` holds. Versioned."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tqcli.report.schema import Environment, Result

RUN_VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class RunCodec(_Record):
    """One codec of a run, with all that it was run with."""

    name: str
    """What the results and gates call it."""
    codec: str
    """As on the command line."""
    sinks: int
    recent: int
    layer_bits: str
    """Other bits of some layers, as on the command line; empty for none."""
    predicted: dict[str, float] = Field(default_factory=dict)
    """Metrics of perplexity that were foretold by `tq plan`."""


class GateResult(_Record):
    """A gate, for one codec."""

    metric: str
    codec: str
    measure: str
    where: str
    """`total`, `layer 27`, `keys, total`, `values, layer 3 (worst)` ..."""
    value: float | None
    """The metric, or its ratio to or difference from what it is compared with; None where there is none."""
    ci_low: float | None = None
    ci_high: float | None = None
    unit: str
    kind: Literal["min", "max"]
    bound: float
    against: str | None = None
    """The codec, or `baseline`, that it is compared with."""
    compare: Literal["value", "ratio", "difference"] = "value"
    verdict: Literal["pass", "fail", "inconclusive"]
    reason: str = ""
    """Why it can't be judged, or isn't clear."""


class Failure(_Record):
    """A step that failed; the rest went on."""

    step: str
    """A measure, or what it needs: `capture`, `calibration`."""
    codec: str | None
    error: str


class RunResult(_Record):
    """Everything that a run measured."""

    version: int = RUN_VERSION
    kind: Literal["run"] = "run"
    name: str
    description: str = ""
    recipe: dict[str, Any]
    """As it was run, defaults filled in."""
    environment: Environment
    model: dict[str, Any]
    dataset: dict[str, Any]
    calibration: dict[str, Any] | None = None
    control: str | None = None
    """The codec that others are compared with."""
    codecs: list[RunCodec]
    measures: dict[str, Result]
    """By name: distortion, attention, memory, perplexity. Codecs are called by their names in `codecs`."""
    gates: list[GateResult] = Field(default_factory=list)
    failures: list[Failure] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    def to_json(self) -> str:
        """The JSON document that `--json` prints."""
        return self.model_dump_json(indent=1)
