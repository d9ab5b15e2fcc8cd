"""The wheel holds what the tree holds, found by itself, and works away from the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from project_tree import LINKS, REPOSITORY, source_files

IMPORT_ALL = """
import importlib, sys
from pathlib import Path
target = Path(sys.argv[1])
names = []
for file in sorted(target.rglob("*.py")):
    parts = file.relative_to(target).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    module = importlib.import_module(name)
    assert Path(module.__file__).is_relative_to(target), (name, module.__file__)
    names.append(name)
print("\\n".join(names))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, links kept, with a new operation, its kernel source and a new package dropped in."""
    copy = tmp_path_factory.mktemp("tree")
    for file in source_files():
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / file, copy / file, follow_symlinks=False)
    for link in LINKS:
        (copy / link).symlink_to((REPOSITORY / link).readlink())
    for folder in ("kernels/newop", "tqcli/newpkg"):
        (copy / folder).mkdir()
        (copy / folder / "__init__.py").write_text("FOUND = True\n")
    (copy / "kernels" / "newop" / "newop.metal").write_text("// a kernel\n")
    (copy / "recipes" / "new.yaml").write_text("name: new\n")
    return copy


@pytest.fixture(scope="module")
def installed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel of that tree is installed; nothing is downloaded."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    build = ["wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(wheels), str(tree)]
    subprocess.run([*pip, *build], check=True, capture_output=True, timeout=300)
    (wheel,) = wheels.glob("*.whl")
    install = ["install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run([*pip, *install], check=True, capture_output=True, timeout=300)
    return target


def test_every_module_imports_away_from_the_tree(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, str(installed)],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    assert {"tqcli.cli.app", "tqcli.kernels.bit_pack.launch", "tqcli.kernels.newop", "tqcli.newpkg"} <= set(names)


def test_holds_every_file_of_the_package(tree: Path, installed: Path) -> None:
    wanted = {
        Path(folder, file).relative_to(tree)
        for folder, _, files in os.walk(tree / "tqcli", followlinks=True)
        for file in files
        if not file.endswith(".pyc")
    }
    assert Path("tqcli/kernels/newop/newop.metal") in wanted
    assert Path("tqcli/recipes/shipped/new.yaml") in wanted
    assert Path("tqcli/py.typed") in wanted
    assert sum(file.match("tqcli/datasets/*/*.txt") for file in wanted) > 0
    assert [file for file in sorted(wanted) if not (installed / file).is_file()] == []


def test_installs_no_other_top_level_name(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} <= {"tqcli", "bin"}


def test_carries_its_licence(installed: Path) -> None:
    (licence,) = installed.glob("*.dist-info/licenses/LICENSE")
    assert "Apache License" in licence.read_text()


def test_the_source_archive_holds_what_the_links_lead_to(tree: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(tree)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        files = {member.name.partition("/")[2] for member in opened if member.isfile()}
    assert {"tqcli/recipes/shipped/new.yaml", "tqcli/kernels/newop/newop.metal"} <= files
