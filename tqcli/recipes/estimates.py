"""A measured value with its interval, and what can be said of two of them, or of one and a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tqcli.report.schema import Metric

Verdict = Literal["pass", "fail", "inconclusive"]
Kind = Literal["min", "max"]


class Unclear(Exception):
    """There is no value to judge; the message says why."""


@dataclass(frozen=True)
class Estimate:
    """A value, never NaN, and the ends of its 95 % interval, both None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, metric: Metric, what: str) -> Estimate:
        """Raises `Unclear` where there is no number."""
        if metric.value is None:
            raise Unclear(f"{what} has no value")
        if math.isnan(metric.value):
            raise Unclear(f"{what} is not a number (NaN)")
        return cls(metric.value, metric.ci_low, metric.ci_high)

    @property
    def ends(self) -> tuple[float, float]:
        """Of the interval; the value twice where there is none."""
        return (
            self.value if self.low is None else self.low,
            self.value if self.high is None else self.high,
        )

    @property
    def has_interval(self) -> bool:
        """Whether it is known how uncertain the value is."""
        return self.low is not None


def difference(a: Estimate, b: Estimate, other: str) -> Estimate:
    """The difference a - b, with the interval from a.low - b.high to a.high - b.low.

    Conservative: it covers whatever the two have to do with each other, and is wider than that of a paired bootstrap.
    `other` names b. Raises `Unclear` where b is infinite.
    """
    _check_finite(b, other)
    if not (a.has_interval or b.has_interval):
        return Estimate(a.value - b.value)
    (a_low, a_high), (b_low, b_high) = a.ends, b.ends
    return Estimate(a.value - b.value, _end(a_low - b_high, -math.inf), _end(a_high - b_low, math.inf))


def ratio(a: Estimate, b: Estimate, other: str) -> Estimate:
    """The quotient a / b for a positive b, from the least to the greatest one of numbers within the two intervals.

    Conservative, as `difference`. Where b's interval reaches 0 a quotient has no limit, and the interval
    no end. `other` names b. Raises `Unclear` where b is 0, negative or infinite.
    """
    _check_finite(b, other)
    if b.value == 0:
        raise Unclear(f"{other} is 0, so there is no ratio to it; use compare: difference")
    if b.value < 0:
        raise Unclear(f"{other} is negative ({b.value:.4g}), so a ratio to it tells nothing; use compare: difference")
    if not (a.has_interval or b.has_interval):
        return Estimate(a.value / b.value)
    (a_low, a_high), (b_low, b_high) = a.ends, b.ends
    if b_low < 0 or b_high <= 0:
        return Estimate(a.value / b.value, -math.inf, math.inf)
    low = _quotient(a_low, b_high if a_low >= 0 else b_low, -math.inf)
    high = _quotient(a_high, b_low if a_high >= 0 else b_high, math.inf)
    return Estimate(a.value / b.value, low, high)


def worst(estimates: Sequence[Estimate], higher_is_better: bool) -> tuple[int, Estimate]:
    """Which of several is worst, and the worst value with an interval from the worst lower to the worst upper end.

    So one that is less bad, but less certain, widens the interval. It isn't corrected for how many there are.
    """
    pick = min if higher_is_better else max
    index = pick(range(len(estimates)), key=lambda i: estimates[i].value)
    value = estimates[index].value
    if not any(of.has_interval for of in estimates):
        return index, Estimate(value)
    lows, highs = zip(*(of.ends for of in estimates), strict=True)
    return index, Estimate(value, pick(lows), pick(highs))


def verdict(of: Estimate, kind: Kind, bound: float) -> Verdict:
    """Whether the whole interval keeps the bound, none of it does, or it straddles the bound.

    Without an interval the value decides. A value that is infinite on the wrong side fails, whatever its interval says:
    some windows gave no sensible number at all.
    """
    low, high = of.ends
    if kind == "min":
        low, high, bound, value = -high, -low, -bound, -of.value
    else:
        value = of.value
    if value == math.inf:
        return "fail"
    if high <= bound:
        return "pass"
    return "fail" if low > bound else "inconclusive"


def _end(end: float, unbounded: float) -> float:
    return unbounded if math.isnan(end) else end


def _quotient(a: float, b: float, unbounded: float) -> float:
    """The quotient a / b for b >= 0, towards b = 0 from above."""
    if b == 0:
        return 0.0 if a == 0 else math.copysign(math.inf, a)
    return _end(a / b, unbounded)


def _check_finite(b: Estimate, other: str) -> None:
    if math.isinf(b.value):
        raise Unclear(f"{other} is infinite, so there is nothing to compare with")
