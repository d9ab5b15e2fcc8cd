"""Checks the project's own kernels: the text that a Mac would compile, the rules of bodies, memory, results."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import numpy as np

from tqcli.kernels.checker.check import prepare, run_all
from tqcli.kernels.checker.finding import NOT_COMPILED, Finding, faults, unique
from tqcli.kernels.checker.lint import find_clang, lint, lint_text
from tqcli.kernels.runtime.case import Case, to_numpy
from tqcli.kernels.runtime.kernel import Launch
from tqcli.kernels.runtime.registry import cases, kernels, operations
from tqcli.kernels.runtime.text import golden_text, metal_text


@dataclass
class KernelReport:
    """What was found of one kernel over all its cases."""

    operation: str
    kernel: str
    cases: int = 0
    golden: int = 0
    """Cases whose text is, byte for byte, what MLX would compile on a Mac."""
    lint: list[Finding] | None = None
    """None if there was no clang."""
    findings: list[Finding] = field(default_factory=list)
    """The CPU checker's."""
    differences: list[str] = field(default_factory=list)
    """How results differ from the reference's, each with its case."""

    @property
    def compiles(self) -> bool:
        """Whether all cases could be run."""
        return not any(finding.kind == NOT_COMPILED for finding in self.findings)

    @property
    def is_clean(self) -> bool:
        """Nothing was found; what could not be looked for doesn't count, nor do notes."""
        return self.golden == self.cases and not (faults(self.lint or []) or self.findings or self.differences)


def cases_of(name: str | None) -> list[Case]:
    """The cases of the operation or the kernel of that name, or all. Raises `ValueError` for a name that is neither."""
    if name is None or name in operations():
        return list(cases(name))
    if name in kernels():
        return [case for case in cases(kernels()[name][0]) if case.launch.kernel.name == name]
    near = get_close_matches(name, [*operations(), *kernels()], n=1, cutoff=0.4) or operations()
    raise ValueError(f"no operation or kernel is called {name!r}; there is {', '.join(near)}, or name a .metal file")


def check_cases(chosen: Sequence[Case], done: Callable[[], object] | None = None) -> list[KernelReport]:
    """Checks cases of operations; `done` is called after each. One report a kernel, in the cases' order.

    A body that doesn't compile is a finding of its kernel; the others are checked all the same.
    Raises `CompilerError` if there is no C++ compiler, `ValueError` if a launch is not one for every back-end.
    """
    for case in chosen:
        case.launch.check()
    checked = run_all([prepare(case.launch) for case in chosen], workers=os.cpu_count() or 1, go_on=True, done=done)
    linted = lint_all([case.launch for case in chosen])
    reports: dict[str, KernelReport] = {}
    found: dict[str, list[Finding]] = defaultdict(list)
    wrong: dict[str, list[Finding]] = defaultdict(list)
    for index, (case, result) in enumerate(zip(chosen, checked, strict=True)):
        kernel = case.launch.kernel.name
        report = reports.setdefault(kernel, KernelReport(case.operation, kernel))
        report.cases += 1
        report.golden += golden_text(case.launch) == metal_text(case.launch)
        note = case.launch.title or f"case {report.cases}"
        where = f"{case.launch.kernel.body.name}, {note}"
        found[kernel] += [replace(finding, case=where) for finding in result.findings]
        if linted is not None:
            wrong[kernel] += [replace(finding, case=where) for finding in linted[index]]
        if result.outputs and (difference := differs(case, result.outputs)):
            never = sum(int(mask.sum()) for mask in result.unwritten)
            unwritten = f"; {never} elements were never written, and hold what memory held" if never else ""
            report.differences.append(f"{note}: {difference}{unwritten}")
    for kernel, report in reports.items():
        report.findings = unique(found[kernel])
        report.lint = None if linted is None else unique(wrong[kernel])
    return list(reports.values())


def lint_all(launches: Sequence[Launch]) -> list[list[Finding]] | None:
    """The lint of each launch, each text once; None if there is no clang."""
    clang = find_clang()
    if clang is None:
        return None
    texts = [lint_text(launch) for launch in launches]
    first = dict(zip(texts, launches, strict=True))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(first, pool.map(lambda launch: lint(launch, clang), first.values()), strict=True))
    return [found[text] for text in texts]


def differs(case: Case, outputs: Sequence[np.ndarray]) -> str | None:
    """How outputs differ from the reference's beyond what is allowed. In the thread that made the arrays."""
    return case.differs(outputs, [to_numpy(array) for array in case.expected()])
