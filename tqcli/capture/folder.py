"""Decides what may be done to the folder that a capture is to be written to."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from tqcli.capture.manifest import FORMAT, CaptureManifest, ShardRecord, load_manifest
from tqcli.errors import InputError
from tqcli.storage import MANIFEST, FileRecord, read_json, verify

_OWN = re.compile(r"(\.partial-)?(manifest\.json|window-\d{5,}\.safetensors)|\.tq-write-test")
_NAMES = ("model name", "model kind", "dataset spec")
"""How the user named what the hashes identify: another path to the same files is no other capture."""


def shard_name(window: int) -> str:
    """File name of a window's shard."""
    return f"window-{window:05d}.safetensors"


def check_out(out: Path, overwrite: bool, resume: bool = False) -> None:
    """Raises `InputError`, with the remedy, if a capture can't be written to `out`. Changes nothing."""
    if overwrite and resume:
        raise InputError("--resume goes on with what --overwrite would remove; use one of them")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose another folder with --out")
    if not out.is_dir():
        return
    others = sorted(path.name for path in out.iterdir() if not _is_own(path))
    if not (out / MANIFEST).is_file():
        if others:
            raise InputError(f"{out} holds other files ({others[0]}); choose another folder with --out")
        whole = sorted(path.name for path in out.iterdir() if path.name.startswith("window-"))
        if whole and not (overwrite or resume):
            raise InputError(
                f"{out} holds {whole[0]} without a manifest; replace it with --overwrite, "
                "or choose another folder with --out"
            )
        return
    if overwrite:
        if _format(out) != FORMAT and (_format(out) is not None or others):
            raise InputError(f"{out} holds something else than a capture; choose another folder with --out")
        return
    found = load_manifest(out)
    if resume:
        return
    state = "a capture" if found.complete else f"an unfinished capture ({_windows(found)})"
    remedy = "" if found.complete else "go on with --resume, "
    raise InputError(f"{out} holds {state}; {remedy}replace it with --overwrite, or choose another folder with --out")


def prepare(out: Path, overwrite: bool, resume: bool = False) -> CaptureManifest | None:
    """Makes way for a capture at `out`: the manifest to go on from, or None for a fresh start.

    With `overwrite` removes an older capture's own files, and nothing else. Raises `InputError` as `check_out` does.
    """
    check_out(out, overwrite, resume)
    if not out.is_dir():
        return None
    if resume and (out / MANIFEST).is_file():
        return load_manifest(out)
    # The manifest goes first: without one, what is left of a removal that was cut short is not taken for a capture.
    for path in sorted(out.iterdir(), key=lambda path: path.name != MANIFEST):
        if _is_own(path):
            path.unlink()
    return None


def continued(out: Path, fresh: CaptureManifest, found: CaptureManifest) -> CaptureManifest:
    """The manifest that was found, cut to its leading shards that are whole.

    Raises `InputError`, naming the first difference, if it isn't of the run that `fresh` begins.
    """
    there = _identity(found)
    for key, value in _identity(fresh).items():
        if there[key] != value:
            raise InputError(
                f"{out} was captured with another {key} ({there[key]}, now {value}); "
                "repeat the first run's options, or use --overwrite"
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


def _identity(manifest: CaptureManifest) -> dict[str, Any]:
    """Everything that the shards' bytes depend on, flat."""
    document = manifest.model_dump(exclude={"layers", "skipped", "shards"})
    flat = {key.replace("_", " "): value for key, value in document.items() if not isinstance(value, dict)}
    for group in ("model", "dataset"):
        flat |= {f"{group} {key.replace('_', ' ')}": value for key, value in document[group].items()}
    # Hashes last: where an option differs it is that which is named, not a hash that follows from it.
    return {key: flat[key] for key in sorted(flat, key=lambda key: key.endswith("sha256")) if key not in _NAMES}


def _windows(manifest: CaptureManifest) -> str:
    return f"{len(manifest.shards)} of {manifest.dataset.windows} windows"


def _is_own(path: Path) -> bool:
    return _OWN.fullmatch(path.name) is not None and path.is_file()


def _format(folder: Path) -> Any:
    """What the manifest says it is; None where it is broken."""
    try:
        document = read_json(folder / MANIFEST)
    except InputError:
        return None
    return document.get("format") if isinstance(document, dict) else None
