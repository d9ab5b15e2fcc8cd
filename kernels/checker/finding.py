"""What the checker finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tqcli.kernels.runtime.kernel import INCLUDES

CHECKER, LINT = "CPU checker", "lint"
"""What finds."""
NOTE = "note"
"""The kind of what is worth knowing and no fault."""
NOT_COMPILED = "doesn't compile"


@dataclass(frozen=True, order=True)
class Finding:
    """One fault of a body, told once for each line, kind and buffer."""

    file: str
    """As `file_name` has it."""
    line: int
    """In that file, from 1; 0 if the fault is the launch's, or the line isn't known."""
    kind: str
    """Such as "data race"."""
    buffer: str
    """Name of the input, output or threadgroup array; empty if none is concerned."""
    text: str
    """What happened: elements, threads, the other line."""
    count: int = field(default=1, compare=False)
    """How often it happened in the run."""
    tool: str = field(default=CHECKER, compare=False)
    """`CHECKER` or `LINT`."""
    case: str = field(default="", compare=False)
    """The body and the first of its cases in which it was found; empty for a launch of its own."""

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        # The text begins with the element where there is one: "buf[64]: thread ...".
        of_element = self.buffer and self.kind.endswith((" read", " write"))
        about = " on " if self.kind == "data race" else " of " if of_element else ": "
        return f"{f'{self.place}: ' if self.file else ''}{self.kind}{about}{self.text}"

    @property
    def told(self) -> str:
        """The line with what found it and where."""
        return f"{self} [{self.tool}{f'; {self.case}' if self.case else ''}]"


@dataclass(frozen=True)
class Checked:
    """A launch after it ran on the CPU, every memory access watched."""

    outputs: list[np.ndarray]
    """In the order of the kernel's outputs; bfloat16 as float32. None at all if the body doesn't compile."""
    findings: list[Finding]
    """Sorted by file and line; empty if nothing is wrong."""
    unwritten: list[np.ndarray] = field(default_factory=list)
    """Of each output, which elements (booleans of its shape) no thread wrote: their value means nothing."""


def unique(findings: list[Finding]) -> list[Finding]:
    """Each finding once for its line, kind and buffer, the first one's text, sorted."""
    first: dict[tuple[str, int, str, str], Finding] = {}
    for finding in findings:
        first.setdefault((finding.file, finding.line, finding.kind, finding.buffer), finding)
    return sorted(first.values())


def faults(findings: Iterable[Finding]) -> list[Finding]:
    """All but notes."""
    return [finding for finding in findings if finding.kind != NOTE]


def file_name(path: Path | str) -> str:
    """As findings call a file: a header that bodies share by its path under `INCLUDES`, others by their name."""
    at = Path(path)
    return at.relative_to(INCLUDES).as_posix() if at.is_relative_to(INCLUDES) else at.name
