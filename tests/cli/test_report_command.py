from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_reports import made_run
from running import done, refusal

FORMS = {"terminal": "made: measured\n", "md": "# made: measured\n", "html": "<!DOCTYPE html>", "csv": "measure,codec,"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "made"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(made_run().to_json())
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_printed(form: str, run: Path) -> None:
    assert done("report", run, "--format", form).out.startswith(FORMS[form])


def test_the_terminals_is_the_default_and_json_the_whole_result(run: Path) -> None:
    assert done("report", run / "result.json").out == done("report", run, "--format", "terminal").out
    assert done("report", run, "--format", "json").document == json.loads((run / "result.json").read_text())


@pytest.mark.parametrize("form", ["md", "html", "csv", "json", "parquet"])
def test_out_names_the_file(form: str, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / f"made.{form}"
    assert done("report", run, "--format", form, "--out", out).out == f"{out}\n"
    if form == "parquet":
        assert out.read_bytes()[:4] == b"PAR1"
    else:
        assert out.read_text() == done("report", run, "--format", form).out


def test_what_cant_be_done_is_refused(run: Path, tmp_path: Path) -> None:
    assert "--out" in refusal("report", run, "--format", "parquet")
    assert "--format" in refusal("report", run, "--out", tmp_path / "x")
    assert "is a folder" in refusal("report", run, "--format", "md", "--out", tmp_path)
    for source in (run, run / "result.json"):
        same = run.parent / ".." / "runs" / "made" / "result.json"
        assert "is the result" in refusal("report", source, "--format", "md", "--out", same)
    assert "there is no" in refusal("report", tmp_path / "nowhere")
    assert "no finished run" in refusal("report", tmp_path)
    assert "pdf" in refusal("report", run, "--format", "pdf")
