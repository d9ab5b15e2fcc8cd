"""`tq kernels check --mutate`: how many of the small mistakes that are put into bodies are noticed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqcli.cli.arguments import say

if TYPE_CHECKING:
    from tqcli.kernels.checker.finding import Finding
    from tqcli.kernels.checker.harmless import Harmless
    from tqcli.kernels.checker.mutate import Judge, Mutant, Score, Tally
    from tqcli.kernels.runtime.kernel import Launch

_EACH = 25
"""Mistakes from one line of progress to the next, where there is no terminal for a bar."""


def mutate_project(name: str | None) -> Tally:
    """Mistakes in tq's own bodies: of an operation, of a kernel, or in all. Raises `ValueError` for another name."""
    from tqcli.kernels.checker.harmless import own
    from tqcli.kernels.checker.mutate import reference_judge
    from tqcli.kernels.checker.operations import cases_of

    cases = cases_of(None)
    only = {case.launch.kernel.name for case in cases_of(name)}
    return _mutated([case.launch for case in cases], reference_judge(cases), own(), only)


def mutate_own(body: Path, spec: Path) -> Tally | list[Finding]:
    """Mistakes in a user's body, or what is wrong with it as it stands. Raises `ValueError` as `user_kernel`."""
    from tqcli.kernels.checker import check
    from tqcli.kernels.checker.mutate import own_judge
    from tqcli.kernels.checker.spec import user_kernel

    kernel = user_kernel(body, spec)
    if findings := check(kernel.launch).findings:
        return findings
    tally = _mutated([kernel.launch], own_judge([kernel.launch]), kernel.harmless)
    for entry in tally.not_tried:
        where = f" in {entry.code}" if entry.code else ""
        say(f"{spec}: harmless: {entry.change!r}{where} is no mistake that was tried; take it out or mend it")
    return tally


def _mutated(
    launches: Sequence[Launch], judge: Judge, harmless: Sequence[Harmless], only: Collection[str] | None = None
) -> Tally:
    from tqcli.kernels.checker.mutate import mutate

    with _progress() as (started, done):
        return mutate(launches, judge, started, done, harmless, only)


@contextmanager
def _progress() -> Iterator[tuple[Callable[[int], object], Callable[[], object]]]:
    """What is called with the number of mistakes and after each: a bar on a terminal, a line now and then elsewhere."""
    from tqcli.progress import progress

    with progress(0, "mutate", "mistake") as bar:
        if sys.stderr.isatty():
            yield bar.reset, bar.update
            return
        total = count = 0

        def started(number: int) -> None:
            nonlocal total
            total = number

        def done() -> None:
            nonlocal count
            count += 1
            if count % _EACH == 0 or count == total:
                say(f"{count} of {total} mistakes tried")

        yield started, done


def print_scores(tally: Tally) -> None:
    """A table of the files, what wasn't noticed, the score."""
    from tqcli.report.terminal import new_table, print_table

    table = new_table("file", "mistakes", "noticed", "don't compile")
    for score in tally.scores:
        table.add_row(score.name, str(len(score.mutants)), str(score.noticed), str(score.uncompilable))
    print_table(table)
    survivors = [mutant for score in tally.scores for mutant in score.survivors]
    if survivors:
        print("Not noticed:")
    for mutant in survivors:
        print(f"  {_place(mutant)}: {mutant.change}{f' in  {mutant.code}' if mutant.code else ''}")
        print(f"      {f'harmless: {mutant.reason}' if mutant.reason else 'not known to be harmless'}")
    line = f"{tally.noticed} of {tally.total} mistakes were noticed, {_percent(tally.noticed, tally.total)}"
    counted = tally.total - tally.harmless
    print(f"{line}; without the {tally.harmless} that are harmless, {_percent(tally.noticed, counted)}.")


def scores_document(tally: Tally) -> dict[str, Any]:
    """The same for --json."""
    from tqcli.kernels.checker.mutate import SCORE

    counts = {"mutants": tally.total, "noticed": tally.noticed, "harmless": tally.harmless, "needed": SCORE}
    return {
        "clean": tally.is_enough,
        **counts,
        "score": tally.noticed / max(1, tally.total - tally.harmless),
        "files": [_score_document(score) for score in tally.scores],
    }


def _score_document(score: Score) -> dict[str, Any]:
    from dataclasses import asdict

    survivors = [asdict(mutant) for mutant in score.survivors]
    counts = {"mutants": len(score.mutants), "noticed": score.noticed, "uncompilable": score.uncompilable}
    return {"name": score.name, **counts, "survivors": survivors}


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f} %"


def _place(mutant: Mutant) -> str:
    return f"{mutant.file}:{mutant.line}" if mutant.line else mutant.file
