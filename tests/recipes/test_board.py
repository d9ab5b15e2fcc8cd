"""How a study is seen to go."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from studies import recipe
from writing import PLAIN, read

from tqcli.datasets import load_text
from tqcli.recipes import board, cost
from tqcli.recipes.board import Board
from tqcli.recipes.expand import expand
from tqcli.recipes.load import load_recipe
from tqcli.recipes.schema import Recipe
from tqcli.recipes.steps import Steps, steps_of
from tqcli.recipes.store import StepStore


def steps(of: Recipe, folder: Path) -> Steps:
    return steps_of(of, expand(of), {"capture": load_text("sample")}, StepStore(folder), {})


def test_a_step_that_ended_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = steps(read(tmp_path, PLAIN.replace("affine@4", "affine@2, affine@3, affine@4")), tmp_path)
    work = cost.Work({("attention", f"affine@{bits}"): 100.0 for bits in (2, 3, 4)})
    now = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr(board.time, "perf_counter", lambda: next(now))
    shown = Board(study, work)
    for bits in (2, 3):
        shown.begin("attention", [f"affine@{bits}"])
        shown.advance(1.0)
        shown.end(10.0, None)
    assert [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "about 20 s left",
        "about 10 s left",
    ]


def test_a_layer_at_a_time_is_as_much_work_as_the_model_has_layers(tmp_path: Path) -> None:
    study = load_recipe(str(recipe(tmp_path, measures={"perplexity": {"per_layer": True}})))
    assert cost.layers_of(study.model) == 2
    assert cost.layers_of("nobody/nothing-of-the-kind") is None
    waiting = steps(study, tmp_path / "cache")
    assert cost.work_of(study, waiting, 2).total < cost.work_of(study, waiting).total / 5


@pytest.mark.parametrize("name", ["a[/]b", "[bold]x", ":warning:"])
def test_a_name_is_no_markup(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = steps(read(tmp_path, f"name: mine\ncodecs: [{{codec: affine@4, name: '{name}'}}]\n"), tmp_path)
    shown = Board(study, cost.work_of(read(tmp_path, PLAIN), study))

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(board.sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with shown.shown():
        shown.begin("attention", [name])
        shown.advance(0.5)
    assert name in Console(file=io.StringIO()).render_str(screen.getvalue(), markup=False, emoji=False).plain
