"""Runs `tq` inside the test's process, and makes small captures for it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import copytree
from tempfile import mkdtemp
from typing import Any

from tiny_models import write_tiny_model

from tqcli.cli import app

# isort: split
import mlx.core as mx

PROSE = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. "
NOTICES = ("using ", "capturing again from window", "MLX's own BLAS")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document that is all of stdout."""
        return json.loads(self.out)


def tq(*arguments: object, folder: Path | None = None) -> Outcome:
    """Runs a command line, in another working folder where one is named."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), chdir(folder or Path.cwd()):
        code = app.run([str(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())


def done(*arguments: object, folder: Path | None = None) -> Outcome:
    """Runs a command line that has to succeed."""
    outcome = tq(*arguments, folder=folder)
    assert outcome.code == 0, outcome.err
    return outcome


def refusal(*arguments: object, folder: Path | None = None) -> str:
    """Runs a command line that has to be refused in one clear line, and returns that line."""
    outcome = tq(*arguments, folder=folder)
    assert outcome.code == 2, outcome
    lines = [line for line in outcome.err.splitlines() if not any(notice in line for notice in NOTICES)]
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("tq: ")
    assert outcome.out == ""
    return lines[0].removeprefix("tq: ")


def unread(*arguments: object) -> tuple[int, str]:
    """Exit code and stderr of a command line in a process of its own whose stdout nobody reads."""
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run(command(*arguments), stdout=write, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(write)
    return ended.returncode, ended.stderr


def command(*arguments: object) -> list[str]:
    """What starts a command line in a process of its own."""
    return [sys.executable, "-m", "tqcli", *map(str, arguments)]


@cache
def workplace() -> Path:
    """A folder with a tiny model `model` and the texts `book.txt` and `long.txt`, made once. Not to be changed."""
    folder = Path(mkdtemp(prefix="tq-cli-"))
    write_tiny_model(folder / "model", layers=2, heads=2, kv_heads=1, head_dim=64)
    (folder / "book.txt").write_text(PROSE * 60, encoding="utf-8")
    (folder / "long.txt").write_text(PROSE * 400, encoding="utf-8")
    return folder


def capture_arguments(out: Path, *more: object, windows: int = 3, tokens: int = 96) -> list[object]:
    """`tq capture` of the tiny model on the book."""
    there = workplace()
    size = ["--windows", windows, "--tokens", tokens, "--queries", 8]
    return ["capture", there / "model", "--dataset", there / "book.txt", "--out", out, *size, *more]


def make_capture(out: Path, **size: int) -> Path:
    """A finished capture of its own."""
    return copytree(_captured(**size), out)


@cache
def _captured(**size: int) -> Path:
    out = Path(mkdtemp(prefix="tq-cli-")) / "capture"
    done(*capture_arguments(out, **size))
    return out


def files_of(folder: Path) -> dict[str, str]:
    """sha256 of every file, by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.iterdir() if path.is_file())


def arrays_of(shard: Path) -> dict[str, mx.array]:
    """What a safetensors file holds."""
    loaded = mx.load(str(shard))
    assert isinstance(loaded, dict)
    return loaded


def edit_manifest(folder: Path, **changes: Any) -> None:
    """Sets top-level fields of a manifest; None removes one."""
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del document[key]
        else:
            document[key] = value
    path.write_text(json.dumps(document))
