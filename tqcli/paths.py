"""Where tq keeps what it downloads and converts."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """`$TQ_CACHE`, else `$XDG_CACHE_HOME/tq`, else `~/Library/Caches/tq` on a Mac, else `~/.cache/tq`."""
    if own := os.environ.get("TQ_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "tq"
    return Path.home() / ("Library/Caches/tq" if sys.platform == "darwin" else ".cache/tq")
