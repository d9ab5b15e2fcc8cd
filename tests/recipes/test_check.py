"""What the schema doesn't know of: gates, controls and texts that don't go with the rest of the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
from writing import PLAIN, read, refused

from tqcli.errors import InputError
from tqcli.recipes.load import load_recipe

ALL = """name: mine
codecs: [affine@4, fp16, qjl@1]
control: fp16
baseline: runs/before
capture: {layers: 0-3}
measures: {distortion: {}, attention: {}, memory: {}, perplexity: {}}
"""


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (
            "metric: kl_mea, max: 1",
            "distortion or attention or memory or perplexity gives no 'kl_mea'; did you mean 'kl_mean'",
        ),
        ("metric: kl_mean, measure: memory, max: 1", "memory gives no 'kl_mean'; perplexity would"),
        ("metric: ratio, max: 1", "ratio comes of distortion and attention and memory and perplexity; say which with"),
        ("metric: kl_mean, codec: affine@3, max: 1", "no codec is called 'affine@3'; did you mean 'affine@4'?"),
        (
            "metric: kl_mean, codec: qjl@1, max: 1",
            "no codec is called 'qjl@1'; did you mean 'qjl@1 | turboquant-mse@2'?",
        ),
        ("metric: kl_mean, against: afine@4, max: 1", "no codec is called 'afine@4'; did you mean 'affine@4'?"),
        ("metric: kl_mean, tensor: keys, max: 1", "kl_mean is of keys and values together; leave tensor out"),
        ("metric: ip_slope, min: 1", "ip_slope is of keys alone; add tensor: keys"),
        (
            "metric: kl_mean, level: worst_layer, max: 1",
            "perplexity is measured layer by layer with per_layer: true alone",
        ),
        ("metric: peak_bytes, measure: memory, layer: 3, max: 1", "peak_bytes is a total, not measured layer by layer"),
        ("metric: kl_mean_rechunked, max: 1", "kl_mean_rechunked takes perplexity's rechunk; add it to"),
        ("metric: attention_kl, layer: 4, max: 1", "layer 4 isn't captured; capture.layers is 0-3"),
    ],
)
def test_a_gate_that_asks_for_what_is_not_there(tmp_path: Path, gate: str, message: str) -> None:
    text = ALL + "gates:\n- {metric: attention_kl, max: 1}\n- {" + gate + "}\n"
    assert refused(tmp_path, text).startswith(f"mine.yaml:9: gates.1: {message}")


@pytest.mark.parametrize(
    "gate",
    [
        "metric: attention_kl, level: worst_layer, max: 1",
        "metric: attention_kl, layer: 3, against: baseline, max: 1",
        "metric: kl_mean, codec: qjl@1*, against: affine@4, compare: difference, max: 0",
        "metric: relative_mse, tensor: values, max: 1",
        "metric: relative_mse, tensor: both, level: worst_layer, max: 1",
        "metric: ratio, measure: memory, tensor: keys, min: 3",
        "metric: bytes_nominal_8192, max: 1",
        "metric: ip_slope, tensor: keys, layer: 0, max: 1",
    ],
)
def test_a_gate_that_can_be_judged(tmp_path: Path, gate: str) -> None:
    assert len(read(tmp_path, ALL + "gates: [{" + gate + "}]\n").gates) == 1


def test_a_gate_on_a_floor_that_the_measure_adds(tmp_path: Path) -> None:
    gate = "gates: [{metric: kl_mean, codec: identity, max: 0}]\n"
    assert len(read(tmp_path, PLAIN + "measures: {perplexity: {rechunk: 64}}\n" + gate).gates) == 1
    assert "no codec is called 'identity'" in refused(tmp_path, PLAIN + "measures: {perplexity: {}}\n" + gate)


@pytest.mark.parametrize("value", ["true", "'0.5'"])
def test_a_foretold_value_is_a_number(tmp_path: Path, value: str) -> None:
    text = "name: a\ncodecs: [{codec: affine@4, predicted: {kl_mean: " + value + "}}]\n"
    assert "must be a number" in refused(tmp_path, text)


def test_a_gate_of_a_measure_that_is_left_out(tmp_path: Path) -> None:
    text = PLAIN + "gates: [{metric: ppl, measure: perplexity, max: 1}]\n"
    assert "perplexity is not measured; add it to measures, which has attention, memory" in refused(tmp_path, text)


def test_a_gate_against_a_baseline_that_is_not_named(tmp_path: Path) -> None:
    text = PLAIN + "gates:\n- metric: attention_kl\n  max: 1\n  against: baseline\n"
    assert refused(tmp_path, text).startswith("mine.yaml:6: gates.0: the recipe names no baseline; ")


def test_a_baseline_of_the_command_line_does_without_the_recipes(tmp_path: Path) -> None:
    gated = PLAIN + "gates: [{metric: attention_kl, max: 1, against: baseline}]\n"
    for text in (gated, gated + "baseline: runs/old\n"):
        file = tmp_path / "mine.yaml"
        file.write_text(text)
        assert load_recipe(str(file), baseline=Path("runs/new")).baseline == "runs/new"


def test_a_baseline_that_no_gate_compares_with(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(PLAIN + "gates: [{metric: attention_kl, max: 1}]\n")
    with pytest.raises(InputError, match="is against the baseline, so --baseline runs/new would do nothing; leave it"):
        load_recipe(str(file), baseline=Path("runs/new"))


def test_a_gate_that_is_about_no_codec(tmp_path: Path) -> None:
    assert "the control alone" in refused(
        tmp_path, PLAIN + "control: affine@4\ngates: [{metric: attention_kl, max: 1}]"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("control: afine@4\n", "3: control: no codec of this recipe is called 'afine@4'; did you mean 'affine@4'?"),
        ("measures: {}\n", "3: measures is empty"),
        ("measures: {memory: null}\n", "3: measures is empty"),
        ("layer_bits: 1;2\n", "3: '1;2' in layer_bits"),
        ("capture:\n  layers: 7-3\n", "4: capture.layers: '7-3'"),
        ("calibration:\n  seed: 0\n", "4: calibration draws the same windows as dataset"),
        (
            "measures:\n  perplexity:\n    stride: 1024\n",
            "5: measures.perplexity.stride must be less than the 1024 tokens",
        ),
        ("recent: 1020\n", "2: codecs.0: 4 sinks and 1020 recent tokens leave nothing to compress of windows of 1024"),
        ("measures: {perplexity: {tokens: 36}}\n", "2: codecs.0: 4 sinks and 32 recent tokens leave nothing"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path: Path, text: str, message: str) -> None:
    assert refused(tmp_path, PLAIN + text).startswith(f"mine.yaml:{message}")


def test_a_codec_that_needs_another_text(tmp_path: Path) -> None:
    text = "name: a\ncodecs:\n- fp16\n- vecinfer@2\n"
    assert refused(tmp_path, text).startswith("mine.yaml:4: codecs.1: vecinfer@2 learns from another text; ")
    read(tmp_path, text + "calibration: {}\n")


def test_a_codec_that_a_comma_has_cut(tmp_path: Path) -> None:
    assert "in quotes, a comma in [...] ends it" in refused(tmp_path, "name: a\ncodecs: [affine@4,group=32]\n")


def test_two_codecs_of_one_name_are_told_at_the_second(tmp_path: Path) -> None:
    text = "name: a\ncodecs:\n- affine@4\n- fp16\n- {codec: affine, bits: [3, 4]}\n"
    assert refused(tmp_path, text).startswith("mine.yaml:5: codecs.2: two codecs are called 'affine@4'; ")
