"""`tq models`: the models that tq can fetch by a short name, and any other."""

from __future__ import annotations

from typing import Annotated

import typer

from tqcli.cli.arguments import JsonOption

app = typer.Typer(help="List, fetch and show models.", no_args_is_help=True, rich_markup_mode=None)
