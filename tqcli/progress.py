"""Progress bars on stderr, so that stdout holds results only."""

from __future__ import annotations

from typing import Any


def progress(total: int, what: str, unit: str) -> Any:
    """A tqdm bar, gone when it is done. On a terminal only: logs of CI hold no bars."""
    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit=unit, leave=False, disable=None)
