"""The folder that a run is written to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tqcli.errors import InputError
from tqcli.report.export import write_reports
from tqcli.report.junit import junit_xml
from tqcli.report.load import RESULT
from tqcli.report.run import RunResult
from tqcli.storage import make_folder, read_json, write_file, write_json

RECIPE, JUNIT = "recipe.yaml", "junit.xml"
_OWN = (RESULT, RECIPE, JUNIT, "report.html", "report.md", "layers.csv", "codecs.csv", "layers.parquet")
_ELSEWHERE = "choose another folder with --out"


def check_run_folder(folder: Path) -> None:
    """Raises `InputError` where a run can't be written: a file, or a folder that holds something else than a run.

    It holds a run if its result.json is one; then only that run's files may be there, and a recipe.yaml that was
    changed since isn't one of them. Hidden files are left alone.
    """
    try:
        if not folder.is_dir():
            if folder.exists():
                raise InputError(f"{folder} is a file; {_ELSEWHERE}")
            return
        there = {path.name: path for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
    except OSError as e:
        raise InputError(f"can't look into {folder}: {e.strerror}; {_ELSEWHERE}") from e
    if not there:
        return
    foreign = [name for name, path in there.items() if name not in _OWN or not path.is_file()]
    if foreign:
        raise InputError(f"{folder} holds other files ({foreign[0]}); {_ELSEWHERE}")
    if RESULT not in there:
        raise InputError(f"{folder} holds other files ({next(iter(there))}) and no {RESULT} of a run; {_ELSEWHERE}")
    document = _run_document(there[RESULT])
    if RECIPE in there and there[RECIPE].read_bytes() != _recipe_yaml(document.get("recipe")):
        raise InputError(f"{there[RECIPE]} was changed since the run; move it, or {_ELSEWHERE}")


def write_run(result: RunResult, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Writes result.json, recipe.yaml, junit.xml where there are gates or failures, and the reports.

    All are written beside what is there before the first takes its place; what else an older run left goes then.
    Returns the files. Raises `InputError` where the folder can't be written to, which leaves it as it was.
    """
    make_folder(folder)
    # Inside of the folder, so that what is hidden there stays, and a folder that can't be moved will do.
    with TemporaryDirectory(prefix=".tq-run-", dir=folder, ignore_cleanup_errors=True) as name:
        staged = Path(name)
        document = json.loads(result.to_json())
        write_file(staged / RECIPE, _recipe_yaml(document["recipe"]))
        written = write_reports(result, staged, formats)
        if result.gates or result.failures:
            write_file(staged / JUNIT, junit_xml(result).encode())
            written.append(staged / JUNIT)
        write_json(staged / RESULT, document)
        try:
            # The result first: by it the folder is known as a run's, whatever happens to the others.
            for own in _OWN:
                if (staged / own).exists():
                    (staged / own).replace(folder / own)
                else:
                    (folder / own).unlink(missing_ok=True)
        except OSError as e:
            raise InputError(f"can't replace {folder / own}: {e.strerror}; {_ELSEWHERE}") from e
    return [folder / path.name for path in (*written, staged / RESULT)]


def _run_document(file: Path) -> dict[str, Any]:
    try:
        document = read_json(file)
    except InputError as e:
        raise InputError(f"{e}; delete it, if it was a run's, or {_ELSEWHERE}") from e
    if not isinstance(document, dict) or document.get("kind") != "run":
        raise InputError(f"{file} is not of a run; {_ELSEWHERE}")
    return document


def _recipe_yaml(recipe: Any) -> bytes:
    return yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True).encode()
