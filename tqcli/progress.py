"""Progress bars on stderr, so that stdout holds results only."""

from __future__ import annotations

from typing import Any


def progress(total: int, what: str, unit: str, done: int = 0, smoothing: float = 0.3) -> Any:
    """A tqdm bar, gone when it is done. On a terminal only: logs of CI hold no bars.

    done: what an earlier run did of the total. smoothing: how much the last steps weigh in the time left; 0 where steps
    of very different length take turns.
    """
    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit=unit, leave=False, disable=None, initial=done, smoothing=smoothing)
