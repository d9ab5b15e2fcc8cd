"""`tq kernels`: the GPU kernels that the codecs run on."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tqcli.cli.arguments import JsonOption, say
from tqcli.cli.kernels_bench import bench
from tqcli.cli.kernels_check import check
from tqcli.errors import InputError

if TYPE_CHECKING:
    from tqcli.kernels.runtime.case import Case

app = typer.Typer(help="List, show, check and time the GPU kernels.", no_args_is_help=True, rich_markup_mode=None)
app.command()(check)
app.command()(bench)


@app.command(name="list")
def list_kernels(json: JsonOption = False) -> None:
    """Lists the kernels: operation, files, template parameters, and what they run on here.

    Example: tq kernels list
    """
    rows = _rows()
    used, why = _used()
    if json:
        from json import dumps

        print(dumps({"backend": used, "reason": why, "kernels": rows}, indent=1))
        return
    table = [["operation", "kernel", "files", "template", "cases", "back-ends"], *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())
    print(f"Used here: {used or 'none'} ({why}). mlx is plain MLX operations, on any device.")


@app.command()
def source(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A kernel of tq kernels list.")],
    backend: Annotated[Literal["metal", "cuda"], typer.Option("--backend", help="Whose text to print.")] = "metal",
    case: Annotated[
        int, typer.Option("--case", min=0, help="Which of the kernel's cases, from 0: types and sizes differ.")
    ] = 0,
) -> None:
    """Prints the full text that MLX would compile for a kernel on a Mac, or for an NVIDIA GPU.

    MLX puts its own utils.h before the Metal text. Example: tq kernels source bit_pack --case 3
    """
    from tqcli.kernels.runtime.text import cuda_text, metal_text

    cases = _cases_of(name)
    if case >= len(cases):
        raise InputError(f"{name} has {len(cases)} cases: --case goes from 0 to {len(cases) - 1}, not {case}")
    launch = cases[case].launch
    say(f"{name}, case {case} of 0 to {len(cases) - 1}{': ' if launch.note else ''}{launch.note}")
    print((metal_text if backend == "metal" else cuda_text)(launch), end="")


def _used() -> tuple[str | None, str]:
    """What calls take here and why; None where TQ_BACKEND names a device that isn't here: lists and texts need none."""
    from os import environ

    from tqcli.kernels.runtime.backend import BACKENDS, VARIABLE, preferred

    try:
        return preferred()
    except InputError as e:
        if environ.get(VARIABLE) not in BACKENDS:
            raise
        return None, str(e)


_SHOWN = 5
"""Template parameters that the table has room for."""


def _rows() -> list[dict[str, Any]]:
    from tqcli.kernels.runtime.registry import cases, kernels

    counts: dict[str, int] = {}
    for case in cases():
        counts[case.launch.kernel.name] = counts.get(case.launch.kernel.name, 0) + 1
    return [
        {
            "operation": operation,
            "kernel": name,
            "files": [_under_kernels(kernel.body), *(f"include/{header}" for header in kernel.headers)],
            "inputs": list(kernel.inputs),
            "outputs": list(kernel.outputs),
            "template": list(kernel.template),
            "cases": counts[name],
            "backends": ["metal", "cuda", "mlx"],
        }
        for name, (operation, kernel) in kernels().items()
    ]


def _under_kernels(file: Path) -> str:
    from tqcli.kernels.runtime.kernel import INCLUDES

    return file.resolve().relative_to(INCLUDES.parent).as_posix()


def _cells(row: dict[str, Any]) -> list[str]:
    body, *headers = row["files"]
    files = f"{body} + {len(headers)} header{'s' if len(headers) > 1 else ''}" if headers else body
    parameters = row["template"]
    template = ", ".join(parameters[:_SHOWN]) + (f", ... ({len(parameters)})" if len(parameters) > _SHOWN else "")
    return [row["operation"], row["kernel"], files, template, str(row["cases"]), ", ".join(row["backends"])]


def _cases_of(name: str) -> list[Case]:
    """The cases of the kernel of that name."""
    from tqcli.kernels.runtime.registry import cases, kernels

    known = kernels()
    if name not in known:
        of_operation = [kernel for kernel, (operation, _) in known.items() if operation == name]
        near = of_operation or get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
        raise InputError(f"no kernel is called {name!r}; {hint}")
    return [case for case in cases(known[name][0]) if case.launch.kernel.name == name]
