"""The option `--backend` of commands that code or decode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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


def test_it_holds_for_one_command_alone() -> None:
    decompress = ["decompress", "no-such-folder", "--out", "out"]
    assert run([*decompress, "--backend", "mlx"]) == 2
    assert backend.preferred() == ("mlx", "named by --backend")
    assert run(decompress) == 2
    assert backend.preferred()[1] != "named by --backend"
