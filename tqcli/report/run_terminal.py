"""A run's report on a terminal."""

from __future__ import annotations

from tqcli.kernels.runtime import added
from tqcli.report.backends import backend_lines
from tqcli.report.compared import compared
from tqcli.report.run import RunResult
from tqcli.report.sections import leading_tables
from tqcli.report.tables import Table
from tqcli.report.terminal import new_table, remark_lines, table_text
from tqcli.report.verdict import verdict
from tqcli.streams import visible


def print_run(result: RunResult) -> None:
    """Prints the `run_text`."""
    print(run_text(result))


def run_text(result: RunResult) -> str:
    """The verdict, then gates, codecs, the worst layers, memory, and what is to be known besides.

    Control characters are written as escapes.
    """
    codecs = compared(result)
    first = verdict(result)
    lines = [visible(line) for line in (f"{result.name}: {first.status}", *first.sentences)]
    for table in leading_tables(result, codecs):
        lines += ["", *_table_lines(table)]
    return "\n".join([*lines, *map(visible, _remarks(result))])


def _remarks(result: RunResult) -> list[str]:
    """Back-ends over all measures, and what else is to be known, each once."""
    lines = backend_lines(added([of.backends for of in result.measures.values()]))
    lines += [f"note: {note}" for note in result.notes]
    for of in result.measures.values():
        lines += remark_lines(of.model_copy(update={"backends": []}))
    return list(dict.fromkeys(lines))


def _table_lines(table: Table) -> list[str]:
    shown = new_table(*table.heads, title=table.caption)
    for index, column in enumerate(shown.columns):
        column.justify = "right" if index in table.numeric else "left"
    for row in table.rows:
        shown.add_row(*(visible(f"{cell.text} ({cell.more})" if cell.more else cell.text) for cell in row))
    return [*table_text(shown).splitlines(), *table.notes]
