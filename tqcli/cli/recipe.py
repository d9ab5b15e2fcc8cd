"""`tq recipe`: what a study file holds, and whether it is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tqcli.cli.arguments import JsonOption

if TYPE_CHECKING:
    from tqcli.recipes.schema import Recipe

app = typer.Typer(help="Check recipes, and list those of tq's own.", no_args_is_help=True, rich_markup_mode=None)

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A .yaml file, or the name of a recipe of tq recipe list.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a value, for example codecs.0.bits=3 or measures.distortion={}."
    ),
]


@app.command()
def validate(recipe: RecipeArgument, changes: SetOption = None, json: JsonOption = False) -> None:
    """Checks a recipe without a model, and prints what it comes to: every codec by name, measures and gates.

    Example: tq recipe validate smoke --set codecs.0.bits=3
    """
    from tqcli.recipes.load import load_recipe
    from tqcli.recipes.outline import outline

    loaded = load_recipe(recipe, changes or ())
    found = outline(loaded)
    if json:
        from json import dumps

        print(dumps(found, indent=1))
    else:
        _print_outline(loaded, found)


@app.command()
def schema() -> None:
    """Prints the JSON Schema of recipes, by which editors complete and check them.

    Example: tq recipe schema > recipe.schema.json
    """
    from json import dumps

    from tqcli.recipes.schema import Recipe

    print(dumps({"$schema": "https://json-schema.org/draft/2020-12/schema"} | Recipe.model_json_schema(), indent=1))


@app.command(name="list")
def list_recipes(json: JsonOption = False) -> None:
    """Lists the recipes that come with tq.

    Example: tq recipe list
    """
    from tqcli.recipes.load import load_recipe, packaged_recipes

    rows = [
        {"name": name, "description": load_recipe(name).description, "file": str(file)}
        for name, file in packaged_recipes().items()
    ]
    if json:
        from json import dumps

        print(dumps({"recipes": rows}, indent=1))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:<{width}}  {row['description']}")


def _print_outline(recipe: Recipe, found: dict[str, Any]) -> None:
    from tqcli.recipes.outline import text_words

    print(recipe.name + (f": {recipe.description}" if recipe.description else ""))
    facts = {
        "model": recipe.model,
        "dataset": text_words(recipe.dataset, recipe.seed),
        "calibration": recipe.calibration and text_words(recipe.calibration, recipe.seed + 1),
        "measures": _measure_words(recipe),
        "control": recipe.control,
        "baseline": recipe.baseline,
    }
    for name, value in facts.items():
        if value is not None:
            print(f"{name:<11}  {value}")
    head = ["codec", "sinks", "recent", "other bits"]
    rows = [[c["name"], str(c["sinks"]), str(c["recent"]), c["layer_bits"]] for c in found["codecs"]]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print()
    for cells in (head, *rows):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())
    if found["gates"]:
        print()
    for gate in found["gates"]:
        print(f"gate: {gate['text']} ({gate['measure']}), for {', '.join(gate['codecs'])}")
    counts = {"codec": len(found["codecs"]), "measure": len(found["measures"]), "gate": len(found["gates"])}
    print("\nvalid: " + ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items()))


def _measure_words(recipe: Recipe) -> str:
    """The measures, with what of their settings isn't the default."""
    measures = recipe.measures.model_dump(exclude_none=True, exclude_defaults=True)
    settings = {name: ", ".join(f"{key} {value}" for key, value in of.items()) for name, of in measures.items()}
    return ", ".join(f"{name} ({words})" if words else name for name, words in settings.items())
