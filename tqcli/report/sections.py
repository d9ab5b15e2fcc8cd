"""The tables that every form of a run's report has, in their order."""

from __future__ import annotations

from tqcli.report.compared import Compared
from tqcli.report.foretold import foretold_table
from tqcli.report.layers import blocks
from tqcli.report.run import RunResult
from tqcli.report.tables import Table, failures_table, gates_table, memory_table, summary_table, worst_table


def leading_tables(result: RunResult, codecs: list[Compared]) -> list[Table]:
    """Codecs, worst layers, bytes, gates, what was foretold, failures; those that have something to tell."""
    tables = [
        summary_table(result, codecs) if codecs else None,
        worst_table(blocks(result, codecs)),
        memory_table(result, codecs),
        gates_table(result),
        foretold_table(result),
        failures_table(result),
    ]
    return [table for table in tables if table]
