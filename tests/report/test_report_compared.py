from __future__ import annotations

import math

import pytest
from made_reports import failure, gate, made_run

from tqcli.report.compared import compared, families, judged_by, standing
from tqcli.report.figures import byte_size, figure, value_text
from tqcli.report.layers import blocks
from tqcli.report.run import RunCodec, RunResult
from tqcli.report.verdict import verdict


def standings(run: RunResult) -> dict[str, str]:
    codecs = compared(run)
    return {codec.name: standing(codec, codecs, judged_by(run)) for codec in codecs}


def test_codecs_are_ranked_among_those_of_their_bytes_or_fewer() -> None:
    assert standings(made_run()) == {
        "turboquant-mse@2": "best",
        "affine@2": "8 times turboquant-mse@2",
        "turboquant-mse@4": "best",
        "affine@4": "8 times turboquant-mse@4",
        "fp16": "floor",
    }


def test_codecs_whose_intervals_overlap_are_level() -> None:
    errors = {"turboquant-mse@4": 0.10, "affine@4": 0.11}
    run = made_run(errors, error=errors.__getitem__)
    assert standings(run)["affine@4"] == "level with turboquant-mse@4"
    run = made_run(errors, error=errors.__getitem__, spread=0.01)
    assert standings(run)["affine@4"] == "1.1 times turboquant-mse@4"


def test_what_is_infinite_is_never_best() -> None:
    errors = {"affine@2": math.inf, "affine@3": 0.2, "affine@4": math.inf}
    run = made_run(errors, error=errors.__getitem__, control=None, spread=None)
    assert standings(run) == {"affine@2": "", "affine@3": "best", "affine@4": ""}
    assert "affine@3 has a mean KL of 0.200" in verdict(run).sentences[0]
    run = made_run(["affine@2", "affine@4"], error=lambda _: math.inf, spread=None)
    assert set(standings(run).values()) == {""}
    assert verdict(run).sentences == ["No codec has a mean KL that is a finite number."]


def test_two_percent_more_bytes_are_the_same_bytes() -> None:
    errors = {"affine@4": 1.0, "turboquant-mse@4.08": 0.1}
    assert standings(made_run(errors, error=errors.__getitem__))["affine@4"] == "10 times turboquant-mse@4.08"
    errors = {"affine@4": 1.0, "turboquant-mse@4.1": 0.1}
    assert standings(made_run(errors, error=errors.__getitem__))["affine@4"] == "best"


@pytest.mark.parametrize(
    ("measures", "by"),
    [
        (["perplexity", "attention"], ("perplexity", "kl_mean")),
        (["distortion", "attention"], ("attention", "attention_error")),
        (["distortion", "memory"], ("distortion", "relative_mse")),
        (["memory"], None),
    ],
)
def test_the_divergence_judges_else_attention_else_distortion(measures: list[str], by: tuple[str, str] | None) -> None:
    assert judged_by(made_run(measures=measures)) == by


def test_families_join_what_differs_in_bits_alone() -> None:
    names = ["turboquant-mse@2", "turboquant-mse@4", "turboquant-mse@4,scale=plain", "turboquant-mse@4/2", "identity"]
    names += ["qjl@3 | affine@3", "qjl@4 | affine@4", "affine@4,center=rope"]
    found = {family.label: [c.name for c in family.members] for family in families(compared(made_run(names)))}
    assert found == {
        "turboquant-mse": ["turboquant-mse@2", "turboquant-mse@4"],
        "turboquant-mse@4,scale=plain": ["turboquant-mse@4,scale=plain"],
        "turboquant-mse@4/2": ["turboquant-mse@4/2"],
        "qjl | affine": ["qjl@3 | affine@3", "qjl@4 | affine@4"],
        "affine@4,center=rope": ["affine@4,center=rope"],
    }


def test_families_of_one_tensor_hold_what_treats_it_alike_once() -> None:
    names = ["turboquant-mse@2", "turboquant-mse@4/2", "qjl@4 | turboquant-mse@4", "affine@4 | identity"]
    codecs = compared(made_run(names))
    assert {f.label: len(f.members) for f in families(codecs, "keys")} == {
        "turboquant-mse": 2,
        "qjl@4": 1,
        "affine@4": 1,
    }
    assert {f.label: len(f.members) for f in families(codecs, "values")} == {"turboquant-mse": 2}


def test_other_bits_of_some_layers_are_another_family() -> None:
    run = made_run(["turboquant-mse@2", "turboquant-mse@4"])
    run.codecs[1] = RunCodec(name="turboquant-mse@4", codec="turboquant-mse@4", sinks=4, recent=0, layer_bits="0:8")
    assert [family.label for family in families(compared(run))] == ["turboquant-mse@2", "turboquant-mse@4"]


def test_what_a_measure_ran_besides_is_compared_too() -> None:
    run = made_run()
    del run.codecs[-1]
    assert [codec.name for codec in compared(run)][-1] == "fp16"


def test_the_worst_layer_and_head_are_found() -> None:
    run = made_run()
    for block in blocks(run, compared(run)):
        for row in block.rows:
            assert row.worst is not None
            assert row.worst.layer == 1
            assert row.worst.over_median == pytest.approx(10)
            if block.strip.measure == "perplexity":
                assert row.worst.head is None
            else:
                assert row.worst.head is not None
                assert row.worst.head[:2] == (1, 1)
    assert not any(row.codec.floor for block in blocks(run, compared(run)) for row in block.rows)


@pytest.mark.parametrize(
    ("verdicts", "status", "sentence"),
    [
        (["pass"], "passed", "The only gate passed."),
        (["inconclusive"], "inconclusive", "The only gate is inconclusive."),
        (["pass", "pass"], "passed", "All 2 gates passed."),
        (["inconclusive", "inconclusive"], "inconclusive", "All 2 gates are inconclusive."),
        (["pass", "fail"], "failed", "Of 2 gates, 1 failed and 1 passed."),
        (
            ["pass", "inconclusive", "inconclusive", "fail"],
            "failed",
            "Of 4 gates, 1 failed, 2 are inconclusive and 1 passed.",
        ),
    ],
)
def test_the_gates_are_one_sentence(verdicts: list[str], status: str, sentence: str) -> None:
    found = verdict(made_run(gates=[gate(v) for v in verdicts]))
    assert (found.status, found.sentences[0]) == (status, sentence)


def test_failed_steps_are_told_and_make_a_run_incomplete() -> None:
    found = verdict(made_run(failures=[failure(), failure(step="capture", codec=None)], gates=[gate("pass")]))
    assert found.status == "incomplete"
    assert found.sentences[1] == "2 steps failed: perplexity of affine@4, capture."


def test_the_finding_names_the_best_at_the_controls_bytes() -> None:
    assert verdict(made_run()).sentences == [
        "At about the bytes of the control affine@4 or fewer, turboquant-mse@4 is best: a mean KL of 0.00276 "
        "(0.00249 to 0.00304) nats at 4.250 effective bits, against the control's 0.0221 (0.0199 to 0.0243) nats at "
        "4.250 effective bits: 8 times less."
    ]


@pytest.mark.parametrize(
    ("error", "words"),
    [(0.5, "none is clearly better"), (5.0, "none is better"), (math.inf, "none is better")],
)
def test_the_finding_says_when_nothing_beats_the_control(error: float, words: str) -> None:
    errors = {"affine@4": 0.5, "qjl@4": error}
    assert words in verdict(made_run(errors, error=errors.__getitem__)).sentences[0]


def test_the_finding_without_a_control_or_errors() -> None:
    assert verdict(made_run(control=None)).sentences[0].startswith("turboquant-mse@4 has a mean KL of 0.00276")
    assert "fewest bytes: 2.250 effective bits, 7.11 times less" in verdict(made_run(measures=["memory"])).sentences[0]
    assert verdict(made_run(measures=[])).sentences == ["Nothing was measured."]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (math.inf, "infinite"),
        (-math.inf, "-infinite"),
        (math.nan, "not a number"),
        (0.0142244, "0.0142"),
        (0.00099999, "0.00100"),
        (3.598, "3.60"),
        (12345.6, "12346"),
        (3.9e-12, "3.90e-12"),
        (1e7, "1.00e7"),
        (-0.5, "-0.500"),
    ],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_units_choose_the_form() -> None:
    assert byte_size(3.02e9) == "3.02 GB"
    assert byte_size(17) == "17 B"
    assert value_text("bytes_resident", "bytes", 6.37e6) == "6.37 MB"
    assert value_text("ppl_delta_percent", "%", 1.483) == "+1.48"
    assert value_text("ppl_delta_percent", "%", -0.001) == "0.00"
    assert value_text("same_top1", "1", 0.93887) == "93.89"
    assert value_text("logit_correlation", "1", 0.99991) == "0.999910"
