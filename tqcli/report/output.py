"""The folder that a run is written to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from tqcli.errors import InputError
from tqcli.report.export import write_reports
from tqcli.report.junit import junit_xml
from tqcli.report.load import RESULT
from tqcli.report.run import RunResult
from tqcli.storage import make_folder, read_json, write_file, write_json

RECIPE, JUNIT = "recipe.yaml", "junit.xml"
_OWN = {
    *(RESULT, RECIPE, JUNIT),
    *("report.html", "report.md", "layers.csv", "codecs.csv", "layers.parquet"),
}


def check_run_folder(folder: Path) -> None:
    """Raises `InputError` where a run can't be written: a file, or a folder that holds something else than a run."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; choose another folder with --out")
    if not folder.is_dir():
        return
    others = sorted(path.name for path in folder.iterdir() if path.name not in _OWN and not path.name.startswith("."))
    if others:
        raise InputError(f"{folder} holds other files ({others[0]}); choose another folder with --out")
    if (folder / RESULT).is_file():
        document = read_json(folder / RESULT)
        if not isinstance(document, dict) or document.get("kind") != "run":
            raise InputError(f"{folder / RESULT} is not of a run; choose another folder with --out")


def write_run(result: RunResult, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Writes result.json, recipe.yaml, junit.xml where there are gates, and the reports; what an older run left goes.

    Returns the files. Raises `InputError` where the folder can't be written to.
    """
    make_folder(folder)
    for name in _OWN:
        (folder / name).unlink(missing_ok=True)
    write_file(folder / RECIPE, yaml.safe_dump(result.recipe, sort_keys=False, allow_unicode=True).encode())
    written = write_reports(result, folder, formats)
    if result.gates or result.failures:
        write_file(folder / JUNIT, junit_xml(result).encode())
        written.append(folder / JUNIT)
    write_json(folder / RESULT, json.loads(result.to_json()))
    return [*written, folder / RESULT]
