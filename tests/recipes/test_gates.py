"""Gates: what they match, what they compare, and that nothing passes unseen."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_runs import MODEL, TEXT, codec, failure, measure, metric, row, run

from tqcli.recipes.gates import exit_code, judge
from tqcli.recipes.schema import Gate
from tqcli.report.run import GateResult, RunResult


def study(**more: Any) -> RunResult:
    """Two codecs and a control in two measures."""
    perplexity = measure(
        "perplexity",
        codec("mse@4", {"kl_mean": metric(0.02, 0.016, 0.024), "same_top1": metric(0.9, higher_is_better=True)}),
        codec("qjl@4", {"kl_mean": metric(0.2, 0.18, 0.22), "same_top1": metric(0.7, higher_is_better=True)}),
        codec("affine@4", {"kl_mean": metric(0.1, 0.09, 0.11)}),
    )
    distortion = measure("distortion", *(_distorted(name, by) for name, by in (("mse@4", 1), ("affine@4", 4))))
    return run(perplexity, distortion, control="affine@4", **more)


def _distorted(name: str, by: float) -> Any:
    def error(value: float) -> Any:
        return metric(by * value, by * value * 0.9, by * value * 1.1, unit="1")

    rows = [
        row(layer, tensor, relative_mse=error(0.01 * (layer + 1) + (tensor == "values") * 0.005))
        for layer in (0, 3)
        for tensor in ("keys", "values")
    ]
    return codec(name, {"relative_mse": error(0.03)}, rows, keys={"relative_mse": error(0.02)})


def one(result: RunResult, baseline: RunResult | None = None, **gate: Any) -> GateResult:
    (judged,) = judge([Gate(**{"metric": "kl_mean", "codec": "mse@4"} | gate)], result, baseline)
    return judged


@pytest.mark.parametrize(
    ("bound", "verdict"),
    [
        ({"max": 0.03}, "pass"),
        ({"max": 0.024}, "pass"),
        ({"max": 0.02}, "inconclusive"),
        ({"max": 0.015}, "fail"),
        ({"min": 0.03}, "fail"),
        ({"min": 0.02}, "inconclusive"),
        ({"min": 0.016}, "pass"),
    ],
)
def test_a_gate_is_judged_on_its_interval(bound: dict[str, float], verdict: str) -> None:
    judged = one(study(), **bound)
    assert (judged.verdict, judged.value, judged.ci_low, judged.ci_high) == (verdict, 0.02, 0.016, 0.024)
    assert (judged.measure, judged.where, judged.unit, judged.compare) == ("perplexity", "total", "nats", "value")


def test_turning_a_bound_over_turns_the_verdict_over() -> None:
    """The same gate, kept and crossed."""
    assert exit_code(judge([Gate(metric="kl_mean", max=0.3)], study())) == 0
    crossed = judge([Gate(metric="kl_mean", max=0.1)], study())
    assert [(of.codec, of.verdict) for of in crossed] == [("mse@4", "pass"), ("qjl@4", "fail")]
    assert exit_code(crossed) == 1


def test_without_an_interval_the_value_decides_and_that_is_said() -> None:
    judged = one(study(), metric="same_top1", min=0.8)
    assert (judged.verdict, judged.ci_low) == ("pass", None)
    assert "no interval" in judged.reason
    assert one(study(), metric="same_top1", min=0.95).verdict == "fail"


def test_a_codec_left_out_is_all_but_the_control() -> None:
    assert [of.codec for of in judge([Gate(metric="kl_mean", max=1)], study())] == ["mse@4", "qjl@4"]
    assert [of.codec for of in judge([Gate(metric="kl_mean", max=1, codec="*@4")], study())] == [
        "mse@4",
        "qjl@4",
        "affine@4",
    ]
    assert one(study(), codec="affine@4", max=1).codec == "affine@4"


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        ({"codec": "mse@5"}, "did you mean mse@4"),
        ({"codec": "x*"}, "no codec is called x*"),
        ({"metric": "kl_meen"}, "did you mean kl_mean"),
        ({"metric": "kl_mean", "measure": "memory"}, "memory was not measured"),
        ({"metric": "kl_mean", "layer": 3}, "no measure gives kl_mean, layer 3; there is one in total"),
        ({"metric": "kl_mean", "tensor": "keys"}, "keys, total; there is one in total"),
        ({"metric": "relative_mse", "layer": 7}, "by layer"),
        ({"metric": "relative_mse", "measure": "distortion", "tensor": "values"}, "for keys in total"),
        ({"metric": "relative_mse", "codec": "qjl@4"}, "distortion has no codec that is called qjl@4"),
        ({"against": "rvq@4"}, "no codec that is called rvq@4"),
        ({"against": "mse@4"}, "isn't compared with itself"),
        ({"against": "baseline"}, "no baseline run"),
    ],
)
def test_what_cannot_be_judged_fails_with_a_reason(gate: dict[str, Any], words: str) -> None:
    judged = one(study(), **{"max": 1.0} | gate)
    assert (judged.verdict, judged.value) == ("fail", None)
    assert words in judged.reason
    assert exit_code([judged]) == 1


def test_a_gate_for_no_codec_but_the_control_fails() -> None:
    alone = run(measure("perplexity", codec("fp16", {"kl_mean": metric(0)})), control="fp16")
    (judged,) = judge([Gate(metric="kl_mean", max=1)], alone)
    assert judged.verdict == "fail"
    assert "no codec but the control" in judged.reason


@pytest.mark.parametrize(("value", "words"), [(None, "has no value"), (math.nan, "not a number")])
def test_a_metric_without_a_number_fails(value: float | None, words: str) -> None:
    judged = one(run(measure("perplexity", codec("mse@4", {"kl_mean": metric(value)}))), max=1)
    assert judged.verdict == "fail"
    assert words in judged.reason


def test_an_infinite_divergence_fails() -> None:
    broken = run(measure("perplexity", codec("mse@4", {"kl_mean": metric(math.inf, 0.1, math.inf)})))
    assert one(broken, max=1).verdict == "fail"
    perfect = run(measure("distortion", codec("mse@4", {"snr_db": metric(math.inf, higher_is_better=True)})))
    assert one(perfect, metric="snr_db", min=20).verdict == "pass"


def test_the_step_that_failed_is_the_reason() -> None:
    broken = study(failures=[failure("out of memory", "new@4")], names=["mse@4", "new@4"])
    judged = one(broken, codec="new@4", max=1)
    assert judged.verdict == "fail"
    assert judged.reason == "perplexity failed: out of memory"
    nothing = run(failures=[failure("no network", None, "capture")], names=["mse@4"])
    for gate in ({}, {"measure": "perplexity"}):
        assert one(nothing, max=1, **gate).reason.endswith("capture failed: no network")


def test_a_metric_of_several_measures_needs_its_measure() -> None:
    bits = {"bits_effective": metric(4.3, unit="bits/element")}
    result = run(measure("distortion", codec("mse@4", bits)), measure("memory", codec("mse@4", bits)))
    assert "distortion and memory give bits_effective" in one(result, metric="bits_effective", max=5).reason
    judged = one(result, metric="bits_effective", measure="memory", max=5)
    assert (judged.verdict, judged.measure) == ("pass", "memory")


def test_levels_and_tensors() -> None:
    def gated(**gate: Any) -> tuple[str, float | None]:
        judged = one(study(), metric="relative_mse", max=1, **gate)
        assert judged.verdict == "pass", judged.reason
        return judged.where, judged.value

    assert gated() == ("total", 0.03)
    assert gated(tensor="both") == ("total", 0.03)
    assert gated(tensor="keys") == ("keys, total", 0.02)
    assert gated(level="worst_layer") == ("values, layer 3 (worst)", 0.045)
    assert gated(level="worst_layer", tensor="both") == ("values, layer 3 (worst)", 0.045)
    assert gated(level="worst_layer", tensor="keys") == ("keys, layer 3 (worst)", 0.04)
    assert gated(layer=0, tensor="keys") == ("keys, layer 0", 0.01)
    assert gated(layer=0) == ("values, layer 0 (the worse)", 0.015)


def test_the_worst_layer_is_the_lowest_where_more_is_better() -> None:
    rows = [row(layer, cosine=metric(value, higher_is_better=True)) for layer, value in ((0, 0.99), (5, 0.8), (9, 0.9))]
    judged = one(run(measure("attention", codec("mse@4", {}, rows))), metric="cosine", level="worst_layer", min=0.85)
    assert (judged.where, judged.value, judged.verdict) == ("layer 5 (worst)", 0.8, "fail")


@pytest.mark.parametrize(("bound", "value"), [({"max": 1}, 0.4), ({"min": -1}, -0.3)])
def test_where_no_direction_is_better_the_bound_says_which_layer_is_worst(bound: Any, value: float) -> None:
    rows = [row(layer, ip_bias=metric(bias, higher_is_better=None)) for layer, bias in enumerate((0.4, -0.3, 0.1))]
    judged = one(run(measure("distortion", codec("mse@4", {}, rows))), metric="ip_bias", level="worst_layer", **bound)
    assert judged.value == value


def test_a_layer_that_is_less_bad_but_less_certain_keeps_the_gate_open() -> None:
    rows = [row(0, kl_mean=metric(0.015, 0.014, 0.016)), row(1, kl_mean=metric(0.0149, 0.01, 0.03))]
    judged = one(run(measure("perplexity", codec("mse@4", {}, rows))), level="worst_layer", max=0.02)
    assert (judged.where, judged.verdict) == ("layer 0 (worst)", "inconclusive")


def test_against_another_codec() -> None:
    judged = one(study(), against="affine@4", max=0.3)
    assert judged.verdict == "pass"
    assert judged.value == pytest.approx(0.2)
    assert (judged.ci_low, judged.ci_high) == (pytest.approx(0.016 / 0.11), pytest.approx(0.024 / 0.09))
    assert (judged.unit, judged.compare, judged.against) == ("x", "ratio", "affine@4")
    assert one(study(), against="affine@4", max=0.2).verdict == "inconclusive"
    apart = one(study(), against="affine@4", compare="difference", max=0)
    assert (apart.verdict, apart.unit, apart.value) == ("pass", "nats", pytest.approx(-0.08))
    assert [of.codec for of in judge([Gate(metric="kl_mean", codec="*4", against="mse@4", max=9)], study())] == [
        "qjl@4",
        "affine@4",
    ]


def test_each_layer_is_compared_with_the_same_layer() -> None:
    def layers(*values: float) -> Any:
        return codec("mse@4", {}, [row(layer, kl_mean=metric(value)) for layer, value in enumerate(values)])

    now, before = run(measure("perplexity", layers(0.1, 0.02))), run(measure("perplexity", layers(0.1, 0.01)))
    judged = one(now, before, against="baseline", level="worst_layer", max=1.1)
    assert (judged.verdict, judged.where, judged.value) == ("fail", "layer 1 (worst)", 2)
    shorter, worst = run(measure("perplexity", layers(0.1))), {"level": "worst_layer", "max": 2}
    assert "the baseline has no kl_mean for layer 1" in one(now, shorter, against="baseline", **worst).reason
    assert "also has layer 1" in one(shorter, now, against="baseline", **worst).reason


def test_against_the_baseline() -> None:
    assert one(study(), study(), against="baseline", max=1.6).verdict == "pass"
    assert one(study(), study(), against="baseline", max=1.1).verdict == "inconclusive"
    better = study()
    better.measures["perplexity"].codecs[0].total["kl_mean"] = metric(0.002, 0.0016, 0.0024)
    assert one(study(), better, against="baseline", max=1.1).verdict == "fail"
    assert "has no perplexity" in one(study(), run(names=["mse@4"]), against="baseline", max=1).reason
    del better.measures["perplexity"].codecs[0]
    assert "the baseline's mse@4" in one(study(), better, against="baseline", max=1).reason


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"model": MODEL | {"weights_sha256": "c"}}, "other weights"), ({"dataset": TEXT | {"text_sha256": "c"}}, "text")],
)
def test_a_baseline_of_something_else_is_no_baseline(changed: dict[str, Any], words: str) -> None:
    judged = one(study(), study(**changed), against="baseline", max=9)
    assert judged.verdict == "fail"
    assert words in judged.reason


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"codec": "affine@2"}, "codec affine@2, not mse@4"),
        ({"sinks": 0}, "sinks 0, not 4"),
        ({"sinks": 0, "recent": 64}, "sinks 0, not 4, recent 64, not 32"),
        ({"layer_bits": "0:8"}, "layer_bits 0:8, not none"),
    ],
)
def test_a_baseline_whose_codec_only_has_the_name_in_common_is_none(changed: dict[str, Any], words: str) -> None:
    before = study()
    before.codecs[0] = before.codecs[0].model_copy(update=changed)
    judged = one(study(), before, against="baseline", max=9)
    assert (judged.verdict, judged.value) == ("fail", None)
    assert f"the baseline's mse@4 is another codec: {words}" in judged.reason
    assert one(study(), before, codec="qjl@4", against="baseline", max=9).verdict == "pass"


def windowed(tokens_sha256: str | None = None, text: str = "b", **changed: Any) -> RunResult:
    hashes = {"text_sha256": text, "tokens_sha256": tokens_sha256}
    dataset = TEXT | {"windows": 4, "tokens": 96} | hashes | changed
    measured = codec("mse@4", {"kl_mean": metric(1, 0.9, 1.1)})
    return run(measure("perplexity", measured, dataset=dataset), dataset=dataset)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"windows": 8}, "windows 8, not 4"),
        ({"tokens": 32, "tokens_sha256": "d"}, "tokens 32, not 96"),
        ({"tokens_sha256": "d"}, "tokens_sha256 d, not none"),
    ],
)
def test_a_baseline_of_other_windows_is_compared_with_a_remark(changed: dict[str, Any], words: str) -> None:
    judged = one(windowed(), windowed(**changed), against="baseline", max=2)
    assert (judged.verdict, judged.reason) == ("pass", f"the baseline has other windows: {words}")
    assert one(windowed(), windowed(), against="baseline", max=2).reason == ""


def test_the_same_tokens_are_the_same_text_in_a_file_of_another_name() -> None:
    assert one(windowed("d"), windowed("d", text="e"), against="baseline", max=2).verdict == "pass"
    assert "another text" in one(windowed("d"), windowed("f", text="e"), against="baseline", max=2).reason


def test_a_ratio_to_zero_fails_in_words() -> None:
    lossless = run(measure("perplexity", codec("mse@4", {"kl_mean": metric(0, 0, 0)})))
    judged = one(study(), lossless, against="baseline", max=2)
    assert judged.verdict == "fail"
    assert "is 0, so there is no ratio to it; use compare: difference" in judged.reason
    assert one(study(), lossless, against="baseline", compare="difference", max=0.03).verdict == "pass"


def test_floors_that_the_measure_added_can_be_named() -> None:
    floor = run(measure("perplexity", codec("mse@4", {}), codec("identity", {"kl_mean": metric(0)})), names=["mse@4"])
    assert one(floor, codec="identity", max=0).verdict == "pass"
    for pattern in ("*", "*?"):
        assert [of.codec for of in judge([Gate(metric="kl_mean", codec=pattern, max=0)], floor)] == ["mse@4"]


def test_brackets_in_a_pattern_stand_for_themselves() -> None:
    one_of = judge([Gate(metric="kl_mean", codec="[mq]*", max=1)], study())
    assert [(of.codec, of.verdict) for of in one_of] == [("[mq]*", "fail")]
    named = run(measure("perplexity", codec("new [1]", {"kl_mean": metric(0)})))
    assert one(named, codec="new [?]", max=0).verdict == "pass"


def test_exit_codes() -> None:
    passed, failed, unclear = (one(study(), max=bound) for bound in (0.03, 0.01, 0.02))
    assert exit_code([]) == exit_code([passed]) == 0
    assert exit_code([passed, unclear]) == 3
    assert exit_code([unclear, failed, passed]) == 1


def test_the_gates_of_the_documentation_are_valid() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
    gates = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])["gates"]
    assert len([Gate(**gate) for gate in gates]) > 5
