"""The option `--backend` of commands that code or decode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from running import done, make_capture, workplace

from tqcli.cli.app import run
from tqcli.kernels.runtime import backend, set_backend

COMMANDS = (
    ["eval", "distortion"],
    ["eval", "attention"],
    ["eval", "perplexity"],
    ["eval", "memory"],
    ["compress"],
    ["decompress", "no-such-folder", "--out", "out"],
    ["generate", "--prompt", "a"],
)


@pytest.fixture(autouse=True)
def none_named(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TQ_BACKEND", raising=False)
    yield
    set_backend(None)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_one_that_is_not_here_is_one_line(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    missing = next(name for name in ("metal", "cuda") if name not in backend.available())
    assert run([*command, "--backend", missing]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tq: --backend {missing}: MLX finds no such device; this machine has ")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_variable_that_names_none_is_one_line(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TQ_BACKEND", "foo")
    assert run(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tq: TQ_BACKEND is foo: there is no such back-end; this machine has ")


def test_it_holds_for_one_command_alone() -> None:
    decompress = ["decompress", "no-such-folder", "--out", "out"]
    assert run([*decompress, "--backend", "mlx"]) == 2
    assert backend.preferred() == ("mlx", "named by --backend")
    assert run(decompress) == 2
    assert backend.preferred()[1] != "named by --backend"


def test_every_report_says_what_was_taken_and_why(tmp_path: Path) -> None:
    capture, plain = make_capture(tmp_path / "capture"), ("--backend", "mlx")
    codec = ("--codec", "turboquant-mse@4")
    encoded = ["compress", capture, "--out", tmp_path / "encoded", "--overwrite"]
    prompted = ["generate", workplace() / "model", "--prompt", "It was the best of times, " * 8, "--max-tokens", 3]
    text = ["--dataset", workplace() / "book.txt", "--windows", 1, "--tokens", 99, "--overwrite"]
    commands = (
        *(["eval", kind, capture, *codec] for kind in ("distortion", "attention", "memory")),
        ["eval", "perplexity", workplace() / "model", *text, *codec],
        [*encoded, "--bits", 4],
        ["decompress", tmp_path / "encoded", "--out", tmp_path / "decoded", "--overwrite"],
        [*prompted, *codec],
    )
    for command in commands:
        backends = done(*command, *plain, "--json", folder=tmp_path).document["backends"]
        assert {(use["backend"], use["reason"]) for use in backends} == {("mlx", "named by --backend")}, command
        assert all(use["calls"] > 0 for use in backends)
        assert any(use["operation"].startswith("hadamard_") for use in backends)
        shown = done(*command, *plain, folder=tmp_path)
        lines = [line.removeprefix("tq: ") for line in (shown.out + shown.err).splitlines()]
        assert lines.count("Operations: plain MLX (named by --backend)") == 1, command
