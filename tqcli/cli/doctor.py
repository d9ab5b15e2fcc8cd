"""`tq doctor`: shows what tq runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tqcli.doctor import Diagnosis


def doctor(json: bool = typer.Option(False, "--json", help="Print one JSON document.")) -> None:
    """Shows versions, devices, back-ends, the BLAS in use and its speed, and what to mend.

    Example: tq doctor --json
    """
    from tqcli.doctor import examine

    diagnosis = examine()
    if json:
        from dataclasses import asdict
        from json import dumps

        print(dumps(asdict(diagnosis), indent=1))
    else:
        _show(diagnosis)


def _show(diagnosis: Diagnosis) -> None:
    rows = _rows(diagnosis)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}")
    for warning in diagnosis.warnings:
        print(f"warning: {warning}")


def _rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    rows = [(name, version or "not installed") for name, version in diagnosis.versions.items()]
    rows.append(("platform", diagnosis.platform))
    for device in diagnosis.devices:
        default = device.startswith(f"{diagnosis.default_device}:")
        rows.append(("device", device + (" (default)" if default else "")))
    for backend in diagnosis.backends:
        verdict = "used" if backend.name == diagnosis.backend else "available" if backend.available else "no"
        rows.append((f"back-end {backend.name}", f"{verdict}: {backend.reason}"))
    for tool in diagnosis.tools:
        rows.append((tool.name, f"{tool.path or 'no'}: {tool.reason}"))
    blas = diagnosis.blas
    speed = "" if blas.gflops is None else f", {blas.gflops:.0f} GFLOP/s"
    rows.append(("BLAS", f"{blas.name}{speed}: {blas.reason}"))
    if blas.path is not None:
        rows.append(("BLAS library", blas.path))
    rows.append(("cache folder", diagnosis.cache_folder + ("" if diagnosis.cache_writable else " (can't be written)")))
    for name, folder in diagnosis.models.items():
        rows.append((f"model {name}", folder or "not here; fetched when used"))
    return rows
