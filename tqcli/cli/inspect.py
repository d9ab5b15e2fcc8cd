"""`tq inspect`: what a folder holds, with its checksums verified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tqcli.cli.arguments import JsonOption


def inspect(
    path: Annotated[Path, typer.Argument(help="A capture, an encoded folder, a run, or a perplexity run.")],
    json: JsonOption = False,
) -> None:
    """Tells what a capture, an encoded folder or a run holds, and verifies the sha256 of files that have one.

    Example: tq inspect captures/smollm2-135m-sample
    """
    found = _found(path)
    if json:
        from json import dumps

        print(dumps(found, indent=1))
        return
    width = max(map(len, found))
    for key, value in found.items():
        print(f"{key:<{width}}  {value}")


def _found(path: Path) -> dict[str, object]:
    from tqcli.compression.inspect import inspect_folder
    from tqcli.evaluation.inspect import inspect_perplexity, inspect_run
    from tqcli.report.load import RESULT
    from tqcli.storage import MANIFEST, read_json

    if (path / RESULT).is_file() and not (path / MANIFEST).exists():
        return inspect_run(path)
    document = read_json(path / MANIFEST) if (path / MANIFEST).is_file() else None
    if isinstance(document, dict) and document.get("format") == "tq-perplexity":
        return inspect_perplexity(path)
    return inspect_folder(path)
