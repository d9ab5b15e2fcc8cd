"""Finished steps on disk, by what they depend on: a step whose key is there isn't done again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tqcli.errors import InputError
from tqcli.report.schema import Result
from tqcli.storage import locked, make_folder, read_json, sha256_bytes, write_json

_VERSION = 2
_KEY_LENGTH = 16


def key_of(parts: Mapping[str, Any]) -> str:
    """A digest of what a step depends on; the same for the same JSON."""
    return sha256_bytes(json.dumps([_VERSION, parts], sort_keys=True).encode())[:_KEY_LENGTH]


@dataclass(frozen=True)
class Finished:
    """What a measure gave for one codec."""

    batch: str
    """Of the run that measured it, maybe with other codecs: counts in `result` that are of all of them."""
    result: Result
    """With this codec first, and after it codecs that the measure adds by itself."""
    seconds: float
    """Its share of the time."""


class StepStore:
    """A folder with an entry a step: JSON files of measures, folders of captures and of runs that were cut short."""

    def __init__(self, folder: Path, make: bool = True) -> None:
        """Raises `InputError` if the folder can't be made or written to; without `make` it is to be read alone."""
        self.folder = make_folder(folder, "--cache") if make else folder

    def path(self, kind: str, key: str) -> Path:
        """Where a step keeps a folder of its own."""
        return self.folder / f"{kind}-{key}"

    def find(self, kind: str, key: str) -> Finished | None:
        """A finished measure; None where there is none, or one that this tq can't read."""
        file = self._file(kind, key)
        if not file.is_file():
            return None
        try:
            document = read_json(file)
            if document["key"] != key or not document["result"]["codecs"]:
                return None
            return Finished(document["batch"], Result.model_validate(document["result"]), float(document["seconds"]))
        except (InputError, ValidationError, KeyError, TypeError, ValueError):
            return None

    def keep(self, kind: str, key: str, finished: Finished) -> None:
        """Writes a finished measure, whole and renamed."""
        result = json.loads(finished.result.to_json())
        entry = {"key": key, "batch": finished.batch, "seconds": finished.seconds, "result": result}
        write_json(self._file(kind, key), entry)

    def locked(self, kind: str, key: str) -> AbstractContextManager[None]:
        """Keeps other processes from the same step while the block lasts."""
        return locked(self.path(kind, key))

    def forget(self, path: Path) -> None:
        """Removes a step's folder, or a file in its place."""
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def _file(self, kind: str, key: str) -> Path:
        return self.folder / f"{kind}-{key}.json"
