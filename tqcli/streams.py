"""stdout and stderr, whose readers may go away, and text from elsewhere that is shown there."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO


def tell(message: str) -> None:
    """One line on stderr, whatever the message holds and whether or not anybody reads it."""
    if sys.stderr is None:  # closed when tq was started
        return
    try:
        print(f"tq: {visible(' '.join(message.split()))}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        silence(sys.stderr)


@contextmanager
def maybe_unread() -> Iterator[None]:
    """What is printed in the block is flushed at its end; that the reader went away, as `head` does, is no error."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
    except SystemExit as e:
        # Rich makes that an exit with 1, which is a failed gate's code.
        if not isinstance(e.__context__, BrokenPipeError):
            raise
        silence(sys.stdout)


def silence(stream: TextIO) -> None:
    """Sends a stream whose reader went away nowhere: Python would complain again when it closes it."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def visible(text: str) -> str:
    r"""Text whose control characters are written as escapes, such as \x1b and \n; no other character changes."""
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") else c for c in text)
