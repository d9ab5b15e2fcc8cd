from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from running import arrays_of, capture_arguments, done, edit_manifest, files_of, make_capture, refusal, tq, unread

from tqcli import models
from tqcli.storage import MANIFEST

COMMANDS = (
    "models list",
    "models pull",
    "models show",
    "capture",
    "compress",
    "decompress",
    "diff",
    "inspect",
    "eval attention",
    "eval distortion",
    "eval memory",
    "eval perplexity",
    "generate",
    "recipe validate",
    "recipe schema",
    "recipe list",
    "run",
    "report",
    "plan",
    "kernels list",
    "kernels source",
    "kernels check",
    "kernels bench",
    "doctor",
)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return make_capture(tmp_path / "captures" / "tiny")


def test_help_names_every_command() -> None:
    text = done("--help").out
    for command in {command.split(" ")[0] for command in COMMANDS}:
        assert f"\n  {command} " in text
    for group in ("models", "eval", "kernels", "recipe"):
        text = done(group, "--help").out
        assert all(f"\n  {c.split(' ')[1]} " in text for c in COMMANDS if c.startswith(group))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_shows_an_example(command: str) -> None:
    text = " ".join(done(*command.split(" "), "--help").out.split())
    assert f"Example: tq {command}" in text
    assert "Usage: " in text


def test_no_command_is_forgotten_here() -> None:
    import typer

    from tqcli.cli.app import app

    found = set()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        found |= {f"{name} {sub}" for sub in getattr(command, "commands", {})} or {name}
    assert found == set(COMMANDS)


@pytest.mark.parametrize("words", [[], ["models"], ["eval"], ["kernels"], ["recipe"]])
def test_a_group_alone_shows_its_help(words: list[str]) -> None:
    outcome = tq(*words)
    assert outcome.code == 2
    assert "Usage: " in outcome.out + outcome.err


def test_the_version_is_the_packages() -> None:
    from tqcli.version import __version__

    assert done("--version").out == f"{__version__}\n"


@pytest.mark.parametrize("words", [["compres"], ["evaluate"], ["eval", "perplexities"], ["models", "fetch"]])
def test_an_unknown_command_is_one_line(words: list[str]) -> None:
    assert words[-1] in refusal(*words)


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tqcli", "--debug", "inspect", str(tmp_path / "nowhere")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "Traceback" in ended.stderr and "InputError" in ended.stderr


def test_capture_prints_one_json_document(tmp_path: Path) -> None:
    document = done(*capture_arguments(tmp_path / "capture", "--json")).document
    assert document["format"] == "tq-capture"
    assert [shard["window"] for shard in document["shards"]] == [0, 1, 2]
    assert {layer["head_dim"] for layer in document["layers"]} == {64}


@pytest.mark.parametrize("kind", ["distortion", "memory"])
def test_eval_prints_one_json_document(capture: Path, kind: str) -> None:
    document = done("eval", kind, capture, "--codec", "turboquant-mse@4", "--codec", "affine@4/2", "--json").document
    assert document["kind"] == kind
    assert [codec["codec"] for codec in document["codecs"]] == ["turboquant-mse@4", "affine@4/2"]
    assert document["capture"] == str(capture)
    assert [(r["layer"], r["tensor"]) for r in document["codecs"][0]["layers"]] == [
        (layer, tensor) for layer in (0, 1) for tensor in ("keys", "values")
    ]


def test_compress_decompress_and_inspect_print_one_json_document_each(capture: Path, tmp_path: Path) -> None:
    encoded, decoded = tmp_path / "encoded", tmp_path / "decoded"
    compressed = done("compress", capture, "--bits", 4, "--out", encoded, "--json").document
    assert compressed["kind"] == "compress"
    assert compressed["codecs"][0]["total"]["bytes_disk"]["value"] == sum(f.stat().st_size for f in encoded.iterdir())
    document = done("decompress", encoded, "--out", decoded, "--json").document
    assert document["decoded_from"] == "turboquant-mse@4"
    for folder, kind in ((capture, "capture"), (encoded, "encoded"), (decoded, "capture")):
        found = done("inspect", folder, "--json").document
        assert found["kind"] == kind
        assert found["bytes"] == sum(f.stat().st_size for f in folder.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["models", "list"],
        ["models", "show", "smollm2-135m"],
        ["recipe", "list"],
        ["recipe", "validate", "smoke"],
        ["doctor"],
    ],
)
def test_other_commands_print_one_json_document(words: list[str]) -> None:
    assert isinstance(done(*words, "--json").document, dict)
    assert done(*words).out.strip()


def test_results_go_to_stdout_and_notices_to_stderr(capture: Path, tmp_path: Path) -> None:
    outcome = done("eval", "distortion", "--json", folder=tmp_path)
    assert [codec["codec"] for codec in outcome.document["codecs"]] == ["turboquant-mse@4", "affine@4"]
    assert outcome.err.splitlines() == [
        "tq: no --codec was named; using turboquant-mse@4 and affine@4",
        "tq: using the newest capture, captures/tiny",
    ]


def test_the_newest_capture_is_used_where_none_is_named(capture: Path, tmp_path: Path) -> None:
    newer = copytree(capture, tmp_path / "captures" / "newer")
    os.utime(capture / MANIFEST, (1, 1))
    outcome = done("compress", "--algo", "turboquant-mse", "--bits", 4, folder=tmp_path)
    assert f"using the newest capture, captures/{newer.name}" in outcome.err
    assert (tmp_path / "encoded" / "newer-turboquant-mse@4" / MANIFEST).is_file()
    os.utime(newer / MANIFEST, (0, 0))
    assert "captures/tiny" in done("eval", "memory", "--codec", "fp16", "--codec", "affine@4", folder=tmp_path).err


def test_algo_and_bits_are_short_for_a_codec(capture: Path) -> None:
    def measured(*words: object) -> Any:
        return done("eval", "distortion", capture, "--json", *words).document["codecs"]

    short = measured("--algo", "turboquant-mse", "--bits", 3, "--option", "center=none", "--option", "seed=7")
    assert short == measured("--codec", "turboquant-mse@3,center=none,seed=7")
    assert short != measured("--codec", "turboquant-mse@3,center=none,seed=8")
    assert measured("--algo", "affine", "--bits", 4) == measured("--codec", "affine@4")


def test_keys_and_values_may_have_different_codecs_bits_and_layers(capture: Path, tmp_path: Path) -> None:
    def specs(*words: object) -> list[str]:
        out = ["--out", tmp_path / "encoded", "--overwrite", "--json"]
        return [r["codec"] for r in done("compress", capture, *out, *words).document["codecs"][0]["layers"]]

    assert specs("--bits", 4, "--value-bits", 2) == ["turboquant-mse@4", "turboquant-mse@2"] * 2
    assert specs("--bits", 4, "--value-algo", "affine") == ["turboquant-mse@4", "affine@4"] * 2
    assert specs("--algo", "turboquant-mse@4/2") == ["turboquant-mse@4", "turboquant-mse@2"] * 2
    assert specs("--bits", 4, "--layer-bits", "1:8/3") == [
        "turboquant-mse@4",
        "turboquant-mse@4",
        "turboquant-mse@8",
        "turboquant-mse@3",
    ]


def test_inspect_verifies_every_file_and_says_so(capture: Path) -> None:
    text = done("inspect", capture).out
    assert "3 files verified" in text
    edit_manifest(capture, shards=[])
    assert "0 of 3" in done("inspect", capture).out


def test_decoding_what_was_kept_whole_gives_the_capture_back(capture: Path, tmp_path: Path) -> None:
    import mlx.core as mx

    done("compress", capture, "--algo", "identity", "--out", tmp_path / "encoded")
    done("decompress", tmp_path / "encoded", "--out", tmp_path / "decoded")
    for name in (f"window-{index:05d}.safetensors" for index in range(3)):
        before, after = arrays_of(capture / name), arrays_of(tmp_path / "decoded" / name)
        for layer in (0, 1):
            for tensor in ("keys", "values"):
                array = f"layers.{layer}.{tensor}"
                assert mx.array_equal(before[array], after[array]).item()
    # A decoded capture is one: it can be measured, and inspected.
    done("eval", "distortion", tmp_path / "decoded", "--codec", "affine@4")


def test_compressing_twice_gives_the_same_bytes(capture: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        done("compress", capture, "--bits", 3, "--out", tmp_path / name)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_only_the_layers_asked_for_are_captured(tmp_path: Path) -> None:
    document = done(*capture_arguments(tmp_path / "one", "--layers", "1", "--json")).document
    assert [layer["layer"] for layer in document["layers"]] == [1]
    measured = done("eval", "distortion", tmp_path / "one", "--codec", "affine@4", "--json").document
    assert {row["layer"] for row in measured["codecs"][0]["layers"]} == {1}


@pytest.mark.parametrize("words", [["models", "list"], ["--help"], ["models", "list", "--json"]])
def test_a_reader_that_goes_away_is_no_failure(words: list[str]) -> None:
    """As in `tq models list | head -0`."""
    assert unread(*words) == (0, "")


def test_an_unexpected_error_is_one_line_and_no_failed_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(models, "packaged_models", broken)
    line = refusal("models", "list")
    assert line == "internal error: ZeroDivisionError: by zero; tq --debug COMMAND ... shows where"
    outcome = tq("--debug", "models", "list")
    assert outcome.code == 2
    assert "Traceback" in outcome.err and "in broken" in outcome.err
