"""`tq kernels bench`: how long the kernels take, beside everything else that does the same."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tqcli.cli.arguments import JsonOption, say
from tqcli.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tqcli.kernels.bench.measure import Measured, Timed

_ROUNDS, _BUDGET = 15, 4.0
_QUICK_ROUNDS, _QUICK_BUDGET = 7, 0.5


def bench(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="An operation, for all its kernels, or a kernel. Default: all."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="5 sizes and 7 rounds, in under two minutes.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="DIR", help="Folder to write a figure of each operation to.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File for the JSON document, after each operation.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Times the kernels at 1 k to 64 M elements beside plain MLX, mx.compile, MLX's own operations and NumPy.

    Without a GPU the plain operations are timed, to 1 M elements. Example: tq kernels bench qjl_scores --quick
    """
    from tqcli.kernels.bench.measure import measure, sizes
    from tqcli.kernels.runtime.backend import preferred
    from tqcli.storage import check_file, make_folder

    names = _timed(name)
    backend, why = preferred()
    if out is not None:
        check_file(out)
    if plot is not None:
        make_folder(plot, "--plot")
    document = _document(backend, why)
    if not json:
        _print_start(document)
    for operation in names:
        rounds, budget = (_QUICK_ROUNDS, _QUICK_BUDGET) if quick else (_ROUNDS, _BUDGET)
        measured = []
        try:
            for of in measure(operation, backend, sizes(backend, quick), rounds, budget):
                measured.append(of)
        except (RuntimeError, ValueError, MemoryError) as e:
            say(f"{operation} stops after {len(measured)} sizes: {' '.join(str(e).split())[:300]}")
        document["operations"].append(_operation_document(operation, measured))
        if out is not None:
            _write_json(document, out)
        if not json:
            _print_operation(operation, measured)
        if plot is not None and measured:
            _plot(measured, document, plot)
    if json:
        print(_text(document))
    elif backend == "mlx":
        print(f"The kernels were not timed: {why}.")
    if plot is not None:
        _say_plots(plot)


def _timed(name: str | None) -> list[str]:
    """The kernels that a name stands for, of those that are timed. Raises `InputError` for another name."""
    from tqcli.kernels.bench.measure import OPERATIONS
    from tqcli.kernels.runtime.registry import kernels, operations

    if name is None:
        return list(OPERATIONS)
    if name in operations():
        return [kernel for kernel in OPERATIONS if kernels()[kernel][0] == name]
    if name in OPERATIONS:
        return [name]
    near = get_close_matches(name, [*OPERATIONS, *operations()], n=3, cutoff=0.4) or list(OPERATIONS)
    raise InputError(f"no operation or kernel called {name!r} is timed; there is {', '.join(dict.fromkeys(near))}")


def _document(backend: str, why: str) -> dict[str, Any]:
    from tqcli.environment import device_name, versions

    facts = {"backend": backend, "reason": why, "device": device_name(), **versions()}
    return {"version": 1, **facts, "operations": []}


def _print_start(document: dict[str, Any]) -> None:
    print(", ".join(f"{key} {document[key]}" for key in ("device", "backend", "tq", "mlx", "python", "platform")))
    print(
        "Microseconds of a call: built, run and waited for; quartiles over rounds in which all take turns. "
        "GB/s: of the kernel's inputs and outputs. Copy: float32, x + 0.",
        flush=True,
    )


def _print_operation(operation: str, measured: Sequence[Measured]) -> None:
    from tqcli.kernels.bench.measure import KERNEL
    from tqcli.report.terminal import new_table, print_table

    table = new_table("elements", "implementation", "us", "quartiles", "GB/s", "of copy", title=operation)
    for of in measured:
        for timed in of.timed:
            table.add_row(_short(of.elements), *_cells(timed))
        table.add_section()
    print_table(table)
    for of in measured:
        for timed in of.timed:
            if timed.error:
                print(f"{operation}, {_short(of.elements)}, {timed.implementation}: {timed.error}")
    launch = measured[0].median(KERNEL) if measured else None
    if launch is not None:
        print(f"{operation}: a call costs {launch:.1f} us at {measured[0].elements} elements; {_crossover(measured)}")
    print(end="", flush=True)


def _crossover(measured: Sequence[Measured]) -> str:
    from tqcli.kernels.bench.measure import crossover

    found = crossover(measured)
    if found is None:
        return "the kernel is not faster than plain MLX at the largest size"
    return "faster than plain MLX at every size" if found == 0 else f"faster than plain MLX from size {found} on"


def _cells(timed: Timed) -> list[str]:
    if timed.microseconds is None:
        return [timed.implementation, "failed", "", "", ""]
    first, half, third = timed.microseconds
    speed = "-" if timed.gb_per_second is None else f"{timed.gb_per_second:.3g}"
    of_copy = "-" if timed.of_copy is None else f"{100 * timed.of_copy:.0f} %"
    return [timed.implementation, f"{half:.1f}", f"{first:.1f} to {third:.1f}", speed, of_copy]


def _short(elements: int) -> str:
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if elements >= size:
            return f"{elements / size:g} {unit}"
    return str(elements)


def _operation_document(operation: str, measured: Sequence[Measured]) -> dict[str, Any]:
    from dataclasses import asdict

    from tqcli.kernels.bench.measure import KERNEL, crossover

    launch = measured[0].median(KERNEL) if measured else None
    document = {"operation": operation, "launch_microseconds": launch, "crossover": crossover(measured)}
    return {**document, "sizes": [asdict(of) for of in measured]}


def _text(document: dict[str, Any]) -> str:
    from json import dumps

    return dumps(document, indent=1)


def _write_json(document: dict[str, Any], file: Path) -> None:
    file.write_text(_text(document) + "\n", encoding="utf-8")


def _plot(measured: Sequence[Measured], document: dict[str, Any], folder: Path) -> None:
    from tqcli.kernels.bench.plot import plot

    plot(measured, f"{measured[0].operation} on {document['device']}", folder)


def _say_plots(folder: Path) -> None:
    from importlib.util import find_spec

    say(f"figures are in {folder}{'' if find_spec('matplotlib') else ', as SVG alone: PNG needs matplotlib'}")
