"""Rules of the source tree: one direction of imports, short files, nothing of one machine."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from project_tree import LINKS, REPOSITORY, source_files

BOTTOM, LIBRARIES, KERNELS, CODECS, MEASURES, STUDIES, CLI = range(7)
# What is not named here is only kept out of circles.
LAYERS = {
    "errors": BOTTOM,
    "version": BOTTOM,
    "paths": BOTTOM,
    "storage": BOTTOM,
    "blas": BOTTOM,
    "progress": BOTTOM,
    "distributed": BOTTOM,
    "layers": BOTTOM,
    "manifests": CODECS,
    "resumable": BOTTOM,
    "environment": LIBRARIES,
    "datasets": LIBRARIES,
    "models": LIBRARIES,
    "kernels": KERNELS,
    "codecs": CODECS,
    "capture": MEASURES,
    "cache": MEASURES,
    "compression": MEASURES,
    "metrics": MEASURES,
    "report": MEASURES,
    "evaluation": STUDIES,
    "recipes": STUDIES,
    "doctor": STUDIES,
    "cli": CLI,
    "__main__": CLI + 1,
}
LONGEST = 400
MACHINE_PATH = re.compile(r"(?<![\w.:~$}/-])/(?:work|root|home|Users|tmp|private|mnt|opt)/\w")


def _unit(file: Path) -> str:
    """The package or module under tqcli that a source file belongs to."""
    parts = file.with_suffix("").parts
    return "kernels" if parts[0] == "kernels" else parts[1]


def _imported(file: Path) -> set[str]:
    """Units of tqcli that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("tqcli.")}


def _edges() -> set[tuple[str, str, str]]:
    sources = [f for f in source_files() if f.suffix == ".py" and f.parts[0] in ("tqcli", "kernels")]
    return {
        (str(file), _unit(file), unit)
        for file in sources
        if file != Path("tqcli/__init__.py")
        for unit in _imported(REPOSITORY / file) - {_unit(file), "__version__"}
    }


def test_imports_point_one_way() -> None:
    edges = _edges()
    assert len(edges) > 20
    upwards = sorted(
        f"{file} imports tqcli.{there}"
        for file, here, there in edges
        if here in LAYERS and there in LAYERS and LAYERS[there] > LAYERS[here]
    )
    assert upwards == []


def test_packages_import_each_other_in_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for _, here, there in _edges():
        graph.setdefault(here, set()).add(there)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_source_files_are_short() -> None:
    sources = [f for f in source_files() if f.suffix in (".py", ".metal", ".h")]
    lengths = {str(file): len((REPOSITORY / file).read_text(encoding="utf-8").splitlines()) for file in sources}
    assert {file: length for file, length in lengths.items() if length > LONGEST} == {}


def test_no_file_names_a_path_of_one_machine() -> None:
    found = []
    for file in source_files():
        try:
            text = (REPOSITORY / file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # binary data
        found += [f"{file}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    assert found == []


@pytest.mark.parametrize(("name", "folder"), [*zip(LINKS, ("kernels", "recipes"), strict=True)])
def test_what_is_kept_at_the_top_is_in_the_package_through_a_relative_link(name: str, folder: str) -> None:
    link = REPOSITORY / name
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == (REPOSITORY / folder).resolve()
