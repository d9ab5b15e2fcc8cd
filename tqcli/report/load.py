"""Reads results back: those of runs, and what `tq eval ... --json` printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tqcli.errors import InputError
from tqcli.report.run import RUN_VERSION, RunResult
from tqcli.report.schema import SCHEMA_VERSION, Result

RESULT = "result.json"


def read_result(path: Path) -> RunResult | Result:
    """A run's folder, its result.json, or a file with the JSON of a measuring command.

    Raises `InputError` for what is none of these, is damaged or is of another version.
    """
    file = path / RESULT if path.is_dir() else path
    document = _document(path, file)
    kind = RunResult if document.get("kind") == "run" else Result
    version, known = document.get("version"), RUN_VERSION if kind is RunResult else SCHEMA_VERSION
    if version != known:
        raise InputError(f"{file} is of version {version!r}, and this tq reads version {known}; measure anew")
    try:
        return kind.model_validate(document)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{file} is no result of tq: {where}: {first['msg']}; measure anew") from e


def load_run(path: Path) -> RunResult:
    """As `read_result`, of a run. Raises `InputError` for the result of another command too."""
    result = read_result(path)
    if not isinstance(result, RunResult):
        raise InputError(f"{path} is of tq eval {result.kind}, and no run; name a folder that tq run wrote")
    return result


def _document(path: Path, file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        if path.is_dir():
            raise InputError(f"{path} has no {RESULT}: it is no finished run") from e
        raise InputError(f"there is no {path}; name a run's folder, or a file with the JSON of tq eval") from e
    except OSError as e:
        raise InputError(f"can't read {file}: {e.strerror}") from e
    except ValueError as e:
        raise InputError(f"{file} is no JSON document: {e}") from e
    if not isinstance(document, dict) or "kind" not in document:
        raise InputError(f"{file} is no result of tq: it has no `kind`")
    return document
