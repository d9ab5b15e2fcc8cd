"""How `tq` starts: its help, and what it must not load for that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from project_tree import run_python

HEAVY = ("mlx", "mlx_lm", "transformers", "datasets", "pydantic", "numpy", "pyarrow", "gguf", "jinja2", "yaml")
LOADED = """
import importlib, json, pkgutil, sys
import tqcli.cli
for module in pkgutil.walk_packages(tqcli.cli.__path__, "tqcli.cli."):
    importlib.import_module(module.name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_the_installed_script_shows_its_help() -> None:
    script = Path(sys.executable).with_name("tq")
    done = subprocess.run([script, "--help"], capture_output=True, text=True, check=True, timeout=60)
    assert "Usage: tq" in done.stdout
    assert done.stderr == ""


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "tqcli", "--help"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage:" in done.stdout


def test_the_command_line_loads_no_heavy_library_before_a_command_runs() -> None:
    assert sorted(set(HEAVY) & set(json.loads(run_python(LOADED)))) == []


def test_matrix_products_are_float32_unless_the_user_says_otherwise() -> None:
    """MLX would use TF32 on NVIDIA GPUs, which flips codes."""
    show = "import tqcli, os; print(os.environ['MLX_ENABLE_TF32'])"
    assert run_python(show).strip() == "0"
    assert run_python(f"import os; os.environ['MLX_ENABLE_TF32'] = '1'; {show}").strip() == "1"
