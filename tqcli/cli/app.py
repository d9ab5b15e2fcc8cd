"""The `tq` command: joins the command groups and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import typer

from tqcli.cli import (
    capture,
    compress,
    diff,
    doctor,
    evaluate,
    generate,
    inspect,
    kernels,
    models,
    plan,
    recipe,
    report,
)
from tqcli.cli import run as study
from tqcli.distributed import settle
from tqcli.errors import TqError
from tqcli.streams import maybe_unread, tell

app = typer.Typer(
    name="tq",
    help="Tells what compressing a language model's KV cache costs and what it saves.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(models.app, name="models")
app.command()(capture.capture)
app.command()(compress.compress)
app.command()(compress.decompress)
app.command()(inspect.inspect)
app.add_typer(evaluate.app, name="eval")
app.command()(generate.generate)
app.command()(diff.diff)
app.add_typer(recipe.app, name="recipe")
app.command()(study.run)
app.command()(report.report)
app.command()(plan.plan)
app.add_typer(kernels.app, name="kernels")
app.command()(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        from tqcli.version import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Tells what compressing a language model's KV cache costs and what it saves."""
    os.environ["TQ_DEBUG"] = "1" if debug else ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `tq` script: runs a command and exits with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (default `sys.argv`) and returns its exit code.

    0 done, 1 a gate failed, 2 bad usage or bad input, 3 inconclusive, 130 interrupted.
    """
    code, message = _run(arguments)
    return settle(code, message, tell)


def _run(arguments: Sequence[str] | None) -> tuple[int, str | None]:
    """The exit code, and the line that is to be shown."""
    result: object = 0
    try:
        with maybe_unread():
            result = app(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except KeyboardInterrupt:
        return 130, "interrupted"
    except Exception as e:
        if os.environ.get("TQ_DEBUG"):
            traceback.print_exc()
        return _explained(e)
    # Typer turns Ctrl-C into the code alone.
    if result == 130:
        return 130, "interrupted"
    return (result if isinstance(result, int) else 0), None


def _explained(e: Exception) -> tuple[int, str | None]:
    """What a command that was ended by an error exits with and says. Never 1, which means that a gate failed."""
    if isinstance(e, TqError):
        return e.exit_code, str(e)
    if isinstance(e, OSError):
        return 2, f"can't use {e.filename or 'the output'}: {e.strerror or e}"
    # Typer's usage errors and its abort: their classes are not public, what they carry is.
    if type(e).__name__ == "Abort":
        return 130, "interrupted"
    if type(e).__name__ == "NoArgsIsHelpError":
        print(e)
        return 2, None
    if hasattr(e, "format_message"):
        return getattr(e, "exit_code", 2), f"{e.format_message().rstrip('.')}; see tq --help"
    return 2, f"internal error: {type(e).__name__}: {e}; tq --debug COMMAND ... shows where"
