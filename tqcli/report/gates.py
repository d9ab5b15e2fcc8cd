"""Judged gates in words: one line each, and their parts for tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from tqcli.report.distinct import figures, with_unit
from tqcli.report.run import GateResult

_BOUNDS = {"max": "at most", "min": "at least"}
_COUNTED: tuple[tuple[Literal["fail", "inconclusive", "pass"], str, str], ...] = (
    ("fail", "failed", "failed"),
    ("inconclusive", "is inconclusive", "are inconclusive"),
    ("pass", "passed", "passed"),
)
"""Verdicts, the worst first, and how one and how several are said to have it."""


def gate_lines(gates: Sequence[GateResult]) -> list[str]:
    """One line a gate, in their order, the verdicts in a column of their own."""
    width = max((len(gate.verdict) for gate in gates), default=0)
    return [f"{gate.verdict:<{width}}  {gate_text(gate)}" for gate in gates]


def gate_text(gate: GateResult) -> str:
    """What is gated, the value with its interval, the bound, and the reason where there is one; on one line."""
    if gate.value is None:
        return f"{subject(gate)}, {bound_text(gate)}: {_one_line(gate.reason)}"
    reason = f"; {_one_line(gate.reason)}" if gate.reason else ""
    return f"{subject(gate)}: {value_text(gate)}, {bound_text(gate)}{reason}"


def subject(gate: GateResult) -> str:
    """What is gated, for example `kl_mean of qjl@4 over that of affine@4, total`."""
    other = "the baseline" if gate.against == "baseline" else gate.against
    relation = {"value": "", "ratio": f" over that of {other}", "difference": f" minus that of {other}"}[gate.compare]
    return _one_line(f"{gate.metric} of {gate.codec}{relation}, {gate.where}")


def value_text(gate: GateResult) -> str:
    """The value with its interval and unit; empty where there is none."""
    if gate.value is None:
        return ""
    value, *ends, _ = _figures(gate)
    return with_unit(f"{value} ({' to '.join(ends)})" if ends else value, gate.unit)


def bound_text(gate: GateResult) -> str:
    """For example `at most 0.02`."""
    return f"{_BOUNDS[gate.kind]} {_figures(gate)[-1]}"


def counted(gates: Sequence[GateResult]) -> str:
    """How many gates came out how, for example `1 gate failed, 2 are inconclusive, 5 passed`."""
    if not gates:
        return "no gates"
    counts = Counter(gate.verdict for gate in gates)
    parts = [(counts[verdict], one if counts[verdict] == 1 else more) for verdict, one, more in _COUNTED]
    (number, words), *rest = [part for part in parts if part[0]]
    first = f"{number} {'gate' if number == 1 else 'gates'} {words}"
    return ", ".join([first, *(f"{number} {words}" for number, words in rest)])


def by_severity(gates: Sequence[GateResult]) -> list[GateResult]:
    """Failed ones first, then inconclusive ones."""
    order = [verdict for verdict, _, _ in _COUNTED]
    return sorted(gates, key=lambda gate: order.index(gate.verdict))


def _figures(gate: GateResult) -> list[str]:
    """The value and the ends of its interval where there are such, then the bound."""
    numbers = (gate.value, gate.ci_low, gate.ci_high)
    return figures([*(number for number in numbers if number is not None), gate.bound], gate.unit)


def _one_line(text: str) -> str:
    return " ".join(text.split())
