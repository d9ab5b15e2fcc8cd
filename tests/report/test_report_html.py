from __future__ import annotations

import math
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from documents import complaints, parse
from made_reports import MEASURES, failure, gate, made_run
from small_captures import write_capture

from tqcli.capture.store import open_capture
from tqcli.codecs.spec import parse_codec
from tqcli.compression.plan import CompressionPlan
from tqcli.evaluation.attention import evaluate_attention
from tqcli.evaluation.distortion import evaluate_distortion
from tqcli.evaluation.memory import evaluate_memory
from tqcli.report.html import SHADES, to_html
from tqcli.report.schema import Metric

HOSTILE = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;"


def lone(text: str) -> str:
    """All text of a document, white space as one space."""
    return parse(text).text


def heats(text: str) -> list[Any]:
    return [table for table in parse(text).all("table") if table.attributes.get("class") == "heat"]


@pytest.mark.parametrize("measure", MEASURES)
def test_a_run_of_one_measure_is_a_sound_document(measure: str) -> None:
    assert complaints(to_html(made_run(measures=[measure]))) == []


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"codecs": ["turboquant-mse@4"], "control": None},
        {"codecs": ["fp16"], "control": "fp16"},
        {"codecs": ["qjl@4 | turboquant-mse@4", "turboquant-mse@4/2", "affine@4"]},
        {"layers": 1, "bad_layer": 0},
        {"spread": None},
        {"measures": []},
        {"codecs": [], "control": None},
        {"error": lambda codec: math.inf},
        {"error": lambda codec: math.nan},
        {"error": lambda codec: 0.0},
        {"error": lambda codec: 1e-300},
        {"gates": [gate("pass"), gate("fail"), gate("inconclusive", value=None, ci_low=None, reason="not measured")]},
        {"failures": [failure(), failure(codec=None, step="capture")], "notes": ["a note"], "description": "Why."},
    ],
    ids=lambda settings: " ".join(settings) or "plain",
)
def test_any_run_is_a_sound_document(settings: dict[str, Any]) -> None:
    assert complaints(to_html(made_run(**settings))) == []


@pytest.mark.parametrize("values", [(1e308, 0.1), (1e308, 1.7e308), (5e-324, 1e308), (5e-324, 5e-324), (-1e308, 1.0)])
def test_numbers_at_the_ends_of_what_floats_hold_are_shown(values: tuple[float, float]) -> None:
    errors = dict(zip(("turboquant-mse@4", "affine@4"), values, strict=True))
    assert complaints(to_html(made_run(errors, error=errors.__getitem__))) == []


def test_a_run_that_measured_nothing_is_a_sound_document() -> None:
    assert complaints(to_html(made_run(measures=[], failures=[failure()], gates=[gate("fail")]))) == []


def test_what_a_run_is_called_stays_text() -> None:
    names = [f"{HOSTILE}{number}" for number in range(3)]
    run = made_run(
        names,
        control=names[0],
        name=HOSTILE,
        description=HOSTILE,
        notes=[HOSTILE],
        recipe={HOSTILE: HOSTILE},
        model={HOSTILE: HOSTILE},
        gates=[gate("fail", codec=HOSTILE, where=HOSTILE, reason=HOSTILE, against=HOSTILE)],
        failures=[failure(error=HOSTILE, step=HOSTILE, codec=HOSTILE)],
    )
    text = to_html(run)
    assert complaints(text) == []
    assert parse(text).one("h1").text.startswith(HOSTILE)
    assert "<script" not in text


def test_hundreds_of_layers_are_all_there() -> None:
    text = to_html(made_run(layers=400, bad_layer=333))
    assert complaints(text) == []
    first = heats(text)[0]
    assert len(list(first.one("thead").all("th"))) == 401
    outlined = [cell.attributes["title"] for cell in first.all("td") if "w" in cell.attributes["class"].split()]
    assert len(outlined) == 4
    assert all(title.startswith("layer 333: ") for title in outlined)


def test_thirty_layers_and_twelve_codecs_stay_small() -> None:
    codecs = [
        f"{name}@{bits}" for name in ("turboquant-mse", "turboquant-rvq", "vecinfer", "affine") for bits in (2, 3, 4)
    ]
    assert len(to_html(made_run(codecs, layers=30)).encode()) < 400_000


def test_the_sections_come_in_the_order_in_which_they_are_read() -> None:
    run = made_run(gates=[gate("fail")], failures=[failure()], notes=["a note"])
    document = parse(to_html(run))
    assert document.one("h1").text == "made failed"
    wanted = "summary pictures layers worst memory gates failures metrics codecs settings environment notes recipe"
    assert [h2.attributes["id"] for h2 in document.all("h2")] == wanted.split()


def test_every_cell_of_a_strip_holds_its_number_and_the_worst_is_outlined() -> None:
    tables = heats(to_html(made_run()))
    assert [t.one("caption").text.removesuffix(", by layer") for t in tables] == [
        "Keys: relative MSE",
        "Values: relative MSE",
        "Attention: output error",
        "Attention: logit correlation",
        "Mean KL with this layer alone compressed",
    ]
    for table in tables:
        for row in list(table.all("tr"))[1:]:
            cells = list(row.all("td"))
            assert [cell.text != "" for cell in cells] == [True] * 3
            assert ["w" in cell.attributes["class"].split() for cell in cells] == [False, True, False]
            assert all(cell.text in cell.attributes["title"] for cell in cells)


def test_a_block_has_one_scale_for_all_codecs() -> None:
    shades = {}
    for row in list(heats(to_html(made_run()))[0].all("tr"))[1:]:
        shades[row.one("th").text] = [int(cell.attributes["class"].split()[0][1:]) for cell in row.all("td")]
    assert shades["affine@2"][1] == SHADES - 1
    assert min(min(row) for row in shades.values()) == 0
    assert shades["turboquant-mse@2"][0] < shades["affine@4 control"][1] < shades["affine@2"][1]


def test_a_layer_without_a_number_or_with_an_infinite_one_is_told() -> None:
    run = made_run(["turboquant-mse@4", "affine@4"], ["attention"])
    layers = run.measures["attention"].codecs[0].layers
    layers[0].metrics["attention_error"] = Metric(value=None, unit="1")
    layers[1].metrics["attention_error"] = Metric(value=math.inf, unit="1")
    del layers[2]
    first = heats(to_html(run))[0]
    cells = list(list(first.all("tr"))[1].all("td"))
    assert [(cell.text, cell.attributes["class"]) for cell in cells] == [
        ("–", "none"),
        ("infinite", "inf w"),
        ("skipped", "none"),
    ]


def test_no_colour_is_without_a_word() -> None:
    run = made_run(gates=[gate("pass"), gate("fail"), gate("inconclusive")])
    text = to_html(run)
    cells = [
        cell
        for cell in parse(text).all("td")
        if set((cell.attributes.get("class") or "").split()) & {"good", "bad", "doubtful"}
    ]
    assert {cell.text for cell in cells} == {"best", "pass", "fail", "inconclusive"}
    assert "affine@4 control" in lone(text)


def test_measures_of_a_real_capture_are_all_shown(tmp_path: Path) -> None:
    capture = open_capture(write_capture(tmp_path / "capture", tokens=96, queries=8, last_queries=True))
    plans = [CompressionPlan(parse_codec(codec)) for codec in ("turboquant-mse@2", "affine@4")]
    run = made_run(["turboquant-mse@2", "affine@4"], [])
    run.measures = {
        "distortion": evaluate_distortion(capture, plans),
        "attention": evaluate_attention(capture, plans),
        "memory": evaluate_memory(capture, plans),
    }
    text = to_html(run)
    assert complaints(text) == []
    document = parse(text)
    ids = {node.attributes["id"] for node in document.all("h2")}
    assert {"summary", "pictures", "layers", "worst", "memory"} <= ids
    assert len(heats(text)) == 4
    (metrics,) = (t for t in document.all("table") if t.one("caption").text == "How each number was got")
    unknown = [row.text for row in list(metrics.all("tr"))[1:] if "–" in next(row.all("td")).text]
    assert unknown == []


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def palettes() -> list[dict[str, str]]:
    style = files("tqcli.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    light, dark = style.split("prefers-color-scheme: dark")
    return [dict(re.findall(r"--(\w+): (#\w{6});", part)) for part in (light, dark)]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_in_both_schemes(scheme: int) -> None:
    palette = palettes()[scheme]
    for text, on in [("ink", "bg"), ("soft", "bg"), ("ink", "tint"), ("soft", "tint"), ("ink", "bar")]:
        assert contrast(palette[text], palette[on]) >= 4.5, (text, on)
    for text in ("good", "bad", "doubt"):
        assert min(contrast(palette[text], palette[on]) for on in ("bg", "tint")) >= 4.5, text
    for line in [name for name in palette if re.fullmatch(r"c\d", name)]:
        assert contrast(palette[line], palette["bg"]) >= 3, line


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_shades_differ_in_brightness_alone_already(scheme: int) -> None:
    palette = palettes()[scheme]
    brightness = [luminance(palette[f"h{shade}"]) for shade in range(SHADES)]
    assert brightness == sorted(brightness, reverse=scheme == 0)
