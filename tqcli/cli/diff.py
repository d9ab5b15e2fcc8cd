"""`tq diff`: two runs against each other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from tqcli.cli.arguments import JsonOption
from tqcli.errors import InputError
from tqcli.streams import maybe_unread


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="What was: a run's folder, or the JSON of tq eval in a file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="What is now.")],
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="How much worse B may be, as a share of A's value: 0.05 for 5 %.")
    ] = 0.0,
    metric: Annotated[str, typer.Option("--metric", help="Which metrics, with * and ?.")] = "*",
    form: Annotated[
        Literal["terminal", "md", "json"], typer.Option("--format", help="md is fit for a comment on a pull request.")
    ] = "terminal",
    json: JsonOption = False,
) -> None:
    """Compares two runs metric by metric, codec by codec: what is different beyond its interval, better or worse.

    Exit code 1: something is worse than --tolerance allows, or missing in B.

    Example: tq diff runs/before runs/after --tolerance 0.05
    """
    from tqcli.report.compare import compare
    from tqcli.report.diff import diff_markdown, print_diff
    from tqcli.report.load import read_result

    if not 0 <= tolerance < math.inf:
        raise InputError(f"--tolerance is a share of 0 or more, such as 0.05, not {tolerance}")
    comparison = compare(read_result(a), read_result(b), tolerance, metric, names=(str(a), str(b)))
    if not comparison.compared:
        which = "" if metric == "*" else f" that is called {metric}"
        raise InputError(f"{a} and {b} have no metric of the same measure and codec in common{which}")
    with maybe_unread():
        if json or form == "json":
            print(comparison.to_json())
        elif form == "md":
            print(diff_markdown(comparison), end="")
        else:
            print_diff(comparison)
    if comparison.is_worse:
        raise typer.Exit(1)
