"""Whether a capture in the cache can be read, or gone on with: folders of a cache are cut short, copied and pruned."""

from __future__ import annotations

from pathlib import Path

from tqcli.capture.store import open_capture
from tqcli.errors import InputError
from tqcli.storage import MANIFEST, FileRecord, verify


def is_sound(folder: Path, windows: int) -> bool:
    """Whether all windows are there as they were written, by their hashes."""
    try:
        shards = open_capture(folder).manifest.shards
        for shard in shards:
            verify(folder, FileRecord(shard.file, shard.bytes, shard.sha256))
    except InputError:
        return False
    return len(shards) == windows


def can_go_on(folder: Path) -> bool:
    """Whether there is nothing yet, or an unfinished capture whose windows are sound."""
    if not folder.exists():
        return True
    if not (folder / MANIFEST).is_file():
        return False
    try:
        return is_sound(folder, len(open_capture(folder).manifest.shards))
    except InputError:
        return False
