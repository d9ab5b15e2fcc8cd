"""What the manifests of all kinds of folders have in common: strict schemas, read with one-line errors."""

from __future__ import annotations

from collections.abc import Iterator, Set
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tqcli.codecs.context import RotaryParameters
from tqcli.errors import InputError
from tqcli.storage import MANIFEST, read_json


class Strict(BaseModel):
    """A record without unknown fields, which doesn't change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Count = Annotated[int, Field(ge=1, le=1 << 24)]
"""How many of something a cache has: more than 16 million are a damaged manifest."""
Dtype = Literal["float32", "float16", "bfloat16"]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
"""A name inside the manifest's own folder: a manifest can't point elsewhere."""


class FileEntry(Strict):
    """A file of the folder, with its size in bytes and hex sha256."""

    file: FileName
    bytes: int
    sha256: str


def check_series(windows: list[int], layers: list[int]) -> None:
    """Raises `ValueError` unless windows count up from 0 and each layer is there once."""
    if windows != list(range(len(windows))):
        raise ValueError(f"the shards are of windows {windows[:8]}, not 0, 1, 2, ...")
    if len(set(layers)) != len(layers) or any(layer < 0 for layer in layers):
        raise ValueError("a layer is listed twice, or has a negative number")


def check_rotary(rotary: RotaryParameters | None, head_dim: int) -> None:
    """Raises `ValueError` for frequencies that aren't finite, or turn more channels than there are."""
    if rotary is None:
        return
    if rotary.dims > head_dim:
        raise ValueError(f"{len(rotary.frequencies)} rotary frequencies are too many for a head_dim of {head_dim}")
    if not all(map(isfinite, rotary.frequencies)):
        raise ValueError("a rotary frequency is not a finite number")


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


_NAMES = ("model name", "model kind", "dataset spec", "calibration spec")
"""How the user named what the hashes identify: another path to the same files is no other run."""


def first_difference(found: Strict, fresh: Strict, exclude: Set[str] = frozenset()) -> str | None:
    """The first setting in which two manifests of one kind differ, with both values; None if they are of one run.

    exclude: fields that aren't settings.
    """
    pairs = list(_pairs(found.model_dump(exclude=set(exclude)), fresh.model_dump(exclude=set(exclude))))
    # Hashes last: where an option differs it is that which is named, not a hash that follows from it.
    for name, there, here in sorted(pairs, key=lambda pair: pair[0].endswith("sha256")):
        if there != here and name not in _NAMES:
            return f"{name} ({_brief(there)}, now {_brief(here)})"
    return None


def settings(manifest: Strict, exclude: Set[str] = frozenset()) -> dict[str, Any]:
    """What identifies a run, flat, as JSON values: those of `first_difference`, hashes last."""
    document = manifest.model_dump(mode="json", exclude=set(exclude))
    flat = {name: value for name, value, _ in _pairs(document, document) if name not in _NAMES}
    return {name: flat[name] for name in sorted(flat, key=lambda name: name.endswith("sha256"))}


def _pairs(there: dict[str, Any], here: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Name and both values of everything that isn't itself a record."""
    for key in here:
        name, before, now = prefix + key.replace("_", " "), there[key], here[key]
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _pairs(before, now, f"{name} ")
        else:
            yield name, before, now


def _brief(value: Any) -> Any:
    return "one" if isinstance(value, dict) else value
