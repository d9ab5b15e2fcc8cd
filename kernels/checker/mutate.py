"""Puts small mistakes into bodies, one at a time, and looks whether the checker or the reference notices."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise, zip_longest
from pathlib import Path

import numpy as np

from tqcli.kernels.checker.check import check_all, prepare, run_all
from tqcli.kernels.checker.compiler import BodyError, runner
from tqcli.kernels.checker.finding import Checked, file_name
from tqcli.kernels.checker.harmless import Harmless, reason
from tqcli.kernels.checker.mutations import Mutation, mutations
from tqcli.kernels.checker.processes import workers
from tqcli.kernels.checker.source import files_of
from tqcli.kernels.runtime.case import Case, to_numpy
from tqcli.kernels.runtime.kernel import Launch

SCORE = 0.95
"""The part of the mistakes that has to be noticed."""
_SECONDS = 5
_AHEAD = 16
"""Mutants that are compiled and run while others are judged."""
_TRIES = (2, 8)
"""How many launches are tried at first, then up to which, then the rest: most mistakes show at once."""

Judge = Callable[[int, Sequence[np.ndarray]], str | None]
"""How the outputs of launch number n differ from what they must be, None if they don't."""


@dataclass(frozen=True)
class Mutant:
    """One mistake, and how it went."""

    file: str
    line: int
    change: str
    code: str
    noticed: str | None
    """By what, None if by nothing."""
    reason: str | None = None
    """Why it is harmless, if it is known to be."""


@dataclass
class Score:
    """All mistakes in one file, or in the grids of one kernel."""

    name: str
    mutants: list[Mutant] = field(default_factory=list)
    uncompilable: int = 0
    """Mistakes that no compiler would let pass; they don't count."""

    @property
    def noticed(self) -> int:
        return sum(mutant.noticed is not None for mutant in self.mutants)

    @property
    def survivors(self) -> list[Mutant]:
        return [mutant for mutant in self.mutants if mutant.noticed is None]


@dataclass(frozen=True)
class Tally:
    """All mistakes that were tried, and those that were known to be harmless."""

    scores: list[Score]
    known: Sequence[Harmless]

    @property
    def total(self) -> int:
        return sum(len(score.mutants) for score in self.scores)

    @property
    def noticed(self) -> int:
        return sum(score.noticed for score in self.scores)

    @property
    def harmless(self) -> int:
        """Of those that weren't noticed."""
        return sum(mutant.reason is not None for score in self.scores for mutant in score.survivors)

    @property
    def is_enough(self) -> bool:
        return self.noticed >= SCORE * (self.total - self.harmless)

    @property
    def not_tried(self) -> list[Harmless]:
        """Entries that fit no mistake that was tried, but for those of other files."""
        tried = [(mutant.file, mutant.change, mutant.code) for score in self.scores for mutant in score.mutants]
        files = {None, *(file for file, _, _ in tried)}
        fits = {entry for entry in self.known for mistake in tried if entry.fits(*mistake)}
        return [entry for entry in self.known if entry.file in files and entry not in fits]


def mutate(
    launches: Sequence[Launch],
    judge: Judge,
    started: Callable[[int], object],
    done: Callable[[], object],
    known: Sequence[Harmless] = (),
    only: Collection[str] | None = None,
) -> Tally:
    """Tries every mutation of every file that kernels use, and every shortened grid; of the kernels `only`, if given.

    A header's mistakes may show in any of the launches. `started` is called with the number of mutants, `done` after
    each. Those `known` to be harmless need not be noticed. Raises `CompilerError` if there
    is no compiler, or it or the runner fails.
    """
    prepared = [prepare(launch) for launch in launches]
    users: dict[Path, list[int]] = defaultdict(list)
    for index, launch in enumerate(launches):
        for file in files_of(launch.kernel):
            users[file].append(index)
    chosen = [launch for launch in launches if only is None or launch.kernel.name in only]
    files = sorted({file for launch in chosen for file in files_of(launch.kernel)})
    work = [m for file in files for m in mutations(file, file.read_text(encoding="ascii"))]
    names = {launch.kernel.name for launch in chosen}
    grids = [(axis, own) for axis, own in _short_grids(launches) if launches[own[0]].kernel.name in names]
    started(len(work) + len(grids))
    scores: dict[str, Score] = {}
    runner()  # once, before several threads want it
    with workers(os.cpu_count() or 1) as pool:

        def run(mutation: Mutation, lot: Sequence[int]) -> Future[list[Checked]]:
            texts = {mutation.file: mutation.text}
            return pool.submit(run_all, [prepared[i] for i in lot], texts, _SECONDS, once=True)

        for start in range(0, len(work), _AHEAD):
            lots = [(m, _tries(launches, users[m.file])) for m in work[start : start + _AHEAD]]
            waiting = [(m, own, run(m, own[0])) for m, own in lots]
            for mutation, own, first in waiting:
                score = scores.setdefault(file_name(mutation.file), Score(file_name(mutation.file)))
                try:
                    noticed = _judged(own[0], first.result(), judge)
                    for lot in own[1:]:
                        noticed = noticed or _judged(lot, run(mutation, lot).result(), judge)
                except BodyError:
                    score.uncompilable += 1
                else:
                    score.mutants.append(_mutant(mutation, noticed, known))
                done()
    for axis, indices in grids:
        name = launches[indices[0]].kernel.body.stem
        score = scores.setdefault(f"{name}: grid", Score(f"{name}: grid"))
        score.mutants.append(_shortened(launches, indices, axis, judge, known))
        done()
    return Tally(list(scores.values()), known)


def _tries(launches: Sequence[Launch], indices: Sequence[int]) -> list[list[int]]:
    """Launches in lots: of each kernel by turns the middle one, the last, the first, the others."""
    by_kernel: dict[str, list[int]] = defaultdict(list)
    for index in indices:
        by_kernel[launches[index].kernel.name].append(index)
    turns = [[own[len(own) // 2], own[-1], *own] for own in by_kernel.values()]
    order = list(dict.fromkeys(i for row in zip_longest(*turns) for i in row if i is not None))
    edges = [0, *_TRIES, max(len(order), *_TRIES)]
    return [lot for start, end in pairwise(edges) if (lot := order[start:end])]


def _judged(indices: Sequence[int], checked: Sequence[Checked], judge: Judge) -> str | None:
    for index, result in zip(indices, checked, strict=True):
        if result.findings:
            return str(result.findings[0])
        if difference := judge(index, result.outputs):
            return difference
    return None


def _short_grids(launches: Sequence[Launch]) -> Iterator[tuple[int, list[int]]]:
    """Each kernel and axis, with the launches that have more than one threadgroup along it."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, launch in enumerate(launches):
        for axis in range(3):
            if launch.grid[axis] > launch.threadgroup[axis]:
                found[launch.kernel.name, axis].append(index)
    for (_, axis), indices in found.items():
        yield axis, indices


def _shortened(
    launches: Sequence[Launch], indices: Sequence[int], axis: int, judge: Judge, known: Sequence[Harmless]
) -> Mutant:
    kernel = launches[indices[0]].kernel
    noticed = None
    for index in indices:
        launch = launches[index]
        grid = list(launch.grid)
        grid[axis] -= launch.threadgroup[axis]
        short = prepare(replace(launch, grid=(grid[0], grid[1], grid[2])))
        noticed = _judged([index], run_all([short], seconds=_SECONDS), judge)
        if noticed:
            break
    change = f"grid one threadgroup shorter in {'xyz'[axis]}"
    name = kernel.body.name
    return Mutant(name, 0, change, "", noticed, None if noticed else reason(known, name, change, ""))


def _mutant(mutation: Mutation, noticed: str | None, known: Sequence[Harmless]) -> Mutant:
    name, change, code = file_name(mutation.file), mutation.change, mutation.code
    return Mutant(name, mutation.line, change, code, noticed, None if noticed else reason(known, name, change, code))


def reference_judge(cases: Sequence[Case]) -> Judge:
    """Outputs must be as the reference has them, which is computed once."""

    @cache
    def expected(index: int) -> list[np.ndarray]:
        return [to_numpy(array) for array in cases[index].expected()]

    return lambda index, outputs: cases[index].differs(outputs, expected(index))


def own_judge(launches: Sequence[Launch]) -> Judge:
    """Outputs must be, bit for bit, those of the body as it stands."""
    expected = [[output.tobytes() for output in checked.outputs] for checked in check_all(launches)]

    def differs(index: int, outputs: Sequence[np.ndarray]) -> str | None:
        same = [output.tobytes() for output in outputs] == expected[index]
        return None if same else "the outputs are other ones"

    return differs
