from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_gguf import write_gguf
from tiny_models import write_tiny_model

from tqcli.cli.app import run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_list_names_upstream_licence_size_and_whether_it_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "list"]) == 0
    out = capsys.readouterr().out
    for word in ("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", "Apache-2.0", "93 MB", "no"):
        assert word in out


def test_list_as_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert (row["name"], row["licence"], row["here"]) == ("smollm2-135m", "Apache-2.0", False)


def test_show_of_a_model_that_is_not_here_fetches_nothing(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "show", "smollm2-135m"]) == 0
    out = capsys.readouterr().out
    assert "dequantised from a Q4_1 GGUF" in out
    assert not (cache / "models").exists()


def test_show_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_model(tmp_path / "model", "gemma3_text", heads=4, kv_heads=1, head_dim=32)
    assert run(["models", "show", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    expected = {"kind": "folder", "model_type": "gemma3_text", "n_q_heads": 4, "n_kv_heads": 1, "head_dim": 32}
    assert expected.items() <= facts.items()
    assert (facts["stored_dtype"], facts["sliding_window"], facts["here"]) == ("float16", 16, True)


def test_pull_of_a_gguf_file_prints_its_folder_and_show_reads_it(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf = write_gguf(write_tiny_model(tmp_path / "model"), tmp_path / "tiny.gguf")
    assert run(["models", "show", str(gguf), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["layers"], facts["weights"]) == (2, "dequantised from F16, F32")
    assert not (cache / "models").exists()
    assert run(["models", "pull", str(gguf), "--json"]) == 0
    out, err = capsys.readouterr()
    folder = Path(json.loads(out)["folder"])
    assert folder.is_relative_to(cache)
    assert "converting" in err
    assert run(["models", "show", str(folder)]) == 0
    assert "float16" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["pull", "show"])
def test_an_unknown_name_exits_with_2_and_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", command, "smollm3"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "nearest is smollm2-135m" in err


@pytest.mark.parametrize("command", ["list", "pull", "show"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", command, "--help"]) == 0
    assert f"tq models {command}" in capsys.readouterr().out.split("Example:")[1].replace("\n", " ").replace("  ", " ")
