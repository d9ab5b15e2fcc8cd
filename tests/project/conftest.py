from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
_NOT_SOURCE = ("*.egg-info", "*_cache", "__pycache__")
_NOT_SOURCE_AT_TOP = {".git", ".venv", ".cuda", ".hypothesis", ".benchmarks"}
_NOT_SOURCE_AT_TOP |= {"build", "dist", "captures", "encoded", "runs"}


class RunPython(Protocol):
    def __call__(self, code: str, *arguments: str, **environment: str | None) -> str: ...


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def source_files() -> list[Path]:
    """Every file that is or would be tracked, relative to the repository; a link counts as itself."""
    found: list[Path] = []
    for folder, folders, files in os.walk(REPOSITORY):
        here = Path(folder)
        skipped = {f for f in folders if any(Path(f).match(p) for p in _NOT_SOURCE)}
        folders[:] = [f for f in folders if f not in skipped and not (here == REPOSITORY and f in _NOT_SOURCE_AT_TOP)]
        found += [(here / f).relative_to(REPOSITORY) for f in files if not f.endswith((".pyc", ".coverage"))]
    return sorted(found)


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Runs code in a fresh process; keyword arguments are environment variables, None removes one."""

    def run(code: str, *arguments: str, **environment: str | None) -> str:
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=_merged(os.environ, environment),
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout

    return run


def _merged(base: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**base, **changes}
    return {name: value for name, value in merged.items() if value is not None}
