"""The result schema: what every measuring command returns and prints with --json. Versioned."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tqcli.kernels.runtime import Use

SCHEMA_VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class Metric(_Record):
    """One measured number. Intervals are 95 %; `n` counts what they were resampled over.

    An interval has two ends: where one is missing or NaN there is none, for gates, comparisons and reports alike.
    """

    value: float | None
    unit: str
    n: int | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    higher_is_better: bool | None = None

    @model_validator(mode="after")
    def _two_ends(self) -> Metric:
        if any(end is None or math.isnan(end) for end in (self.ci_low, self.ci_high)):
            self.ci_low = self.ci_high = None
        return self


Metrics = dict[str, Metric]


class LayerResult(_Record):
    """The keys or the values of one layer, or what comes of both."""

    layer: int
    tensor: Literal["keys", "values", "both"]
    codec: str
    center: str | None = None
    metrics: Metrics
    heads: list[Metrics] = Field(default_factory=list)
    """One for each KV head; for attention, one for each query head."""

    @property
    def place(self) -> str:
        """In words: `layer 3` for what comes of both, else `keys, layer 3`."""
        return ("" if self.tensor == "both" else f"{self.tensor}, ") + f"layer {self.layer}"


class SkippedTensor(_Record):
    """A tensor that was not compressed, and why. tensor is null where the whole layer is meant."""

    layer: int
    tensor: Literal["keys", "values"] | None
    reason: str


class CodecResult(_Record):
    """What one codec did to a capture."""

    codec: str
    total: Metrics
    by_tensor: dict[Literal["keys", "values"], Metrics]
    layers: list[LayerResult]
    skipped: list[SkippedTensor]
    notes: list[str] = Field(default_factory=list)


class Environment(_Record):
    """What the numbers were made with."""

    tq: str
    mlx: str
    python: str
    platform: str
    device: str
    """With the BLAS in use, where that is a CPU."""


class Result(_Record):
    """One measurement of one capture or model with one or more codecs."""

    version: int = SCHEMA_VERSION
    kind: Literal["distortion", "attention", "memory", "compress", "perplexity"]
    environment: Environment
    capture: str | None = None
    """The capture that was measured; null where a model was."""
    model: dict[str, Any]
    dataset: dict[str, Any]
    settings: dict[str, Any]
    backends: list[Use]
    """Which back-end each operation took, why and in how many calls."""
    baseline: Metrics = Field(default_factory=dict)
    """Of the uncompressed model, where one was run."""
    codecs: list[CodecResult]
    skipped_layers: list[SkippedTensor] = Field(default_factory=list)
    """Layers of the model that the capture doesn't hold, and why."""
    notes: list[str] = Field(default_factory=list)
    """What to know of the capture when reading the numbers."""

    def to_json(self) -> str:
        """The JSON document that `--json` prints."""
        return self.model_dump_json(indent=1)
