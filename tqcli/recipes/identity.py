"""What tells models, texts and machines apart, found out without loading anything: what cached results depend on."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from tqcli.datasets import Text
from tqcli.environment import device_name, versions
from tqcli.kernels.runtime import preferred
from tqcli.models.fetching import fetch, local_folder
from tqcli.models.source import resolve

_MODEL_FILES = (".json", ".safetensors", ".model", ".txt", ".jinja", ".tiktoken", ".py")
"""Suffixes of the files that a model is loaded from."""
Identity = dict[str, Any]
"""Of JSON types alone."""


def model_identity(name: str, may_fetch: bool = True) -> Identity:
    """A packaged model's pinned hash, a hub's commit, or names, sizes and times of the files.

    A hub's model is looked up there, and fetched where it isn't here yet; without `may_fetch` such a one has no commit.
    Raises `InputError` as `resolve` does.
    """
    source = resolve(name)
    if source.kind == "packaged":
        return {"packaged": source.revision}
    if source.kind == "hub":
        folder = fetch(source) if may_fetch else local_folder(source)
        return {"hub": source.hub_id, "commit": folder.name if folder is not None else None}
    assert source.path is not None, "a file or folder has a path"
    path = source.path.resolve()
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in _MODEL_FILES)
    return {"path": str(path), "files": [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]}


def text_identity(text: Text) -> Identity:
    """The hash of the text, under whatever name."""
    return {"text": text.sha256}


def machine_identity() -> Identity:
    """Versions, device and kernels: another one gives other last bits."""
    return {**versions(), "mlx_lm": version("mlx-lm"), "device": device_name(), "kernels": preferred()[0]}
