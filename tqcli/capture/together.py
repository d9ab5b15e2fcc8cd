"""One capture folder that several processes write to: process 0 keeps its manifest, each writes shards."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from tqcli.capture.folder import NO_SETTINGS, continued, prepare
from tqcli.capture.manifest import CaptureManifest, ShardRecord
from tqcli.distributed import Group
from tqcli.errors import InputError
from tqcli.manifests import settings
from tqcli.storage import WRITE_TEST, make_folder

_PATIENCE = 5.0
"""Seconds in which a network's file system has to show a new file to all."""


def begin(group: Group, out: Path, fresh: CaptureManifest, overwrite: bool, resume: bool) -> CaptureManifest:
    """Process 0 makes way for the capture that `fresh` begins; returns the manifest to go on from, the same in all.

    Raises `InputError` as `prepare` and `continued` do, where a process would capture something else than process 0,
    and where one doesn't see the folder.
    """
    if group.size > 1:
        group.check_alike(settings(fresh, NO_SETTINGS))
    manifest = fresh
    if group.rank == 0:
        found = prepare(out, overwrite, resume)
        make_folder(out)
        if found is not None:
            manifest = continued(out, fresh, found)
    _check_shared(group, out)
    return agree(group, manifest)


def agree(group: Group, manifest: CaptureManifest) -> CaptureManifest:
    """The manifest of process 0, in every process."""
    if group.size == 1:
        return manifest
    told = group.share(manifest.model_dump_json().encode() if group.rank == 0 else b"")
    return manifest if group.rank == 0 else CaptureManifest.model_validate_json(told)


def gather_shards(group: Group, shard: ShardRecord | None) -> list[ShardRecord]:
    """What the processes have written in this round, by rank; None for nothing."""
    if group.size == 1:
        return [shard] if shard else []
    written = group.gather(shard.model_dump_json().encode() if shard else b"")
    return [ShardRecord.model_validate_json(document) for document in written if document]


def _check_shared(group: Group, out: Path) -> None:
    """Raises `InputError`, in every process, unless all see what process 0 writes to `out`."""
    if group.size == 1:
        return
    mark, name = secrets.token_hex(8), out / WRITE_TEST
    if group.rank == 0:
        name.write_text(mark)
    mark = group.share(mark.encode()).decode()
    until = time.monotonic() + _PATIENCE
    while not (seen := _holds(name, mark)) and time.monotonic() < until:
        time.sleep(0.1)
    answers = group.gather(b"seen" if seen else b"")
    if group.rank == 0:
        name.unlink(missing_ok=True)
    if b"" in answers:
        raise InputError(
            f"process {answers.index(b'')} doesn't see what process 0 writes to {out}; name a folder that all machines "
            "share, with its full path, by --out"
        )


def _holds(name: Path, mark: str) -> bool:
    try:
        return name.read_text() == mark
    except OSError:
        return False
