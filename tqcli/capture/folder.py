"""The folder that a capture is written to: what may be done to it, and how an unfinished one is gone on with."""

from __future__ import annotations

import sys
from pathlib import Path

from tqcli.capture.manifest import FORMAT, CaptureManifest, ShardRecord, load_manifest
from tqcli.errors import InputError
from tqcli.manifests import first_difference
from tqcli.resumable import FolderKind
from tqcli.storage import FileRecord, verify


def _progress(folder: Path) -> tuple[int, int]:
    manifest = load_manifest(folder)
    return len(manifest.shards), manifest.dataset.windows


NO_SETTINGS = frozenset({"layers", "skipped", "shards"})
"""Fields of the manifest that a run fills in."""
_FOLDER = FolderKind("capture", FORMAT, r"window-\d{5,}\.safetensors", _progress, manifest_first=False)
check_out = _FOLDER.check_out


def prepare(out: Path, overwrite: bool, resume: bool = False) -> CaptureManifest | None:
    """Makes way for a capture at `out`: the manifest to go on from, or None for a fresh start.

    With `overwrite` removes an older capture's own files, and nothing else. Raises `InputError` as `check_out` does.
    """
    return load_manifest(out) if _FOLDER.prepare(out, overwrite, resume) else None


def continued(out: Path, fresh: CaptureManifest, found: CaptureManifest) -> CaptureManifest:
    """The manifest that was found, cut to its leading shards that are whole.

    Raises `InputError`, naming the first difference, if it isn't of the run that `fresh` begins.
    """
    if difference := first_difference(found, fresh, exclude=NO_SETTINGS):
        raise InputError(
            f"{out} was captured with another {difference}; repeat the first run's options, or use --overwrite"
        )
    good: list[ShardRecord] = []
    for shard in found.shards:
        try:
            verify(out, FileRecord(shard.file, shard.bytes, shard.sha256))
        except InputError as e:
            print(f"tq: {str(e).partition(';')[0]}; capturing again from window {shard.window}", file=sys.stderr)
            break
        good.append(shard)
    return found.model_copy(update={"shards": good})
