from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from made_reports import failure, gate, made_run

from tqcli.errors import InputError
from tqcli.report.export import as_bytes, as_text, write_reports
from tqcli.report.load import load_run
from tqcli.report.run import RunResult
from tqcli.report.run_terminal import print_run
from tqcli.report.tidy import COLUMNS, codec_rows, layer_rows


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_form_that_is_asked_for_is_written_whole(tmp_path: Path) -> None:
    files = write_reports(made_run(), tmp_path / "run", ["html", "md", "csv", "parquet"])
    assert [file.name for file in files] == ["report.html", "report.md", "layers.csv", "codecs.csv", "layers.parquet"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(file.name for file in files)
    assert all(file.stat().st_size > 500 for file in files)
    assert write_reports(made_run(), tmp_path / "run", []) == []
    with pytest.raises(ValueError, match="'pdf'"):
        write_reports(made_run(), tmp_path / "run", ["pdf"])


def test_csv_has_a_row_a_metric() -> None:
    run = made_run(['a,b"c\nd', "=1+1"], ["distortion"], layers=2, control=None)
    rows = rows_of(as_text(run, "csv"))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len([*codec_rows(run), *layer_rows(run)])
    assert {row["codec"] for row in rows} == {'a,b"c\nd', "=1+1"}
    layers = [row for row in rows if row["layer"]]
    assert [(row["layer"], row["tensor"]) for row in layers[:4:2]] == [("0", "keys"), ("0", "values")]
    total = next(row for row in rows if row["metric"] == "relative_mse")
    metric = run.measures["distortion"].codecs[0].total["relative_mse"]
    assert (float(total["value"]), float(total["ci_low"]), int(total["n"])) == (metric.value, metric.ci_low, 4)
    assert (total["layer"], total["tensor"], total["unit"]) == ("", "both", "1")


def test_what_isnt_finite_or_isnt_there_comes_through() -> None:
    run = made_run(["affine@4"], ["distortion"], error=lambda codec: math.inf, spread=None)
    row = next(row for row in rows_of(as_text(run, "csv")) if row["metric"] == "relative_mse")
    assert (float(row["value"]), row["ci_low"]) == (math.inf, "")


def test_parquet_holds_the_rows_of_the_csv(tmp_path: Path) -> None:
    run = made_run()
    (file,) = write_reports(run, tmp_path, ["parquet"])
    table = pq.read_table(file)
    assert tuple(table.column_names) == COLUMNS
    assert table.to_pylist() == [vars(row) for row in layer_rows(run)]
    both = pq.read_table(io.BytesIO(as_bytes(run, "parquet"))).to_pylist()
    assert both == [vars(row) for row in (*codec_rows(run), *layer_rows(run))]
    assert pq.read_table(io.BytesIO(as_bytes(made_run([], [], control=None), "parquet"))).num_rows == 0


def test_the_uncompressed_models_figures_are_among_the_totals() -> None:
    (row,) = (row for row in codec_rows(made_run()) if row.codec == "uncompressed")
    assert (row.metric, row.value) == ("ppl", 12.5)


def test_markdown_tells_the_same_and_takes_nothing_for_markup() -> None:
    hostile = "a|b <script>*x* `y` [z](w)\n# t"
    text = as_text(
        made_run(
            [hostile, "affine@4"], name=hostile, gates=[gate("fail", codec=hostile)], failures=[failure(error=hostile)]
        ),
        "md",
    )
    assert "<" not in text
    lines = text.splitlines()
    assert lines[0].startswith(r"# a\|b &lt;script&gt;\*x\*")
    assert [line for line in lines if line.startswith("# ")] == [lines[0]]
    tables = [line for line in lines if line.startswith("|")]
    assert len(tables) > 20
    width = 0
    for line in tables:
        cells = len(re.findall(r"(?<!\\)\|", line))
        width = cells if not width or lines[lines.index(line) - 1] == "" else width
        assert cells == width, line
    for heading in ("Codecs by effective bits", "Worst layers and heads", "Bytes of a cache", "Gates", "Environment"):
        assert f"## {heading}" in lines


def test_the_terminal_shows_verdict_codecs_gates_and_worst_layers(capsys: pytest.CaptureFixture[str]) -> None:
    print_run(made_run(gates=[gate("fail")], failures=[failure()], notes=["[bold]a note"]))
    text = capsys.readouterr().out
    assert text.startswith("made: failed\nThe only gate failed.\n")
    for part in ("affine@4 (control)", "at most 0.0350", "layer 1: ", "out of memory", "note: [bold]a note"):
        assert part in text


@pytest.mark.parametrize("form", ["md", "html", "csv", "json"])
def test_a_result_that_was_read_again_reports_the_same(form: str, tmp_path: Path) -> None:
    run = made_run(error=lambda codec: math.inf if codec == "affine@2" else 0.1, gates=[gate("pass")])
    (tmp_path / "result.json").write_text(run.to_json())
    for path in (tmp_path, tmp_path / "result.json"):
        assert as_text(load_run(path), form) == as_text(run, form)


def test_json_is_the_result() -> None:
    run = made_run()
    assert RunResult.model_validate_json(as_text(run, "json")) == run


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "no JSON document"),
        ("[]", "no result of tq"),
        ('{"kind": "attention"}', "of version None"),
        ('{"kind": "run", "version": 2}', "of version 2, and this tq reads version 1"),
        ('{"kind": "run", "version": 1}', "name: Field required"),
    ],
)
def test_what_is_no_result_of_a_run_is_named(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(InputError, match=re.escape(words)):
        load_run(tmp_path)


def test_a_folder_without_a_result_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no result\.json"):
        load_run(tmp_path)
    with pytest.raises(InputError, match="there is no"):
        load_run(tmp_path / "nowhere")
