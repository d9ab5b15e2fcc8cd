"""Where `tq run` writes: nothing of a user's is lost, and nothing old is left to be taken for new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from running import done, refusal
from studies import recipe, result, run

from tqcli.errors import InputError
from tqcli.recipes import identity, measuring
from tqcli.report import export, output
from tqcli.report.output import check_run_folder

MEMORY = {"measures": {"memory": {}}, "codecs": ["affine@4"], "control": None}
DEEP = {"codec": "affine@4", "layer_bits": "9:8", "name": "deep"}
"""A codec that can't be measured: the model has two layers."""


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["recipe.yaml", "report.md", "layers.csv", "junit.xml"])
def test_without_a_result_of_a_run_every_file_is_the_users(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=f"{name}.*no result.json of a run"):
        check_run_folder(tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_the_recipe_itself_is_not_overwritten(tmp_path: Path) -> None:
    study = tmp_path / "study"
    study.mkdir()
    file = recipe(study, **MEMORY).rename(study / "recipe.yaml")
    before = file.read_bytes()
    assert "holds other files (recipe.yaml)" in refusal("run", file, "--out", study, folder=tmp_path)
    assert file.read_bytes() == before


def test_a_recipe_that_was_changed_since_the_run_is_the_users(tmp_path: Path) -> None:
    run(tmp_path, **MEMORY)
    kept = tmp_path / "runs" / "small" / "recipe.yaml"
    done("run", kept, folder=tmp_path)
    kept.write_text(kept.read_text() + "# my remark\n")
    assert "was changed since the run" in refusal("run", kept, folder=tmp_path)
    assert kept.read_text().endswith("# my remark\n")


def test_a_result_that_is_cut_short_is_told_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"kind": "ru')
    with pytest.raises(InputError, match=r"not valid JSON.*delete it.*--out"):
        check_run_folder(tmp_path)


def test_hidden_files_stay_and_what_the_new_run_lacks_goes(tmp_path: Path) -> None:
    run(tmp_path, **MEMORY, gates=[{"metric": "ratio", "min": 1}])
    folder = tmp_path / "runs" / "small"
    (folder / ".gitignore").write_text("*.html")
    run(tmp_path, **MEMORY, outputs=["md"])
    assert set(files_in(folder)) == {"result.json", "recipe.yaml", "report.md", ".gitignore"}


@pytest.mark.parametrize("broken", ["write_reports", "junit_xml", "write_json"])
def test_what_cant_be_written_leaves_the_old_run_as_it_was(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = [{"metric": "ratio", "min": 1}]
    run(tmp_path, **MEMORY, gates=gates)
    before = files_in(tmp_path / "runs" / "small")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output, broken, full)
    outcome = run(tmp_path, **MEMORY, gates=gates, description="another")
    assert (outcome.code, outcome.out) == (2, "")
    assert files_in(tmp_path / "runs" / "small") == before


def test_where_everything_fails_that_is_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gates = [{"metric": "kl_mean", "max": 10.0}]
    perplexity: dict[str, Any] = {"measures": {"perplexity": {}}, "control": None, "gates": gates}
    run(tmp_path, **perplexity, codecs=["affine@4"])
    assert result(tmp_path)["gates"][0]["verdict"] == "pass"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    outcome = run(tmp_path, "--json", "--ci", "github", **perplexity, codecs=[DEEP])
    assert outcome.code == 2
    found = outcome.document
    assert found == result(tmp_path)
    assert found["measures"] == {}
    assert found["dataset"]["windows"] == 2
    assert [(of["step"], of["codec"]) for of in found["failures"]] == [("perplexity", "deep")]
    assert found["gates"][0]["verdict"] == "fail"
    assert "::error " in outcome.err and "nothing was measured" in outcome.err
    assert "layer 9" in (tmp_path / "summary.md").read_text()
    for name in ("report.md", "report.html", "junit.xml"):
        assert "layer 9" in (tmp_path / "runs" / "small" / name).read_text()


def test_a_model_that_cant_be_loaded_is_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, **MEMORY)

    def broken(*_: object) -> None:
        raise InputError("the weights are cut short")

    monkeypatch.setattr(measuring, "load", broken)
    assert run(tmp_path, **{**MEMORY, "seed": 3}).code == 2
    assert [(of["step"], of["error"]) for of in result(tmp_path)["failures"]] == [
        ("model", "the weights are cut short")
    ]


def test_a_failure_is_told_once_on_each_stream(tmp_path: Path) -> None:
    outcome = run(tmp_path, codecs=[DEEP, "turboquant-mse@4"], control=None, measures={"memory": {}})
    assert outcome.out.count("layer 9") == outcome.err.count("layer 9") == 1
    assert "1 step failed" in outcome.err


def test_the_run_and_the_finished_steps_have_folders_of_their_own(tmp_path: Path) -> None:
    for words in (["--out", "runs"], ["--out", "runs/cache"], ["--out", "runs/cache/x"], ["--cache", "runs/small/c"]):
        assert "overlap" in refusal("run", recipe(tmp_path, **MEMORY), *words, folder=tmp_path)
    assert "overlap" in refusal("run", recipe(tmp_path, **MEMORY, name="cache"), "--cache", "c", folder=tmp_path)


@pytest.mark.parametrize("option", ["--out", "--cache"])
def test_an_empty_name_is_not_the_working_folder(option: str, tmp_path: Path) -> None:
    assert "name is empty" in refusal("run", recipe(tmp_path, **MEMORY), option, "", folder=tmp_path)


def test_where_nothing_can_be_written_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring.Measuring, "run", lambda _: pytest.fail("something was measured"))
    (tmp_path / "file").write_text("")
    assert "can't" in refusal("run", recipe(tmp_path, **MEMORY), "--out", "file/small", folder=tmp_path)


def test_a_dry_run_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, "--dry-run")
    monkeypatch.setattr(identity, "fetch", lambda _: pytest.fail("the model was fetched"))
    plan = run(tmp_path, "--dry-run", "--json", model="nobody/nothing-of-the-kind").document
    assert (plan["to_do"], plan["seconds"]) == (9, None)
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_a_summary_that_cant_be_written_leaves_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    outcome = run(tmp_path, "--ci", "github", **MEMORY, gates=[{"metric": "ratio", "min": 100}])
    assert outcome.code == 1
    assert "GITHUB_STEP_SUMMARY" in outcome.err and "::error " in outcome.out


def test_names_are_text(tmp_path: Path) -> None:
    names = ["::error::x", "a[/]b", "[bold]x", ":warning:", "red\x1b[31m\a", "##[error]x"]
    codecs = [{"codec": f"affine@{bits}", "name": name} for bits, name in zip((2, 3, 4, 5, 6, 8), names, strict=True)]
    outcome = run(tmp_path, "--ci", "github", **{**MEMORY, "codecs": codecs})
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert [line for line in lines if line.lstrip().startswith("::")] == ["::notice title=tq small::no gates"]
    assert "\x1b" not in outcome.out + outcome.err and "##[" not in outcome.out
    for name in (*names[1:4], r"red\x1b[31m\x07"):
        assert any(line.split()[:1] == [name] for line in lines), name
    document = json.loads((tmp_path / "runs" / "small" / "result.json").read_text())
    assert [codec["name"] for codec in document["codecs"]] == names
    assert "\x1b" not in (tmp_path / "runs" / "small" / "report.md").read_text()
    assert yaml.safe_load((tmp_path / "runs" / "small" / "recipe.yaml").read_text())["codecs"][0]["name"] == names[0]


def test_an_error_while_a_report_is_made_is_no_failed_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr(export, "as_text", broken)
    outcome = run(tmp_path, **MEMORY)
    assert outcome.code == 2
    assert "internal error: OverflowError: too large" in outcome.err and "--debug" in outcome.err
    assert "Traceback" not in outcome.err
