"""What is certain of a value, a ratio or a difference, whatever the numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import metric

from tqcli.recipes.estimates import Estimate, Kind, Unclear, difference, ratio, verdict, worst

numbers = st.floats(-1e6, 1e6)
widths = st.floats(0, 1e6)
kinds = st.sampled_from(["min", "max"])


@st.composite
def estimates(draw: st.DrawFn, above: float = -1e6) -> Estimate:
    low, value, high = sorted(draw(st.floats(above, 1e6)) for _ in range(3))
    return draw(st.sampled_from([Estimate(value, low, high), Estimate(value)]))


@given(estimates(), widths, widths, kinds, numbers)
def test_a_wider_interval_never_makes_a_verdict_surer(
    of: Estimate, below: float, above: float, kind: Kind, bound: float
) -> None:
    low, high = of.ends
    before, after = verdict(of, kind, bound), verdict(Estimate(of.value, low - below, high + above), kind, bound)
    assert after in (before, "inconclusive")


@given(estimates(), kinds, numbers)
def test_a_verdict_tells_on_which_side_of_the_bound_the_interval_lies(of: Estimate, kind: Kind, bound: float) -> None:
    keeps = [end <= bound if kind == "max" else end >= bound for end in of.ends]
    assert verdict(of, kind, bound) == {(True, True): "pass", (False, False): "fail"}.get(tuple(keeps), "inconclusive")


@given(estimates(), kinds, numbers)
def test_a_mirrored_gate_comes_out_the_same(of: Estimate, kind: Kind, bound: float) -> None:
    low, high = of.ends
    other: Kind = "min" if kind == "max" else "max"
    assert verdict(Estimate(-of.value, -high, -low), other, -bound) == verdict(of, kind, bound)


@given(estimates(), estimates(above=1e-3), st.floats(0, 1), st.floats(0, 1))
def test_a_ratio_covers_the_quotients_of_all_numbers_within(a: Estimate, b: Estimate, at: float, there: float) -> None:
    low, high = ratio(a, b, "b").ends
    (a_low, a_high), (b_low, b_high) = a.ends, b.ends
    quotient = (a_low + at * (a_high - a_low)) / (b_low + there * (b_high - b_low))
    slack = 1e-9 * max(1.0, abs(quotient))
    assert low - slack <= quotient <= high + slack


@given(estimates(), estimates(), st.floats(0, 1), st.floats(0, 1))
def test_a_difference_covers_those_of_all_numbers_within(a: Estimate, b: Estimate, at: float, there: float) -> None:
    low, high = difference(a, b, "b").ends
    (a_low, a_high), (b_low, b_high) = a.ends, b.ends
    apart = (a_low + at * (a_high - a_low)) - (b_low + there * (b_high - b_low))
    assert low - 1e-6 <= apart <= high + 1e-6


def test_ratios_by_hand() -> None:
    assert ratio(Estimate(3, 2, 4), Estimate(2, 1, 2), "b") == Estimate(1.5, 1, 4)
    assert ratio(Estimate(3), Estimate(2), "b") == Estimate(1.5)
    assert ratio(Estimate(3), Estimate(2, 1, 4), "b") == Estimate(1.5, 0.75, 3)
    assert ratio(Estimate(-1, -2, 1), Estimate(2, 1, 4), "b") == Estimate(-0.5, -2, 1)


def test_a_ratio_to_what_may_be_zero_has_no_end() -> None:
    assert ratio(Estimate(2, 1, 3), Estimate(1, 0, 2), "b") == Estimate(2, 0.5, math.inf)
    assert ratio(Estimate(2, 1, 3), Estimate(1, -1, 2), "b") == Estimate(2, -math.inf, math.inf)


@pytest.mark.parametrize(("value", "word"), [(0.0, "0"), (-2.0, "negative"), (math.inf, "infinite")])
def test_a_ratio_to_nothing_sensible_is_refused_in_words(value: float, word: str) -> None:
    with pytest.raises(Unclear, match=rf"affine's kl is {word}"):
        ratio(Estimate(1, 0, 2), Estimate(value), "affine's kl")


def test_infinite_against_infinite_is_no_difference() -> None:
    with pytest.raises(Unclear, match="infinite"):
        difference(Estimate(math.inf), Estimate(math.inf), "b")


def test_an_infinite_value_fails_on_the_wrong_side_alone() -> None:
    assert verdict(Estimate(math.inf, 0.1, math.inf), "max", 5) == "fail"
    assert verdict(Estimate(math.inf), "min", 5) == "pass"
    assert verdict(Estimate(-math.inf, -math.inf, 9), "min", 5) == "fail"


def test_an_interval_without_one_of_its_ends_is_none() -> None:
    for ends in ((math.nan, 2), (0.5, math.nan), (0.5, None), (math.nan, math.nan)):
        assert Estimate.of(metric(1, *ends), "x") == Estimate(1)
    assert Estimate.of(metric(1, 0.5, math.inf), "x") == Estimate(1, 0.5, math.inf)
    for value in (None, math.nan):
        with pytest.raises(Unclear, match=r"^x (has no value|is not a number)"):
            Estimate.of(metric(value), "x")


def test_the_worst_is_as_uncertain_as_the_least_certain() -> None:
    several = [Estimate(1, 0, 2), Estimate(3, 2.5, 3.5), Estimate(2.9, 1, 8)]
    assert worst(several, higher_is_better=False) == (1, Estimate(3, 2.5, 8))
    assert worst(several, higher_is_better=True) == (0, Estimate(1, 0, 2))
    assert worst([Estimate(1), Estimate(4)], higher_is_better=False) == (1, Estimate(4))
