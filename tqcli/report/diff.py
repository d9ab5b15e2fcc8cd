"""A comparison of two runs, for a terminal and as a comment on a pull request."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tqcli.report.basis import BasisDifference, Part
from tqcli.report.compare import Change, Comparison
from tqcli.report.distinct import figures, with_unit
from tqcli.report.markdown_text import code, details, plain, table
from tqcli.report.schema import Metric
from tqcli.report.terminal import new_table, print_table

_ROWS = 20
"""Of a table; the others are counted, and in the JSON."""
_SHORT = 60
"""Characters of a setting that are shown."""
_WORSE = "worse"
_SERIOUS: dict[Part, str] = {"model": "model", "text": "text or windows"}
"""What A and B should have in common, in words."""
_HEADS = ("verdict", "measure", "codec", "where", "metric", "A (95 % interval)", "B (95 % interval)", "change")


def print_diff(comparison: Comparison) -> None:
    """The verdict, what else differs between the runs, and tables of what is different."""
    print(verdict_line(comparison))
    if says_all(comparison):
        return
    print(f"A: {comparison.a}\nB: {comparison.b}")
    if warning := _warning(comparison):
        print(warning)
    for of in comparison.basis:
        print(_basis_line(of))
    for title, changes in _parts(comparison):
        shown = new_table(*_HEADS, title=title)
        for change in changes[:_ROWS]:
            shown.add_row(*_cells(change))
        print_table(shown)
    for line in _rest(comparison):
        print(line)


def diff_markdown(comparison: Comparison) -> str:
    """The verdict, what else differs between the runs, the totals that differ; all else is folded."""
    lines = [f"**tq diff**: {plain(verdict_line(comparison))}"]
    if says_all(comparison):
        return lines[0] + "\n"
    lines += ["", f"A: {code(comparison.a)}, B: {code(comparison.b)}"]
    if warning := _warning(comparison):
        lines += ["", f"**{plain(warning)}**"]
    if comparison.basis:
        told = [f"- {plain(_basis_line(of))}" for of in comparison.basis]
        lines += ["", *details("What else differs between the runs", told)]
    for title, changes in _parts(comparison):
        shown = table(_HEADS, [_marked(_cells(change)) for change in changes[:_ROWS]], right=(5, 6, 7))
        lines += ["", *([f"{plain(title)}:", "", *shown] if changes[0].is_total else details(title, shown))]
    if rest := _rest(comparison):
        lines += ["", *details("What was not compared", [f"- {plain(line)}" for line in rest])]
    return "\n".join([*lines, ""])


def verdict_line(comparison: Comparison) -> str:
    """What came of it, in one line."""
    told = _changes_line(comparison)
    if comparison.only_a:
        told += f"; B lacks {len(comparison.only_a)} of what A has"
    if failed := len(comparison.failures_b):
        told += f"; {failed} step{'s' if failed > 1 else ''} of B failed"
    return told


def _changes_line(comparison: Comparison) -> str:
    of, changes = comparison.compared, comparison.changes
    alike = "no difference" if not comparison.only_a else "nothing that both have is different"
    if not changes and comparison.equal == of:
        return f"{alike}: all {of} metrics are the same"
    if not changes:
        return f"{alike}: of {of} metrics {comparison.equal} are the same, the intervals of the others overlap"
    regressions = len(comparison.regressions)
    better, worse = (sum(change.better is way for change in changes) for way in (True, False))
    beyond = f" by more than {100 * comparison.tolerance:g} %" if comparison.tolerance else ""
    parts = [
        (regressions, f"worse{beyond}"),
        (worse - regressions, "worse within the tolerance"),
        (better, "better"),
        (len(changes) - better - worse, "otherwise different"),
    ]
    told = ", ".join(f"{number} {words}" for number, words in parts if number)
    return f"{len(changes)} of {of} metrics differ: {told}"


def says_all(comparison: Comparison) -> bool:
    """Whether the verdict is all that there is to say."""
    of = comparison
    return not (of.changes or of.basis or of.only_a or of.only_b or of.failures_b)


def _warning(comparison: Comparison) -> str:
    """What makes the numbers hard to compare; empty where nothing does."""
    parts = {of.part for of in comparison.basis}
    others = [words for part, words in _SERIOUS.items() if part in parts]
    if not others:
        return ""
    return f"Not of the same {' and '.join(others)}: values without an interval differ by that alone."


def _parts(comparison: Comparison) -> list[tuple[str, list[Change]]]:
    """Titles and changes: of totals, and of layers."""
    parts = []
    for level, total in (("Totals", True), ("Layers", False)):
        changes = [change for change in comparison.changes if change.is_total == total]
        if changes:
            shown = f"the {_ROWS} worst of {len(changes)}" if len(changes) > _ROWS else str(len(changes))
            parts.append((f"{level} that differ: {shown}", changes))
    return parts


def _cells(change: Change) -> list[str]:
    names = [change.measure, change.codec, change.where, change.metric]
    return [_judged(change), *names, *_values(change), _relative(change)]


def _marked(cells: Sequence[str]) -> list[str]:
    """Cells in Markdown: names of codecs and metrics as code, regressions in bold."""
    verdict, measure, codec, where, metric, *numbers = cells
    verdict = f"**{verdict}**" if verdict == _WORSE else verdict
    return [verdict, plain(measure), code(codec), plain(where), code(metric), *map(plain, numbers)]


def _judged(change: Change) -> str:
    if change.better is None:
        return "changed"
    if change.better:
        return "better"
    return _WORSE if change.regression else "tolerated"


def _values(change: Change) -> list[str]:
    """Both values with their intervals, in digits that tell them apart."""
    ours, theirs = (_numbers(metric) for metric in (change.a, change.b))
    shown = figures([*ours, *theirs], change.unit)
    return [
        with_unit(f"{value} ({' to '.join(ends)})" if ends else value, change.unit)
        for value, *ends in (shown[: len(ours)], shown[len(ours) :])
    ]


def _numbers(metric: Metric) -> list[float]:
    return [number for number in (metric.value, metric.ci_low, metric.ci_high) if number is not None]


def _relative(change: Change) -> str:
    if change.relative is None:
        return ""
    if math.isinf(change.relative):
        return "from 0"
    percent = 100 * change.relative
    return f"{percent:+.1f} %" if abs(percent) >= 1 else f"{percent:+.2g} %"


def _basis_line(of: BasisDifference) -> str:
    a, b = (text if len(text) <= _SHORT else f"{text[:_SHORT]}..." for text in (of.a, of.b))
    return f"{of.what} differs: {a} in A, {b} in B"


def _rest(comparison: Comparison) -> list[str]:
    lines = []
    for name, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        if only:
            more = f" and {len(only) - _ROWS} more" if len(only) > _ROWS else ""
            lines.append(f"only {name} has {'; '.join(only[:_ROWS])}{more}")
    lines += [f"failed in B: {failure}" for failure in comparison.failures_b[:_ROWS]]
    if comparison.not_compared:
        lines.append(f"{', '.join(comparison.not_compared)}: vary from run to run; compared where --metric names them")
    return lines
