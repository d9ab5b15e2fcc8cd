"""Reads what a user names as a model: a packaged one, a GGUF file, an mlx-lm folder or a hub id."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tqcli.errors import InputError
from tqcli.models.packaged import PACKAGED, is_pulled, pulled_folder

_HUB_ID = re.compile(r"(?P<id>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class ModelSource:
    """A model as the user named it, before anything is fetched or loaded."""

    name: str
    kind: Literal["packaged", "gguf", "folder", "hub"]
    path: Path | None
    """The folder or file on disk; None for a hub id, and for a packaged model that isn't here yet."""
    revision: str | None = None
    """The GGUF file's pinned sha256 of a packaged model; the branch, tag or commit that a hub id asks for."""

    @property
    def hub_id(self) -> str:
        """The name without the revision."""
        return self.name.partition("@")[0]


def resolve(name: str) -> ModelSource:
    """Tells what kind of model `name` is. Nothing is fetched.

    Tried in this order: a short name, a folder, a `.gguf` file, a hub id `org/model` or `org/model@revision`.
    Raises `InputError` for a missing file or folder, a folder without config.json and an unknown short name.
    """
    if name in PACKAGED:
        path = pulled_folder(name) if is_pulled(name) else None
        return ModelSource(name, "packaged", path, PACKAGED[name].gguf_sha256)
    if not name.strip() or "\0" in name:
        raise InputError(f"the model's name is empty or broken: {name!r}; see tq models list")
    path = Path(name).expanduser()
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as e:  # too long, no permission
        raise InputError(f"can't look at the model {name}: {e.strerror}; name a folder or a .gguf file") from e
    if is_folder:
        if not (path / "config.json").is_file():
            raise InputError(f"{name} is not a model folder: it has no config.json; name an mlx-lm model folder")
        return ModelSource(name, "folder", path)
    if name.lower().endswith(".gguf"):
        if not is_file:
            raise InputError(f"the model file {name} doesn't exist; check the path")
        return ModelSource(name, "gguf", path)
    if is_file:
        raise InputError(f"{name} is a file but not a .gguf one; name a .gguf file, a model folder or a hub id")
    if match := _HUB_ID.fullmatch(name):
        return ModelSource(name, "hub", None, match["revision"])
    if "/" in name or name.startswith((".", "~")):
        raise InputError(f"the model folder {name} doesn't exist; check the path")
    near = difflib.get_close_matches(name.lower(), PACKAGED, n=1, cutoff=0.0)
    raise InputError(
        f"there is no model {name!r}; nearest is {near[0]} (or name a folder, a .gguf file or a hub id like org/model)"
    )
