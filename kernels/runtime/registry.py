"""Finds operations: every folder of kernels that has a cases.py. A new one needs no entry anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from tqcli.kernels.runtime.case import Case
from tqcli.kernels.runtime.kernel import Kernel

_KERNELS = Path(__file__).resolve().parent.parent


@cache
def operations() -> tuple[str, ...]:
    """Names of the operations that have kernels, sorted: their folders' names."""
    return tuple(sorted(file.parent.name for file in _KERNELS.glob("*/cases.py")))


def cases(operation: str | None = None) -> Iterator[Case]:
    """The small launches by which kernels are checked, of one operation or of all, in the order of `operations`."""
    for name in operations() if operation is None else (operation,):
        yield from import_module(f"tqcli.kernels.{name}.cases").cases()


@cache
def kernels() -> dict[str, tuple[str, Kernel]]:
    """Each kernel that has a case, with the operation that it belongs to, by the kernel's name.

    Raises `ValueError` where two kernels have the same name.
    """
    found: dict[str, tuple[str, Kernel]] = {}
    for case in cases():
        kernel = case.launch.kernel
        if found.setdefault(kernel.name, (case.operation, kernel))[1] != kernel:
            raise ValueError(f"two kernels are called {kernel.name}: {found[kernel.name][1].body} and {kernel.body}")
    return found
