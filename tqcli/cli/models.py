"""`tq models`: the models that tq can fetch by a short name, and any other."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tqcli.cli.arguments import JsonOption

app = typer.Typer(help="List, fetch and show models.", no_args_is_help=True, rich_markup_mode=None)

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A short name, an mlx-lm folder, a .gguf file or a hub id org/model.")
]


@app.command(name="list")
def list_models(json: JsonOption = False) -> None:
    """Lists the models that have a short name: where they are from, licence, size, and whether they are here.

    Example: tq models list
    """
    from tqcli.models import packaged_models

    rows = packaged_models()
    if json:
        return _print_json({"models": rows})
    head = ["name", "upstream", "licence", "parameters", "download", "on disk", "here"]
    table = [head, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())
    return None


@app.command()
def pull(model: ModelArgument, json: JsonOption = False) -> None:
    """Fetches a model, or converts a .gguf file, into the cache folder, unless it is there.

    Commands that use a model do so by themselves. Example: tq models pull smollm2-135m
    """
    from tqcli.models import fetch, resolve

    folder = fetch(resolve(model))
    _print_json({"name": model, "folder": str(folder)}) if json else print(folder)


@app.command()
def show(model: ModelArgument, json: JsonOption = False) -> None:
    """Shows what is known of a model without fetching it: where it is from, its licence and its shape.

    Example: tq models show smollm2-135m --json
    """
    from tqcli.models import describe

    facts = describe(model)
    if json:
        return _print_json(facts)
    for name, value in facts.items():
        if value is not None and not isinstance(value, dict):
            print(f"{_label(name):<16}  {_text(name, value)}")
    return None


def _cells(row: dict[str, Any]) -> list[str]:
    sizes = [_text(key, row[key]) for key in ("download_bytes", "folder_bytes")]
    return [row["name"], row["upstream"], row["licence"], row["parameters"], *sizes, _text("here", row["here"])]


def _label(name: str) -> str:
    return name.replace("n_q_", "query_").replace("n_kv_", "kv_").replace("_bytes", "_size").replace("_", " ")


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value / 1e6:.0f} MB" if name.endswith("_bytes") else str(value)


def _print_json(document: dict[str, Any]) -> None:
    from json import dumps

    print(dumps(document, indent=1))
