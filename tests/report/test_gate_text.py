"""Gates on a terminal."""

from __future__ import annotations

import math

import pytest
from made_runs import judged

from tqcli.report.distinct import figures
from tqcli.report.gates import by_severity, counted, gate_lines


def test_a_line_names_metric_value_interval_bound_and_verdict() -> None:
    assert gate_lines([judged()]) == [
        "pass  kl_mean of turboquant-mse@4, total: 0.002 (0.0016 to 0.0024) nats, at most 0.02"
    ]


def test_verdicts_stand_in_a_column() -> None:
    lines = gate_lines(
        [
            judged("fail", value=None, ci_low=None, ci_high=None, reason="perplexity was not measured"),
            judged("inconclusive", against="affine@4", compare="ratio", unit="x", reason="the bound lies\ninside"),
            judged("pass", kind="min", ci_low=None, ci_high=None, against="baseline", compare="difference"),
        ]
    )
    assert lines == [
        "fail          kl_mean of turboquant-mse@4, total, at most 0.02: perplexity was not measured",
        "inconclusive  kl_mean of turboquant-mse@4 over that of affine@4, total: 0.002 (0.0016 to 0.0024) x, "
        "at most 0.02; the bound lies inside",
        "pass          kl_mean of turboquant-mse@4 minus that of the baseline, total: 0.002 nats, at least 0.02",
    ]


def test_digits_tell_a_value_from_its_bound() -> None:
    line = gate_lines([judged("fail", value=0.020001, ci_low=0.0200001, ci_high=0.021)])[0]
    assert "0.020001 (0.0200001 to 0.021) nats, at most 0.02" in line


@pytest.mark.parametrize(
    ("values", "unit", "shown"),
    [
        ([1.23456, 1.23456], "1", ["1.23", "1.23"]),
        ([1.0, 1.0 + 1e-9], "", ["1", "1.000000001"]),
        ([6890123, 7e6], "bytes", ["6,890,123", "7,000,000"]),
        ([math.inf, -math.inf, math.nan], "", ["infinite", "-infinite", "NaN"]),
    ],
)
def test_figures(values: list[float], unit: str, shown: list[str]) -> None:
    assert figures(values, unit) == shown


def test_counts_and_order() -> None:
    gates = [judged(), judged("inconclusive"), judged("fail"), judged()]
    assert counted(gates) == "1 gate failed, 1 is inconclusive, 2 passed"
    assert counted([judged("inconclusive")] * 2) == "2 gates are inconclusive"
    assert counted([]) == "no gates"
    assert [of.verdict for of in by_severity(gates)] == ["fail", "inconclusive", "pass", "pass"]
