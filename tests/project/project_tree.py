"""The source tree and fresh processes, for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LINKS = ("tqcli/kernels", "tqcli/recipes/shipped")
"""Relative links to folders at the top, so that these are in the package too."""
_NOT_SOURCE = ("*.egg-info", "*_cache", "__pycache__")
_NOT_SOURCE_AT_TOP = {".git", ".venv", ".cuda", ".hypothesis", ".benchmarks"}
_NOT_SOURCE_AT_TOP |= {"build", "dist", "captures", "encoded", "runs"}


@cache
def source_files() -> tuple[Path, ...]:
    """Every file that is or would be tracked, relative to the repository; links to folders are left out."""
    found: list[Path] = []
    for folder, folders, files in os.walk(REPOSITORY):
        here = Path(folder)
        skipped = {f for f in folders if any(Path(f).match(p) for p in _NOT_SOURCE)}
        folders[:] = [f for f in folders if f not in skipped and not (here == REPOSITORY and f in _NOT_SOURCE_AT_TOP)]
        found += [(here / f).relative_to(REPOSITORY) for f in files if not f.endswith((".pyc", ".coverage"))]
    return tuple(sorted(found))


def run_python(code: str, *arguments: str, **environment: str | None) -> str:
    """stdout of code run in a fresh process; keyword arguments are environment variables, None removes one."""
    merged = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
