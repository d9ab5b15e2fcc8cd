"""Shows how a study goes: a live table on a terminal, and a line a step elsewhere, both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tqcli.recipes.cost import Work
from tqcli.recipes.steps import Steps
from tqcli.streams import tell, visible

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_REFRESHES = 4
"""A second."""
Cell = tuple[str, str]


class Board:
    """An observer that keeps what each step of a study has come to."""

    def __init__(self, steps: Steps, work: Work) -> None:
        self._steps, self._work = steps, work
        self._cells: dict[Cell, str] = {
            (step.measure, step.codec.name): "" if step.finished is None else "cached" for step in steps.measures
        }
        self._cells |= {(step.name, ""): "cached" for step in steps.captures}
        self._cells |= {(step.name, ""): "" for step in steps.captures_to_do}
        self._running: list[Cell] = []
        self._done, self._part = 0.0, 0.0
        self._live: Live | None = None
        self._began = time.perf_counter()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While the block lasts, the table is on the terminal, if there is one and something is to be done."""
        if not sys.stderr.isatty() or not self._work.total:
            yield
            return
        from rich.console import Console
        from rich.live import Live

        # Names are no markup, and none of rich's words for pictures.
        console = Console(stderr=True, markup=False, emoji=False)
        with Live(get_renderable=self._table, console=console, refresh_per_second=_REFRESHES, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def begin(self, step: str, codecs: Sequence[str]) -> None:
        """A step begins, for these codecs at once."""
        self._running = [(step, codec) for codec in codecs] or [(step, "")]
        self._part = 0.0
        self._mark("running")

    def advance(self, part: float) -> None:
        """So much of the step is done."""
        if self._running:
            self._part = part
            self._mark(f"{100 * part:.0f} %")

    def end(self, seconds: float, error: str | None) -> None:
        """The step is done, or failed."""
        self._mark("failed" if error else f"{seconds:.1f} s")
        self._done += self._work.of(self._running)
        self._part = 0.0  # from here on the step counts as done
        names = ", ".join(codec for _, codec in self._running if codec)
        if self._live is None and self._running:
            what = f"{self._running[0][0]}{f' of {names}' if names else ''}"
            ended = f"failed: {error}" if error else f"done in {seconds:.1f} s"
            left = "" if (seconds_left := self._left()) is None else f", about {_clock(seconds_left)} left"
            tell(f"{what} {ended}{left}")
        self._running = []

    def _mark(self, text: str) -> None:
        for cell in self._running:
            self._cells[cell] = text

    def _left(self) -> float | None:
        """Seconds, by the work that is done; None while nothing tells."""
        done = self._done + self._part * self._work.of(self._running)
        if done <= 0 or done >= self._work.total:
            return None
        return (time.perf_counter() - self._began) * (self._work.total - done) / done

    def _table(self) -> Table:
        from rich.table import Table

        measures = list(dict.fromkeys(step.measure for step in self._steps.measures))
        left = "" if (seconds := self._left()) is None else f", about {_clock(seconds)} left"
        table = Table(title=f"{_clock(time.perf_counter() - self._began)}{left}", title_justify="left", box=None)
        for column in ("", *measures):
            table.add_column(column, justify="left" if not column else "right", no_wrap=True)
        for capture in self._steps.captures:
            table.add_row(capture.name, self._cells[capture.name, ""] or "waiting")
        for name in dict.fromkeys(step.codec.name for step in self._steps.measures):
            table.add_row(visible(name), *(self._cells.get((measure, name), "-") or "waiting" for measure in measures))
        return table


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{rest} s" if not minutes else f"{minutes} min {rest:02d} s"
