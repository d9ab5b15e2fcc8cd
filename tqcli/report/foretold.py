"""What `tq plan` foretold beside what was measured."""

from __future__ import annotations

from tqcli.report.figures import figure, interval_text, value_text
from tqcli.report.run import RunResult
from tqcli.report.tables import Cell, Table


def foretold_table(result: RunResult) -> Table | None:
    """A row for each metric of each codec that was foretold; None where nothing was."""
    perplexity = result.measures.get("perplexity")
    measured = {} if perplexity is None else {codec.codec: codec.total for codec in perplexity.codecs}
    rows = []
    for codec in result.codecs:
        for name, value in codec.predicted.items():
            metric = measured.get(codec.name, {}).get(name)
            unit = metric.unit if metric else ""
            cells = [Cell(codec.name), Cell(name), Cell(value_text(name, unit, value))]
            if metric is None or metric.value is None:
                rows.append([*cells, Cell("not measured"), Cell("")])
                continue
            interval = interval_text(name, unit, metric.ci_low, metric.ci_high)
            times = figure(metric.value / value) if value else ""
            rows.append([*cells, Cell(value_text(name, unit, metric.value), interval), Cell(times)])
    if not rows:
        return None
    heads = ["codec", "metric", "foretold", "measured", "measured by foretold"]
    return Table("Foretold by the plan, and measured", heads, rows, frozenset({2, 3, 4}))
