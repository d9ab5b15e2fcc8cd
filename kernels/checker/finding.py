"""What the checker finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True, order=True)
class Finding:
    """One fault of a body, told once for each line, kind and buffer."""

    file: str
    """Name of the .metal or header file."""
    line: int
    """In that file, from 1; 0 if the fault is the launch's."""
    kind: str
    """Such as "data race"."""
    buffer: str
    """Name of the input, output or threadgroup array; empty if none is concerned."""
    text: str
    """What happened: elements, threads, the other line."""
    count: int = field(default=1, compare=False)
    """How often it happened in the run."""

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        # The text begins with the element where there is one: "buf[64]: thread ...".
        about = (
            f" on {self.text}" if self.kind == "data race" else f" of {self.text}" if self.buffer else f": {self.text}"
        )
        return f"{self.place}: {self.kind}{about}"


@dataclass(frozen=True)
class Checked:
    """A launch after it ran on the CPU, every memory access watched."""

    outputs: list[np.ndarray]
    """In the order of the kernel's outputs; bfloat16 as float32."""
    findings: list[Finding]
    """Sorted by file and line; empty if nothing is wrong."""


def unique(findings: list[Finding]) -> list[Finding]:
    """Each finding once for its line, kind and buffer, the first one's text, sorted."""
    first: dict[tuple[str, int, str, str], Finding] = {}
    for finding in findings:
        first.setdefault((finding.file, finding.line, finding.kind, finding.buffer), finding)
    return sorted(first.values())


def file_name(path: str) -> str:
    """As findings call a file."""
    return Path(path).name
