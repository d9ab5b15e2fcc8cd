"""`tq run`: a whole study from one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tqcli.cli.arguments import BackendOption, JsonOption, named_folder, say
from tqcli.cli.recipe import RecipeArgument, SetOption
from tqcli.errors import InputError
from tqcli.streams import maybe_unread, visible

if TYPE_CHECKING:
    from tqcli.recipes.runner import Study
    from tqcli.recipes.schema import Recipe
    from tqcli.report.run import RunResult


def run(
    recipe: RecipeArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", parser=named_folder, metavar="DIR", help="Folder to write. Default: runs/NAME."),
    ] = None,
    changes: SetOption = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            parser=named_folder,
            metavar="DIR",
            help="Folder of finished steps, which aren't done again. Default: runs/cache.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", metavar="RUN", help="A stored run, for gates against the baseline.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done and what that is likely to take, and stop.")
    ] = False,
    ci: Annotated[
        Literal["github"] | None,
        typer.Option("--ci", help="Also print annotations, and append to the job's summary."),
    ] = None,
    backend: BackendOption = None,
    json: JsonOption = False,
) -> None:
    """Measures what a recipe asks for, judges its gates and writes a report. What was measured before is not repeated.

    Exit codes: 0 all gates passed, 1 one failed, 3 one is inconclusive, 2 something could not be measured.
    Example: tq run smoke
    """
    from tqcli.recipes.board import Board
    from tqcli.recipes.cost import layers_of, work_of
    from tqcli.recipes.gates import exit_code
    from tqcli.recipes.load import load_recipe
    from tqcli.recipes.runner import CACHE, Study
    from tqcli.report.output import check_run_folder, write_run
    from tqcli.storage import make_folder

    loaded = load_recipe(recipe, changes or (), baseline)
    folder = out or Path("runs") / loaded.name
    for steps in (cache or CACHE, CACHE):
        _check_apart(folder, steps)
    check_run_folder(folder)
    stored = _baseline(loaded)
    study = Study.of(loaded, cache or CACHE, dry=dry_run)
    if dry_run:
        _print_plan(study, folder, json)
        return
    make_folder(folder)  # what can't be written is told before hours of work
    board = Board(study.steps, work_of(loaded, study.steps, layers_of(loaded.model)))
    try:
        with board.shown():
            result = study.run(board, stored)
    except KeyboardInterrupt:
        say(f"what is finished is kept in {study.store.folder}; go on with the same command")
        raise
    written = write_run(result, folder, loaded.outputs)
    if ci == "github":
        _summarise(result)
    with maybe_unread():
        _print(result, written, ci, json)
    if failed := len(result.failures):
        steps_failed = f"{failed} {'step' if failed == 1 else 'steps'} failed, as {folder / 'result.json'} tells"
        say(steps_failed if result.measures else f"nothing was measured: {steps_failed}")
        raise typer.Exit(2)
    if code := exit_code(result.gates):
        raise typer.Exit(code)


def _check_apart(folder: Path, cache: Path) -> None:
    """Raises `InputError` where the run's folder holds finished steps, or would be among them."""
    out, steps = folder.resolve(), cache.resolve()
    if out == steps or out in steps.parents or steps in out.parents:
        raise InputError(f"{folder} and {cache}, where finished steps are kept, overlap; choose another --out or name")


def _baseline(recipe: Recipe) -> RunResult | None:
    from tqcli.report.load import load_run

    return None if recipe.baseline is None else load_run(Path(recipe.baseline).expanduser())


def _print(result: RunResult, written: list[Path], ci: str | None, json: bool) -> None:
    from sys import stderr, stdout

    from tqcli.report.github import inert, job_annotations
    from tqcli.report.run_terminal import run_text

    if json:
        print(result.to_json())
    else:
        text = "\n".join([run_text(result), *map(str, written)])
        print(inert(text) if ci else text)
    if ci == "github":
        print("\n".join(job_annotations(result)), file=stderr if json else stdout)


def _summarise(result: RunResult) -> None:
    """Appends to the job's summary; what the run came to is told in any case."""
    from tqcli.report.github import job_summary, write_job_summary

    try:
        write_job_summary(job_summary(result))
    except InputError as e:
        say(str(e))


def _print_plan(study: Study, folder: Path, json: bool) -> None:
    """What a run would do."""
    from tqcli.recipes.cost import estimate
    from tqcli.recipes.dry_run import plan_lines, plan_of

    plan = plan_of(study, folder, estimate(study.recipe, study.steps))
    if json:
        from json import dumps

        print(dumps(plan, indent=1))
    else:
        print("\n".join(map(visible, plan_lines(plan))))
