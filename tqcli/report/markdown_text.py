"""Pieces of Markdown as GitHub reads it, safe for whatever names a user chose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tqcli.streams import visible

_ACTIVE = re.compile(r"[\\`*\[\]|~<>&]|#(?=\w)|(?<![0-9A-Za-z])[_@]|_(?![0-9A-Za-z])")
"""Markup, tags, references and mentions; not the _ and @ inside of names such as kl_mean and affine@4."""


def plain(text: str) -> str:
    """Text that shows as it is, on one line: nothing in it is markup, a mention or a tag."""
    # An entity rather than a backslash: mentions and a table's cells are found before backslashes are looked at.
    return _ACTIVE.sub(lambda match: f"&#{ord(match.group())};", visible(" ".join(text.split())))


def code(text: str) -> str:
    """A name in the look of code, for a table's cell: on one line, whatever it holds."""
    one_line = visible(" ".join(text.split())).replace("|", r"\|")
    longest = max((len(ticks) for ticks in re.findall("`+", one_line)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{one_line}{pad}{fence}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Lines of a table. Cells are Markdown already; `right` are the columns that are aligned to the right."""
    to_right = set(right)
    rule = ["---:" if column in to_right else "---" for column in range(len(heads))]
    return [f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows)]


def details(summary: str, lines: Sequence[str]) -> list[str]:
    """A part that is folded until it is clicked on."""
    return ["<details>", f"<summary>{plain(summary)}</summary>", "", *lines, "", "</details>"]
