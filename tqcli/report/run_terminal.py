"""A run's report on a terminal."""

from __future__ import annotations

from rich.markup import escape

from tqcli.kernels.runtime import added
from tqcli.report.backends import backend_lines
from tqcli.report.compared import compared
from tqcli.report.foretold import foretold_table
from tqcli.report.layers import blocks
from tqcli.report.run import RunResult
from tqcli.report.tables import Table, failures_table, gates_table, memory_table, summary_table, worst_table
from tqcli.report.terminal import new_table, print_table, remark_lines
from tqcli.report.verdict import verdict


def print_run(result: RunResult) -> None:
    """The verdict, then gates, codecs, the worst layers, memory, and what is to be known besides."""
    codecs = compared(result)
    first = verdict(result)
    print(f"{result.name}: {first.status}")
    for sentence in first.sentences:
        print(sentence)
    tables = [
        summary_table(result, codecs) if codecs else None,
        worst_table(blocks(result, codecs)),
        memory_table(result, codecs),
        gates_table(result),
        foretold_table(result),
        failures_table(result),
    ]
    for table in tables:
        if table:
            print()
            _print(table)
    for line in _remarks(result):
        print(line)


def _remarks(result: RunResult) -> list[str]:
    """Back-ends over all measures, and what else is to be known, each once."""
    lines = backend_lines(added([of.backends for of in result.measures.values()]))
    lines += [f"note: {note}" for note in result.notes]
    for of in result.measures.values():
        lines += remark_lines(of.model_copy(update={"backends": []}))
    return list(dict.fromkeys(lines))


def _print(table: Table) -> None:
    shown = new_table(*table.heads, title=table.caption)
    for index, column in enumerate(shown.columns):
        column.justify = "right" if index in table.numeric else "left"
    for row in table.rows:
        shown.add_row(*(escape(f"{cell.text} ({cell.more})" if cell.more else cell.text) for cell in row))
    print_table(shown)
    for note in table.notes:
        print(note)
