"""What may be done to the folder that a run writes to window by window, and can go on with after an interruption."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqcli.errors import InputError
from tqcli.storage import MANIFEST, read_json

_SCRATCH = r"\.partial-(\d+-)?manifest\.json|\.tq-write-test"


def window_file(window: int, suffix: str = "safetensors") -> str:
    """Name of a window's file."""
    return f"window-{window:05d}.{suffix}"


@dataclass(frozen=True)
class FolderKind:
    """A kind of folder: which files in it are its own, and how far its run has come."""

    what: str
    """Without an article, for messages."""
    format: str
    """As its manifest names it."""
    own: str
    """Pattern of the names of what a run writes beside its manifest."""
    progress: Callable[[Path], tuple[int, int]]
    """Windows that are finished, and that were asked for; raises `InputError` for a broken manifest."""
    manifest_first: bool
    """Whether the manifest is written before any window, and removed after all of them: then there is never a window
    without one."""
    if_finished: str = ""
    """What a finished one is good for, beside being replaced."""

    def check_out(self, out: Path, overwrite: bool, resume: bool = False) -> None:
        """Raises `InputError`, with the remedy, if a run can't write to `out`. Changes nothing."""
        if overwrite and resume:
            raise InputError("--resume goes on with what --overwrite would remove; use one of them")
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file; choose another folder with --out")
        if not out.is_dir():
            return
        there = (out / MANIFEST).is_file()
        names = sorted(path.name for path in out.iterdir())
        others = [name for name in names if not self._is_own(out / name, there or not self.manifest_first)]
        if not there:
            if others:
                raise InputError(f"{out} holds other files ({others[0]}); choose another folder with --out")
            whole = [name for name in names if not name.startswith(".")]
            if whole and not (overwrite or resume):
                raise InputError(
                    f"{out} holds {whole[0]} without a manifest; replace it with --overwrite, "
                    "or choose another folder with --out"
                )
            return
        if overwrite:
            if _format(out) != self.format and (_format(out) is not None or others):
                raise InputError(f"{out} holds something else than {self._a()}; choose another folder with --out")
            return
        done, asked = self.progress(out)
        if resume or not self._holds_anything(out):
            return
        finished = done >= asked
        state = self._a() if finished else f"{self._a('unfinished')} ({done} of {asked} windows)"
        remedy = self.if_finished if finished else "go on with --resume, "
        raise InputError(
            f"{out} holds {state}; {remedy}replace it with --overwrite, or choose another folder with --out"
        )

    def prepare(self, out: Path, overwrite: bool, resume: bool = False) -> bool:
        """Makes way for a run at `out`, and tells whether there is one to go on with.

        If not, what an older one wrote is removed, and nothing else. Raises `InputError` as `check_out` does.
        """
        self.check_out(out, overwrite, resume)
        if not out.is_dir():
            return False
        if resume and (out / MANIFEST).is_file():
            return True
        # What is left of a removal that was cut short is either no folder of ours, or one with fewer windows.
        for path in sorted(out.iterdir(), key=lambda path: (path.name == MANIFEST) == self.manifest_first):
            if self._is_own(path):
                path.unlink()
        return False

    def _is_own(self, path: Path, with_windows: bool = True) -> bool:
        named = rf"(\.partial-(\d+-)?)?(manifest\.json|{self.own})|{_SCRATCH}" if with_windows else _SCRATCH
        return re.fullmatch(named, path.name) is not None and path.is_file()

    def _holds_anything(self, out: Path) -> bool:
        """Whether there is more than a manifest."""
        names = [path.name for path in out.iterdir() if self._is_own(path) and not path.name.startswith(".")]
        return any(name != MANIFEST for name in names)

    def _a(self, how: str = "") -> str:
        return f"an {how} {self.what}" if how else f"a {self.what}"


def _format(folder: Path) -> Any:
    """What the manifest says it is; None where it is broken."""
    try:
        document = read_json(folder / MANIFEST)
    except InputError:
        return None
    return document.get("format") if isinstance(document, dict) else None
