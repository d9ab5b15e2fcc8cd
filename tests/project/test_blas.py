"""The BLAS that serves MLX on a Linux CPU; each case in a process of its own, since a library can't be unloaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from project_tree import run_python

from tqcli import blas

PROBE = """
import json, sys
if "mlx first" in sys.argv: import mlx.core
from tqcli import blas
before = blas.status()
import mlx.core as mx
import numpy as np
a, b = np.random.default_rng(0).standard_normal((2, 130, 130)).astype(np.float32)
with mx.stream(mx.cpu):
    error = np.abs(np.array(mx.array(a) @ mx.array(b)) - a.astype(np.float64) @ b).max()
now = blas.status()
mapped = open("/proc/self/maps").read() if sys.platform == "linux" else ""
print(json.dumps({"name": now.name, "path": now.path, "active": now.active, "reason": now.reason,
    "same": now == before, "warning": blas.warning(), "error": float(error), "mapped": mapped}))
"""


def _has(distribution: str) -> bool:
    return any(True for d in metadata.distributions(name=distribution))


# Elsewhere (a Mac, a build of MLX without the reference BLAS) there is nothing to replace, whatever is asked for.
REPLACEABLE = sys.platform == "linux" and _has("mlx-cpu") and _has("scipy-openblas32")


@pytest.fixture
def probe(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(*arguments: str, **environment: str | None) -> dict[str, Any]:
        settings = {"TQ_BLAS": None, "LD_PRELOAD": None, "TQ_CACHE": str(tmp_path / "cache")} | environment
        found: dict[str, Any] = json.loads(run_python(PROBE, *arguments, **settings))
        return found

    return run


def test_matrix_products_run_on_a_fast_blas_without_any_action(probe: Callable[..., dict[str, Any]]) -> None:
    for _ in range(2):  # the copy is made, then found
        found = probe()
        assert found["active"], found
        assert found["same"]
        assert found["warning"] is None
        assert found["error"] < 1e-4
        if REPLACEABLE:
            assert found["name"].startswith("OpenBLAS")
            assert found["path"] in found["mapped"]


@pytest.mark.parametrize(
    ("arguments", "choice", "reason"),
    [
        ((), "reference", "TQ_BLAS=reference"),
        ((), "/nowhere/libblas.so", "/nowhere/libblas.so"),
        (("mlx first",), None, "import tqcli first"),
    ],
)
def test_what_keeps_the_reference_blas_in_use_is_told(
    probe: Callable[..., dict[str, Any]], arguments: tuple[str, ...], choice: str | None, reason: str
) -> None:
    found = probe(*arguments, TQ_BLAS=choice)
    assert found["error"] < 1e-4
    assert found["active"] != REPLACEABLE
    if REPLACEABLE:
        assert found["name"] == "reference BLAS"
        assert reason in found["reason"]
        assert reason in found["warning"]


def test_a_library_without_the_symbol_is_told(probe: Callable[..., dict[str, Any]]) -> None:
    library = next(iter(Path(sys.prefix).rglob("libmlx.so")), Path("libm.so.6"))
    other = library if not REPLACEABLE else Path("libm.so.6")
    found = probe(TQ_BLAS=str(other))
    assert found["active"] != REPLACEABLE
    assert ("does not export cblas_sgemm" in found["reason"]) == REPLACEABLE


def test_a_cache_that_cannot_be_written_does_not_matter(probe: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = probe(TQ_CACHE=str(tmp_path / "file" / "cache"), TMPDIR=str(tmp_path))
    assert found["active"], found
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_processes_that_start_together_share_one_copy(probe: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: probe(), range(4)))
    assert all(f["active"] for f in found)
    files = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert len(files) == int(REPLACEABLE)


def test_the_environment_is_left_alone() -> None:
    code = "import os; before = dict(os.environ); import tqcli; assert dict(os.environ) == before"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=dict(os.environ))


def test_preloading_twice_changes_nothing() -> None:
    before = blas.status()
    blas.preload()
    assert blas.status() == before
