"""`tq run`: a whole study from one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tqcli.cli.arguments import BackendOption, JsonOption, say
from tqcli.cli.recipe import RecipeArgument, SetOption

if TYPE_CHECKING:
    from tqcli.recipes.runner import Study
    from tqcli.recipes.schema import Recipe
    from tqcli.report.run import RunResult


def run(
    recipe: RecipeArgument,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write. Default: runs/NAME.")] = None,
    changes: SetOption = None,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", help="Folder of finished steps, which aren't done again. Default: runs/cache."),
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
    from tqcli.recipes.cost import work_of
    from tqcli.recipes.gates import exit_code
    from tqcli.recipes.load import load_recipe
    from tqcli.recipes.runner import CACHE, Study
    from tqcli.report.output import check_run_folder, write_run

    loaded = load_recipe(recipe, changes or (), baseline)
    folder = out or Path("runs") / loaded.name
    check_run_folder(folder)
    stored = _baseline(loaded)
    study = Study.of(loaded, cache or CACHE)
    if dry_run:
        _print_plan(study, folder, json)
        return
    board = Board(study.steps, work_of(loaded, study.steps))
    try:
        with board.shown():
            result = study.run(board, stored)
    except KeyboardInterrupt:
        say(f"what is finished is kept in {study.store.folder}; go on with the same command")
        raise
    written = write_run(result, folder, loaded.outputs)
    _print(result, written, ci, json)
    if result.failures:
        raise typer.Exit(2)
    if code := exit_code(result.gates):
        raise typer.Exit(code)


def _baseline(recipe: Recipe) -> RunResult | None:
    from tqcli.report.load import load_run

    return None if recipe.baseline is None else load_run(Path(recipe.baseline).expanduser())


def _print(result: RunResult, written: list[Path], ci: str | None, json: bool) -> None:
    from sys import stderr, stdout

    from tqcli.report.github import job_annotations, job_summary, write_job_summary
    from tqcli.report.run_terminal import print_run

    if json:
        print(result.to_json())
    else:
        print_run(result)
        for path in written:
            print(path)
    if ci == "github":
        print("\n".join(job_annotations(result)), file=stderr if json else stdout)
        write_job_summary(job_summary(result))
    for failure in result.failures:
        say(f"{failure.step}{f' of {failure.codec}' if failure.codec else ''} failed: {failure.error}")


def _print_plan(study: Study, folder: Path, json: bool) -> None:
    """What a run would do."""
    from tqcli.recipes.cost import estimate
    from tqcli.recipes.dry_run import plan_lines, plan_of

    plan = plan_of(study, folder, estimate(study.recipe, study.steps))
    if json:
        from json import dumps

        print(dumps(plan, indent=1))
    else:
        print("\n".join(plan_lines(plan)))
