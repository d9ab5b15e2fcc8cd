"""Folders in the cache that are made once: under a lock, in a temporary folder, renamed whole, with a record."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqcli.errors import InputError
from tqcli.storage import locked, read_json, sha256_file, write_json

RECORD = "tq-model.json"
"""What a finished folder holds and where it came from; written last."""
_FORMAT = "tq-model"
_VERSION = 1
"""Raised when the conversion changes: then folders of older versions are made anew."""


def make_once(folder: Path, make: Callable[[Path, Path], dict[str, Any]]) -> None:
    """Makes `folder` unless it is there and intact. A second process waits and finds it done.

    make: is given an empty folder to fill and a scratch folder, and returns what the record shall say of the origin.
    Both are deleted if it raises. Raises `InputError` if the disk refuses.
    """
    if is_intact(folder):
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if is_intact(folder):
                return
            # A killed process leaves its temporary folder; whoever holds the lock may clear it away.
            for left in folder.parent.glob(f".making-{folder.name}-*"):
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".making-{folder.name}-") as temporary:
                part, scratch = Path(temporary) / "model", Path(temporary) / "scratch"
                part.mkdir()
                scratch.mkdir()
                origin = make(part, scratch)
                _write_record(part, origin)
                if folder.exists():
                    folder.rename(Path(temporary) / "damaged")
                part.rename(folder)
    except OSError as e:
        raise InputError(
            f"can't write to the cache folder {folder.parent}: {e.strerror or e}; set TQ_CACHE to another"
        ) from e


def is_intact(folder: Path) -> bool:
    """Whether every file of the record is there in its size. Contents are not read."""
    try:
        record = read_json(folder / RECORD)
        files = record["files"] if record["version"] == _VERSION else {}
        return bool(files) and all((folder / name).stat().st_size == file["bytes"] for name, file in files.items())
    except (InputError, OSError, KeyError, TypeError, AttributeError):
        return False


def origin(folder: Path) -> dict[str, Any] | None:
    """What the record says of where the model came from; None for a folder that isn't from the cache."""
    try:
        document = read_json(folder / RECORD)
        return dict(document["origin"]) if document["format"] == _FORMAT else None
    except (InputError, KeyError, TypeError, ValueError):
        return None


def recorded_sha256(file: Path) -> str | None:
    """The sha256 that the record beside `file` has of it, if size and time still match; None if not to be trusted."""
    try:
        known, now = read_json(file.parent / RECORD)["files"][file.name], file.stat()
        unchanged = known["bytes"] == now.st_size and known["mtime_ns"] == now.st_mtime_ns
        return str(known["sha256"]) if unchanged else None
    except (InputError, OSError, KeyError, TypeError):
        return None


def _write_record(folder: Path, origin: dict[str, Any]) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        status = path.stat()
        files[path.name] = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256_file(path)}
        with path.open("rb") as f:
            os.fsync(f.fileno())
    write_json(folder / RECORD, {"format": _FORMAT, "version": _VERSION, "origin": origin, "files": files})
