"""Two runs against each other: different beyond the intervals, better or worse."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import MODEL, TEXT, codec, failure, measure, metric, row, run

from tqcli.report.compare import Change, compare
from tqcli.report.run import RunResult
from tqcli.report.schema import Metric


def with_metric(of: Metric, name: str = "kl_mean") -> RunResult:
    return run(measure("perplexity", codec("mse@4", {name: of})))


def change(a: Metric, b: Metric, tolerance: float = 0) -> Change | None:
    changes = compare(with_metric(a), with_metric(b), tolerance).changes
    return changes[0] if changes else None


def test_intervals_that_overlap_are_no_difference() -> None:
    assert change(metric(1, 0.9, 1.1), metric(1.2, 1.1, 1.3)) is None
    found = change(metric(1, 0.9, 1.1), metric(1.3, 1.2, 1.4))
    assert found is not None
    assert (found.better, found.regression, found.relative) == (False, True, pytest.approx(0.3))
    assert change(metric(1, 0.9, 1.1), metric(1.05)) is None
    assert change(metric(1, 0.9, 1.1), metric(1.2)) is not None


def test_an_interval_with_an_end_that_is_not_a_number_is_none() -> None:
    found = change(metric(1, math.nan, 3), metric(2, 0.5, math.nan))
    assert found is not None
    assert (found.regression, found.a.ci_low, found.a.ci_high) == (True, None, None)


def test_without_intervals_float_noise_is_no_difference() -> None:
    assert change(metric(1), metric(1 + 5e-7)) is None
    assert change(metric(1), metric(1 + 5e-6)) is not None
    assert change(metric(0, 0, 0), metric(4e-12, 3e-12, 5e-12)) is None


@pytest.mark.parametrize(("higher", "better"), [(True, True), (False, False), (None, None)])
def test_the_direction_is_the_metrics(higher: bool | None, better: bool | None) -> None:
    up = change(metric(1, higher_is_better=higher), metric(2, higher_is_better=higher))
    down = change(metric(2, higher_is_better=higher), metric(1, higher_is_better=higher))
    assert up is not None and down is not None
    assert up.better is better
    assert down.better is (None if better is None else not better)
    assert up.regression == (better is False)


def test_a_regression_within_the_tolerance_is_none() -> None:
    for tolerance, regression in ((0.05, True), (0.2, False)):
        found = change(metric(1), metric(1.1), tolerance)
        assert found is not None
        assert (found.better, found.regression) == (False, regression)
    better = change(metric(1), metric(0.5))
    assert better is not None and not better.regression


@pytest.mark.parametrize(
    ("a", "b", "better"), [(1, math.inf, False), (math.inf, 1, True), (1, math.nan, False), (math.nan, 1, True)]
)
def test_what_is_not_finite_is_no_chance_whatever_the_intervals(a: float, b: float, better: bool) -> None:
    found = change(metric(a, 0, math.inf), metric(b, 0, math.inf), tolerance=9)
    assert found is not None
    assert (found.better, found.regression, found.relative) == (better, not better, None)


def test_any_change_from_zero_is_beyond_the_tolerance() -> None:
    found = change(metric(0), metric(0.1), tolerance=9)
    assert found is not None
    assert (found.relative, found.regression) == (math.inf, True)


@pytest.mark.parametrize("value", [math.inf, math.nan, 0.0, 3.5])
def test_the_same_value_is_no_difference(value: float) -> None:
    assert change(metric(value), metric(value)) is None


@given(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.floats(0, 10), st.floats(0, 10))
def test_turned_around_a_difference_stays_one_and_what_was_worse_is_better(
    a: float, b: float, x: float, y: float
) -> None:
    there = change(metric(a, a - x, a + x), metric(b, b - y, b + y))
    back = change(metric(b, b - y, b + y), metric(a, a - x, a + x))
    assert (there is None) == (back is None)
    if there is not None and back is not None:
        assert there.better is not back.better


def test_every_level_is_compared_and_totals_come_first() -> None:
    def layered(by: float) -> Any:
        rows = [row(layer, "keys", relative_mse=metric(by * (layer + 1))) for layer in (0, 1)]
        one = codec("mse@4", {"relative_mse": metric(by)}, rows, keys={"relative_mse": metric(by * 2)})
        return run(measure("distortion", one, baseline={"ppl": metric(by)}))

    comparison = compare(layered(1), layered(2))
    assert comparison.compared == 5
    assert [(of.codec, of.where) for of in comparison.changes] == [
        ("uncompressed", "total"),
        ("mse@4", "total"),
        ("mse@4", "keys, total"),
        ("mse@4", "keys, layer 0"),
        ("mse@4", "keys, layer 1"),
    ]
    assert len(comparison.regressions) == 5


def test_the_largest_regressions_come_first_and_improvements_last() -> None:
    def several(**values: float) -> RunResult:
        return run(measure("perplexity", codec("mse@4", {name: metric(value) for name, value in values.items()})))

    comparison = compare(several(a=1, b=1, c=1, d=1), several(a=1.1, b=0.5, c=1.4, d=1.01), tolerance=0.05)
    assert [of.metric for of in comparison.changes] == ["c", "a", "d", "b"]


def test_what_only_one_has_is_listed_as_a_whole() -> None:
    both = codec(
        "mse@4", {"kl_mean": metric(1), "ppl": metric(9)}, [row(0, kl_mean=metric(1)), row(1, kl_mean=metric(1))]
    )
    a = run(measure("perplexity", both, codec("qjl@4", {"kl_mean": metric(1)})), measure("memory", codec("mse@4")))
    fewer = codec("mse@4", {"kl_mean": metric(1), "ppl": metric(None)}, [row(0, kl_mean=metric(1))])
    b = run(measure("perplexity", fewer), measure("attention", codec("mse@4", {"attention_kl": metric(1)})))
    comparison = compare(a, b)
    assert comparison.only_a == ["perplexity: mse@4, total, ppl", "perplexity: mse@4, layer 1", "perplexity: qjl@4"]
    assert comparison.only_b == ["attention"]
    assert comparison.compared == comparison.equal == 2
    assert comparison.is_worse and not comparison.regressions
    assert compare(b, b).is_worse is compare(fewer_of(a), a).is_worse is False


def fewer_of(of: RunResult) -> RunResult:
    """Without its last codec."""
    perplexity = of.measures["perplexity"]
    less = perplexity.model_copy(update={"codecs": perplexity.codecs[:-1]})
    return of.model_copy(update={"measures": {"perplexity": less}})


def test_what_varies_and_is_missing_is_not_worse() -> None:
    speed = {"tokens_per_second": metric(100, higher_is_better=True)}
    a, b = (run(measure("perplexity", codec("mse@4", {"kl_mean": metric(1)} | of))) for of in (speed, {}))
    assert compare(a, b).only_a == [] and not compare(a, b).is_worse
    assert compare(a, b, metric="*s*").is_worse


def test_failures_of_what_is_now_are_told() -> None:
    a, b = (with_metric(metric(1)).model_copy(update={"failures": of}) for of in ([], [failure()]))
    assert compare(a, b).failures_b == ["perplexity of qjl@4: no memory"]
    assert compare(b, a).failures_b == []


def test_what_varies_from_run_to_run_is_compared_where_it_is_named() -> None:
    a, b = (with_metric(metric(value, higher_is_better=True), "tokens_per_second") for value in (100, 50))
    assert compare(a, b).not_compared == ["tokens_per_second"]
    assert compare(a, b).compared == 0
    assert len(compare(a, b, metric="tokens*").regressions) == 1


def test_a_pattern_chooses_metrics() -> None:
    a, b = (
        run(measure("perplexity", codec("mse@4", {"kl_mean": metric(by), "kl_p99": metric(by), "ppl": metric(by)})))
        for by in (1, 2)
    )
    assert [of.metric for of in compare(a, b, metric="kl_*").changes] == ["kl_mean", "kl_p99"]


def test_a_run_and_a_plain_result_are_compared_by_measure() -> None:
    plain = measure("perplexity", codec("mse@4", {"kl_mean": metric(2)}))
    comparison = compare(with_metric(metric(1)), plain)
    assert [of.metric for of in comparison.regressions] == ["kl_mean"]


def test_other_models_texts_settings_and_versions_are_told() -> None:
    one = measure("perplexity", codec("mse@4", {"kl_mean": metric(1)}), settings={"chunk": 256})
    a = run(one)
    other = one.model_copy(update={"settings": {"chunk": 64}})
    environment = a.environment.model_copy(update={"tq": "0.2"})
    b = run(other, model=MODEL | {"weights_sha256": "c" * 64}, dataset=TEXT | {"seed": 1}, environment=environment)
    b.codecs[0].recent = 0
    told = [(of.part, of.what, of.a, of.b) for of in compare(a, b).basis]
    assert told == [
        ("model", "model weights_sha256", "a" * 12, "c" * 12),
        ("text", "text seed", "0", "1"),
        ("settings", "mse@4 recent", "32", "0"),
        ("settings", "perplexity chunk", "256", "64"),
        ("environment", "tq", "0.1", "0.2"),
    ]
    assert compare(a, a).basis == []


def test_errors_are_told_before_sizes() -> None:
    a, b = (
        run(measure("perplexity", codec("mse@4", {"bits_effective": metric(bits), "kl_mean": metric(kl)})))
        for bits, kl in ((4.0, 0.1), (8.0, 0.05))
    )
    assert [(change.metric, change.better) for change in compare(a, b).changes] == [
        ("kl_mean", True),
        ("bits_effective", False),
    ]
