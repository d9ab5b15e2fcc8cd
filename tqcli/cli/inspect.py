"""`tq inspect`: what a folder holds, with its checksums verified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tqcli.cli.arguments import JsonOption


def inspect(
    path: Annotated[Path, typer.Argument(help="A capture or an encoded folder.")],
    json: JsonOption = False,
) -> None:
    """Tells what a capture or an encoded folder holds, and verifies every file's sha256.

    Example: tq inspect captures/smollm2-135m-sample
    """
    from tqcli.compression.inspect import inspect_folder

    found = inspect_folder(path)
    if json:
        from json import dumps

        print(dumps(found, indent=1))
        return
    width = max(map(len, found))
    for key, value in found.items():
        print(f"{key:<{width}}  {value}")
