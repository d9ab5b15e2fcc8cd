"""Reads the result of a run."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from tqcli.errors import InputError
from tqcli.report.run import RUN_VERSION, RunResult
from tqcli.storage import read_json

RESULT = "result.json"


def load_run(path: Path) -> RunResult:
    """The result in a run's folder, or in its `result.json`.

    Raises `InputError` for a path that is neither, a result of another kind or version, or a damaged one.
    """
    if path.is_dir():
        if not (path / RESULT).is_file():
            raise InputError(f"{path} has no {RESULT}: it is no run's folder, or its run isn't finished; see tq run")
        path = path / RESULT
    document = read_json(path)
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind != "run":
        what = f"of tq eval {kind}" if kind else "something else"
        raise InputError(f"{path} is {what}, not the result of a run; name a folder that tq run wrote")
    if document.get("version") != RUN_VERSION:
        raise InputError(
            f"{path} has version {document.get('version')}, this tq reads {RUN_VERSION}; run the recipe again"
        )
    try:
        return RunResult.model_validate(document)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{path} is damaged at {where}: {first['msg']}; run the recipe again") from e
