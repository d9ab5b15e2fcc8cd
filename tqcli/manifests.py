"""What the manifests of captures and of encoded folders have in common: strict schemas, read with one-line errors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tqcli.errors import InputError
from tqcli.storage import MANIFEST, read_json


class Strict(BaseModel):
    """A record without unknown fields, which doesn't change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
"""A name inside the manifest's own folder: a manifest can't point elsewhere."""


class FileEntry(Strict):
    """A file of the folder, with its size in bytes and hex sha256."""

    file: FileName
    bytes: int
    sha256: str


Manifest = TypeVar("Manifest", bound=Strict)


def read_manifest(folder: Path, schema: type[Manifest], what: str, command: str) -> Manifest:
    """Reads and validates `folder`'s manifest, whose schema has the fields `format` and `version` with defaults.

    what: the kind of folder with its article, for messages; command: what makes one. Raises `InputError` in one line.
    """
    path = folder / MANIFEST
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; name {what}, or make one with: {command}")
    if not path.is_file():
        raise InputError(f"{folder} holds no {MANIFEST}: not {what}; make one with: {command}")
    document = read_json(path)
    kind, version = (schema.model_fields[name].default for name in ("format", "version"))
    found = document.get("format") if isinstance(document, dict) else None
    if found != kind:
        raise InputError(
            f"{folder} is not {what} ({MANIFEST} says format {found!r}); name a folder that {command} wrote"
        )
    if document.get("version") != version:
        raise InputError(
            f"{path} has version {document.get('version')!r}, this tq reads version {version}; "
            f"make it anew with {command}"
        )
    try:
        return schema.model_validate(document)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path} is broken at {where}: {first['msg']}; make it anew with {command}") from e
