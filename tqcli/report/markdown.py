"""A run's report as Markdown, as GitHub shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tqcli.report.compared import compared
from tqcli.report.run import RunResult
from tqcli.report.sections import leading_tables
from tqcli.report.tables import (
    Cell,
    Table,
    codecs_table,
    environment_table,
    metrics_table,
    settings_table,
)
from tqcli.report.terminal import remark_lines
from tqcli.report.verdict import verdict
from tqcli.streams import visible

_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def to_markdown(result: RunResult) -> str:
    """The whole report; ends with a newline."""
    return "\n".join(_lines(result)).rstrip() + "\n"


def _lines(result: RunResult) -> Iterator[str]:
    codecs = compared(result)
    first = verdict(result)
    yield f"# {escaped(result.name)}: {first.status}"
    yield ""
    for sentence in first.sentences:
        yield from (escaped(sentence), "")
    if result.description:
        yield from (escaped(result.description), "")
    tables = [
        *leading_tables(result, codecs),
        codecs_table(result),
        metrics_table(result),
        settings_table(result),
        environment_table(result),
    ]
    for table in tables:
        if table:
            yield from table_lines(table)
    remarks = [
        *result.notes,
        *(f"{measure}: {line}" for measure, of in result.measures.items() for line in remark_lines(of)),
    ]
    if remarks:
        yield from ("## Notes", "")
        yield from (f"- {escaped(line)}" for line in remarks)


def table_lines(table: Table) -> Iterator[str]:
    """A heading, the table and its notes."""
    yield from (f"## {escaped(table.caption)}", "")
    yield "| " + " | ".join(map(escaped, table.heads)) + " |"
    yield "|" + "|".join("---:" if index in table.numeric else "---" for index in range(len(table.heads))) + "|"
    for row in table.rows:
        yield "| " + " | ".join(map(_cell, row)) + " |"
    yield ""
    for note in table.notes:
        yield from (escaped(note), "")


def escaped(text: str) -> str:
    """Text of which nothing is taken for Markdown or HTML, on one line."""
    plain = "".join(_ENTITIES.get(c, c) for c in visible(" ".join(text.split())))
    return _SPECIAL.sub(r"\\\1", plain)


def _cell(cell: Cell) -> str:
    text = escaped(cell.text)
    if cell.mark:
        text = f"**{text}**"
    return f"{text} ({escaped(cell.more)})" if cell.more else text
