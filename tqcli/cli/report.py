"""`tq report`: shows a run, or writes it in another form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tqcli.errors import InputError


def report(
    run: Annotated[Path, typer.Argument(help="A run's folder, or its result.json.")],
    form: Annotated[
        Literal["terminal", "md", "html", "csv", "parquet", "json"],
        typer.Option("--format", help="What to show it as. parquet needs --out."),
    ] = "terminal",
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write it to, replaced if it is there. Default: stdout.")
    ] = None,
) -> None:
    """Shows what a run found: verdict, codecs, gates, worst layers, memory; or writes it as Markdown, HTML or tables.

    Example: tq report runs/smoke --format html --out report.html
    """
    if form == "parquet" and out is None:
        raise InputError("parquet can't be printed; name a file with --out")
    if form == "terminal" and out is not None:
        raise InputError("--out takes a --format: md, html, csv, parquet or json")
    if out is not None and out.is_dir():
        raise InputError(f"{out} is a folder; name a file with --out")
    from tqcli.report.export import as_bytes, as_text
    from tqcli.report.load import RESULT, load_run
    from tqcli.report.run_terminal import print_run
    from tqcli.storage import make_folder, write_file

    result = load_run(run)
    source = run / RESULT if run.is_dir() else run
    if out is not None and out.exists() and out.samefile(source):
        raise InputError(f"{out} is the result that is to be shown; name another file with --out")
    if form == "terminal":
        print_run(result)
    elif out is None:
        print(as_text(result, form), end="")
    else:
        content = as_bytes(result, form)
        make_folder(out.absolute().parent)
        write_file(out, content)
        print(out)
