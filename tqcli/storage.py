"""Folders of safetensors shards beside a JSON manifest: written whole, renamed, hashed, verified on reading."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from tqcli.errors import InputError

MANIFEST = "manifest.json"
WRITE_TEST = ".tq-write-test"
"""Name of a file that is made and removed to see what can be done in a folder."""
_BLOCK = 1 << 20


@dataclass(frozen=True)
class FileRecord:
    """What a manifest says of one file: its name inside the folder, its size in bytes and its sha256."""

    file: str
    bytes: int
    sha256: str


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def sha256_bytes(data: bytes) -> str:
    """Hex sha256 of bytes in memory."""
    return hashlib.sha256(data).hexdigest()


def make_folder(path: Path, option: str = "--out") -> Path:
    """Makes a folder that can be written to, or raises `InputError` naming it and the option that chooses it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / WRITE_TEST
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as e:
        raise InputError(f"can't write to the folder {path}: {e.strerror}; choose another with {option}") from e
    return path


def check_file(path: Path, option: str = "--out") -> None:
    """Makes the file's folder, or raises `InputError` where the file couldn't be written. What it holds stays."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file with {option}")
    make_folder(path.parent, option)
    if path.exists():
        try:
            path.open("ab").close()
        except OSError as e:
            raise InputError(f"can't write to {path}: {e.strerror}; choose another file with {option}") from e


def plain_path(path: Path) -> Path:
    """The path without `..`: a check of one whose middle doesn't exist yet would look at another place than a write."""
    return Path(os.path.normpath(path))


@contextmanager
def staged_folder(out: Path) -> Iterator[Path]:
    """A new folder beside `out` to fill, which takes its place, and that of what was there, when the block ends well.

    If it doesn't, `out` is as it was. Raises `InputError` where the folder can't be made or moved.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out = out.resolve()
        work = Path(tempfile.mkdtemp(prefix=f".{out.name[:80]}-", dir=out.parent))
        work.chmod(out.parent.stat().st_mode & 0o777)
    except OSError as e:
        raise InputError(f"can't write beside {out}: {e.strerror}; choose another folder with --out") from e
    try:
        yield work
        old = work.with_name(f"{work.name}-old")
        try:
            if out.exists():
                out.rename(old)
            work.rename(out)
        except OSError as e:
            raise InputError(f"can't replace {out}: {e.strerror}; choose another folder with --out") from e
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file or folder that is being made. The system drops it if the process dies."""
    import fcntl

    with (path.parent / f".lock-{path.name}").open("w") as lock:
        # Some network file systems have no locks: then something may be made twice, which does no harm.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_shard(folder: Path, name: str, arrays: Mapping[str, mx.array], metadata: Mapping[str, str]) -> FileRecord:
    """Writes `arrays` to `folder/name` (a .safetensors name) under a temporary name, syncs, renames and hashes it.

    A killed or failed write leaves no file of that name. Raises `InputError` if the disk refuses.
    """
    target, temporary = folder / name, folder / _partial(name)
    try:
        mx.save_safetensors(str(temporary), dict(arrays), dict(metadata))
        _sync(temporary)
        record = FileRecord(name, temporary.stat().st_size, sha256_file(temporary))
        temporary.replace(target)
    except (OSError, RuntimeError) as e:
        temporary.unlink(missing_ok=True)
        raise InputError(f"can't write {target}: {e}; free some space or choose another folder with --out") from e
    return record


def _partial(name: str) -> str:
    """Temporary name of a file; another process that writes the same one has another."""
    return f".partial-{os.getpid()}-{name}"


def write_json(path: Path, document: Any, indent: int | None = 1) -> None:
    """Writes a JSON document under a temporary name, syncs and renames it. Raises `InputError` if refused."""
    write_file(path, (json.dumps(document, indent=indent) + "\n").encode())


def write_file(path: Path, content: bytes) -> None:
    """Writes a file under a temporary name, syncs and renames it. Raises `InputError` if refused."""
    temporary = path.with_name(_partial(path.name))
    try:
        temporary.write_bytes(content)
        _sync(temporary)
        temporary.replace(path)
    except OSError as e:
        temporary.unlink(missing_ok=True)
        raise InputError(f"can't write {path}: {e.strerror}; choose another folder with --out") from e


def read_json(path: Path) -> Any:
    """Reads a JSON document, or raises `InputError` naming the file and the place where it is broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise InputError(f"{path} doesn't exist") from e
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"can't read {path}: {e}") from e
    except json.JSONDecodeError as e:
        raise InputError(f"{path} is not valid JSON (line {e.lineno}): {e.msg}") from e
    except (ValueError, RecursionError) as e:  # numbers of thousands of digits, thousands of brackets
        raise InputError(f"{path} is not a manifest: {e}") from e


def verify(folder: Path, record: FileRecord) -> None:
    """Raises `InputError` if the file is missing, shorter or longer than recorded, or has other contents."""
    path = folder / record.file
    if not path.is_file():
        raise InputError(f"{path} is missing; the manifest lists it: make the folder anew")
    size = path.stat().st_size
    if size != record.bytes:
        raise InputError(f"{path} has {size} bytes, the manifest says {record.bytes}: truncated; make it anew")
    if sha256_file(path) != record.sha256:
        raise InputError(f"{path} doesn't match its sha256 in the manifest: corrupted; make it anew")


def read_shard(folder: Path, record: FileRecord, check: bool = True) -> tuple[dict[str, mx.array], dict[str, str]]:
    """The arrays (read lazily from disk) and metadata of one shard; verified first unless `check` is False."""
    if check:
        verify(folder, record)
    try:
        loaded = mx.load(str(folder / record.file), return_metadata=True)
    except (OSError, RuntimeError, ValueError) as e:
        raise InputError(f"can't read {folder / record.file}: {e}") from e
    return cast(tuple[dict[str, mx.array], dict[str, str]], loaded)


def _sync(path: Path) -> None:
    with path.open("rb") as f:
        os.fsync(f.fileno())
