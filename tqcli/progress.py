"""Progress bars on stderr, so that stdout holds results only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Watcher = Callable[[float], object]
"""Is told how much of the present work is done, from 0 to 1."""
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def progress(total: int, what: str, unit: str, done: int = 0, smoothing: float = 0.3) -> Any:
    """A tqdm bar, gone when it is done. On a terminal only: logs of CI hold no bars.

    done: what an earlier run did of the total. smoothing: how much the last steps weigh in the time left; 0 where steps
    of very different length take turns. Within `watched_by` no bar is shown.
    """
    if (watcher := _watcher.get()) is not None:
        return _Watched(watcher, total, done)

    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit=unit, leave=False, disable=None, initial=done, smoothing=smoothing)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """While the block lasts, `watcher` is told of progress instead of a bar."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


class _Watched:
    """What is used of a tqdm bar."""

    def __init__(self, watcher: Watcher, total: int, done: int) -> None:
        self._watcher, self._total, self.n = watcher, total, done

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, done: float = 1) -> None:
        self.n += done  # type: ignore[assignment]
        self._watcher(min(1.0, self.n / self._total) if self._total else 1.0)

    def set_description(self, text: str) -> None:
        """The watcher knows what it watches."""
