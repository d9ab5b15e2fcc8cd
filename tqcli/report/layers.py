"""What was measured layer by layer: the values of the heat strips, and the worst layers and heads."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from tqcli.report.compared import Compared
from tqcli.report.run import RunResult

_RANGE = 1e-3


@dataclass(frozen=True)
class Strip:
    """One metric that a layer has."""

    measure: str
    metric: str
    tensor: str
    title: str
    unit: str
    higher_is_better: bool = False

    def badness(self, value: float) -> float:
        """More is worse: the error itself, or what a correlation lacks to 1."""
        return 1 - value if self.higher_is_better else value


STRIPS = (
    Strip("distortion", "relative_mse", "keys", "Keys: relative MSE", "1"),
    Strip("distortion", "relative_mse", "values", "Values: relative MSE", "1"),
    Strip("attention", "attention_error", "both", "Attention: output error", "1"),
    Strip("attention", "logit_correlation", "both", "Attention: logit correlation", "1", higher_is_better=True),
    Strip("perplexity", "kl_mean", "both", "Mean KL with this layer alone compressed", "nats"),
)


@dataclass(frozen=True)
class Worst:
    """Where a codec is worst."""

    layer: int
    value: float
    over_median: float | None
    """How many times the median layer's error; of a correlation, what they lack to 1."""
    head: tuple[int, int, float] | None
    """Layer, head and value of the worst head."""


@dataclass(frozen=True)
class StripRow:
    """One codec's layers in a strip."""

    codec: Compared
    values: dict[int, float | None]
    """By layer; a layer that isn't there was skipped."""
    worst: Worst | None


@dataclass(frozen=True)
class Block:
    """One strip with the codecs that have it, fewest bits first."""

    strip: Strip
    layers: list[int]
    rows: list[StripRow]
    low: float | None
    high: float | None
    """The ends of the rows' common scale: the largest finite badness, and the least above 0, though not under a
    thousandth of it, or one codec of many bits would leave the others no shades. None without any."""


def blocks(result: RunResult, codecs: list[Compared]) -> list[Block]:
    """The strips that were measured. What codes nothing (identity, fp16) is left out where anything else is there."""
    found = []
    coded = [codec for codec in codecs if not codec.floor] or codecs
    for strip in STRIPS:
        rows = [row for codec in coded if (row := _row(result, strip, codec))]
        if not rows:
            continue
        layers = sorted({layer for row in rows for layer in row.values})
        every = [strip.badness(v) for row in rows for v in row.values.values() if v is not None]
        scaled = [bad for bad in every if 0 < bad < math.inf]
        high = max(scaled, default=None)
        found.append(Block(strip, layers, rows, max(min(scaled), high * _RANGE) if high else None, high))
    return found


def _row(result: RunResult, strip: Strip, codec: Compared) -> StripRow | None:
    measure = result.measures.get(strip.measure)
    of = next((c for c in measure.codecs if c.codec == codec.name), None) if measure else None
    if of is None:
        return None
    values: dict[int, float | None] = {}
    heads: list[tuple[int, int, float]] = []
    for layer in of.layers:
        metric = layer.metrics.get(strip.metric)
        if layer.tensor != strip.tensor or metric is None:
            continue
        values[layer.layer] = metric.value
        for number, head in enumerate(layer.heads):
            value = head[strip.metric].value if strip.metric in head else None
            if value is not None and not math.isnan(value):
                heads.append((layer.layer, number, value))
    return StripRow(codec, values, _worst(strip, values, heads)) if values else None


def _worst(strip: Strip, values: dict[int, float | None], heads: list[tuple[int, int, float]]) -> Worst | None:
    numbers = {layer: value for layer, value in values.items() if value is not None and not math.isnan(value)}
    if not numbers:
        return None
    layer = max(numbers, key=lambda layer: strip.badness(numbers[layer]))
    median = statistics.median(strip.badness(value) for value in numbers.values())
    bad = strip.badness(numbers[layer])
    over = bad / median if 0 < median < math.inf and math.isfinite(bad) else None
    return Worst(layer, numbers[layer], over, max(heads, key=lambda head: strip.badness(head[2]), default=None))
