"""The `tq` command: joins the command groups and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from tqcli.cli import capture, compress, doctor, evaluate, generate, inspect, models
from tqcli.errors import TqError

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
    try:
        result = app(args=list(arguments) if arguments is not None else None, standalone_mode=False)
        sys.stdout.flush()
    except TqError as e:
        if os.environ.get("TQ_DEBUG"):
            raise
        return _fail(str(e), e.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of stdout went away, as `head` does. Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as e:
        if os.environ.get("TQ_DEBUG"):
            raise
        return _fail(f"can't use {e.filename or 'the output'}: {e.strerror or e}", 2)
    except SystemExit as e:
        # Typer and rich make that an exit with 1, which is a failed gate's code.
        if isinstance(e.__context__, BrokenPipeError):
            return 0
        raise
    except Exception as e:
        # Typer's usage errors and its abort: their classes are not public, what they carry is.
        if type(e).__name__ == "Abort":
            return _fail("interrupted", 130)
        if type(e).__name__ == "NoArgsIsHelpError":
            print(e)
            return 2
        if os.environ.get("TQ_DEBUG") or not hasattr(e, "format_message"):
            raise
        return _fail(f"{e.format_message().rstrip('.')}; see tq --help", getattr(e, "exit_code", 2))
    # Typer turns Ctrl-C into the code alone.
    return _fail("interrupted", 130) if result == 130 else result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"tq: {' '.join(message.split())}", file=sys.stderr)
    return code
