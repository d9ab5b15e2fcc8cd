"""Two runs against each other, metric by metric: what differs, and what got worse.

"Different" is what lies beyond chance: where both intervals are known, those that don't overlap; a value without an
interval is taken for a point. That asks for more than a test of paired windows would, so small changes may be missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tqcli.report.basis import BasisDifference, basis_differences, measures_of
from tqcli.report.run import RunResult
from tqcli.report.schema import Metric, Metrics, Result

NOISE = 1e-6
"""Relative difference of values up to which they are the same: float32 rounds to 6e-8, and sums add to that."""
NOISE_NEAR_ZERO = 1e-9
"""Absolute difference up to which values are the same: a model against itself, re-chunked, comes to 4e-12 nats."""
VARYING = ("tokens_per_second", "peak_bytes")
"""Metrics that differ from run to run on one machine; compared only where they are named."""
_SIZES = ("bits_nominal", "bits_effective", "bytes_", "ratio")
UNCOMPRESSED = "uncompressed"
"""The codec under which the uncompressed model's metrics are compared."""
EVERY = "*"
Key = tuple[str, str, str, str]
"""Measure, codec, where, metric."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class Change(_Record):
    """A metric that differs between two runs."""

    measure: str
    codec: str
    where: str
    """`total`, `keys, total`, `layer 3`, `values, layer 3`."""
    metric: str
    unit: str
    a: Metric
    b: Metric
    relative: float | None
    """(b - a) / |a|; infinite from 0, None where one isn't a finite number."""
    better: bool | None
    """Whether b is the better one; None where neither direction is."""
    regression: bool
    """Worse by more than the tolerance."""

    @property
    def is_total(self) -> bool:
        """Whether this is of all layers together."""
        return self.where.endswith("total")


class Comparison(_Record):
    """Everything that two runs have in common, and what they have not."""

    kind: Literal["diff"] = "diff"
    a: str
    b: str
    tolerance: float
    basis: list[BasisDifference]
    """Where the runs themselves differ: model, text, settings, environment."""
    compared: int
    """Metrics that both have, on all levels."""
    equal: int
    """How many of these are the same, but for rounding; the others are different, or within their intervals."""
    changes: list[Change]
    """Those that are different, in totals first, the largest regressions first."""
    only_a: list[str] = Field(default_factory=list)
    only_b: list[str] = Field(default_factory=list)
    """Measures, codecs or metrics that only one of them has a value of."""
    failures_b: list[str] = Field(default_factory=list)
    """What of b could not be measured, and why."""
    not_compared: list[str] = Field(default_factory=list)
    """Metrics that vary from run to run."""

    @property
    def regressions(self) -> list[Change]:
        """What is worse by more than the tolerance."""
        return [change for change in self.changes if change.regression]

    @property
    def is_worse(self) -> bool:
        """Whether b is worse by more than the tolerance, or lacks what a has."""
        return bool(self.regressions or self.only_a)

    def to_json(self) -> str:
        """The JSON document that `--format json` prints."""
        return self.model_dump_json(indent=1)


def compare(
    a: RunResult | Result,
    b: RunResult | Result,
    tolerance: float = 0.0,
    metric: str = EVERY,
    names: tuple[str, str] = ("A", "B"),
) -> Comparison:
    """Compares totals, keys and values, and layers of two results; b is judged against a.

    tolerance: how much worse b may be, relative to a's value, without being a regression. metric: which metrics, with *
    and ?. names: what the runs are called.
    """
    ours, theirs = _metrics(a, metric), _metrics(b, metric)
    both = [key for key in ours if key in theirs]
    steady = {key for key in (*ours, *theirs) if metric != EVERY or key[-1] not in VARYING}
    compared = [key for key in both if key in steady]
    changes = [change for key in compared if (change := _change(key, ours[key], theirs[key], tolerance))]
    return Comparison(
        a=names[0],
        b=names[1],
        tolerance=tolerance,
        basis=basis_differences(a, b),
        compared=len(compared),
        equal=sum(_same(_value(ours[key]), _value(theirs[key])) for key in compared),
        changes=sorted(changes, key=_rank),
        only_a=_only([key for key in ours if key in steady], theirs),
        only_b=_only([key for key in theirs if key in steady], ours),
        failures_b=_failures(b),
        not_compared=sorted({key[-1] for key in both} - {key[-1] for key in compared}),
    )


def _metrics(of: RunResult | Result, pattern: str) -> dict[Key, Metric]:
    """Every metric that has a value."""
    return {
        (measure, codec, where, name): metric
        for measure, result in measures_of(of).items()
        for codec, where, metrics in _places(result)
        for name, metric in metrics.items()
        if metric.value is not None and fnmatchcase(name, pattern)
    }


def _places(result: Result) -> Iterator[tuple[str, str, Metrics]]:
    """Codec, where and metrics."""
    yield UNCOMPRESSED, "total", result.baseline
    for codec in result.codecs:
        yield codec.codec, "total", codec.total
        for tensor, metrics in codec.by_tensor.items():
            yield codec.codec, f"{tensor}, total", metrics
        for row in codec.layers:
            yield codec.codec, row.place, row.metrics


def _change(key: Key, a: Metric, b: Metric, tolerance: float) -> Change | None:
    """None where nothing differs."""
    before, after = _value(a), _value(b)
    if _same(before, after) or _overlap(a, b):
        return None
    relative = None
    if math.isfinite(before) and math.isfinite(after):
        relative = (after - before) / abs(before) if before else math.copysign(math.inf, after)
    better = None
    if math.isnan(before) or math.isnan(after):
        better = math.isnan(before)
    elif b.higher_is_better is not None:
        better = (after > before) == b.higher_is_better
    measure, codec, where, metric = key
    return Change(
        measure=measure,
        codec=codec,
        where=where,
        metric=metric,
        unit=b.unit,
        a=a,
        b=b,
        relative=relative,
        better=better,
        regression=better is False and (relative is None or abs(relative) > tolerance),
    )


def _value(metric: Metric) -> float:
    assert metric.value is not None  # `_metrics` leaves out those without
    return metric.value


def _same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=NOISE, abs_tol=NOISE_NEAR_ZERO) or (math.isnan(a) and math.isnan(b))


def _overlap(a: Metric, b: Metric) -> bool:
    """Whether the difference may be chance. What isn't finite in one of them alone isn't."""
    if not (math.isfinite(_value(a)) and math.isfinite(_value(b))):
        return False
    (a_low, a_high), (b_low, b_high) = _ends(a), _ends(b)
    return a_low <= b_high and b_low <= a_high


def _ends(metric: Metric) -> tuple[float, float]:
    if metric.ci_low is None or metric.ci_high is None:
        return _value(metric), _value(metric)
    return metric.ci_low, metric.ci_high


def _rank(change: Change) -> tuple[bool, bool, bool, bool, float]:
    """Totals first; of them errors before sizes, which a codec's bits mostly decide; then the worst."""
    size = math.inf if change.relative is None else abs(change.relative)
    is_size = change.metric.startswith(_SIZES)
    return not change.is_total, is_size, not change.regression, change.better is not False, -size


def _failures(of: RunResult | Result) -> list[str]:
    failures = of.failures if isinstance(of, RunResult) else []
    return [f"{one.step}{f' of {one.codec}' if one.codec else ''}: {one.error}" for one in failures]


def _only(ours: list[Key], theirs: dict[Key, Metric]) -> list[str]:
    """What one has and the other lacks, as a whole where that is so: a measure, a codec of it, a layer, a metric."""
    known = {key[:depth] for key in theirs for depth in range(1, len(key) + 1)}
    missing = [key for key in ours if key not in theirs]
    shortest = [next(key[:d] for d in range(1, len(key) + 1) if key[:d] not in known) for key in missing]
    return [": ".join((part[0], ", ".join(part[1:]))).removesuffix(": ") for part in dict.fromkeys(shortest)]
