"""`tq kernels check --on-device`: every kernel on the GPU at hand against its reference, as a file to paste."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tqcli.cli.arguments import say
from tqcli.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tqcli.kernels.checker.device import OfKernel, OnDevice


def check_on_device(name: str | None, out: Path | None, jobs: int | None) -> bool:
    """Runs the cases of an operation, of a kernel or of all, and writes the report. Whether all agree.

    Raises `InputError` where MLX finds no GPU or another back-end was named, `ValueError` for an unknown name.
    """
    from tqcli.kernels.checker.device import by_kernel, device_facts
    from tqcli.kernels.checker.device_worker import in_processes, jobs_for
    from tqcli.kernels.checker.operations import cases_of
    from tqcli.kernels.runtime.backend import preferred
    from tqcli.storage import check_file

    backend, why = preferred()
    if backend == "mlx":
        raise InputError(f"there is no kernel to run here: {why}; without --on-device they are checked on the CPU")
    cases = cases_of(name)
    jobs = jobs_for(backend) if jobs is None else jobs
    facts = [*device_facts(backend), ("processes", f"{jobs}{', so times are longer than alone' if jobs > 1 else ''}")]
    file = out or Path(f"tq-kernels-{_file_name(dict(facts).get('device name', backend))}.txt")
    check_file(file)
    say(f"{len(cases)} cases on {backend} in {jobs} processes; each kernel is compiled first, a second or more")
    began, results = time.perf_counter(), []
    for result in in_processes(cases, name, backend, jobs):
        results.append(result)
        _say_progress(result, len(results), len(cases), time.perf_counter() - began)
    text = report(facts, by_kernel(sorted(results, key=lambda of: of.case)), time.perf_counter() - began)
    print(text, end="")
    file.write_text(text, encoding="utf-8")
    say(f"written to {file}")
    return all(result.agrees for result in results)


def report(facts: Sequence[tuple[str, str]], kernels: Sequence[OfKernel], seconds: float) -> str:
    """The facts, a line for each kernel, then what differs or failed, in full."""
    width = max(len(label) for label, _ in facts)
    lines = [f"{label:<{width}}  {value}" for label, value in facts]
    total, agree = sum(len(of.results) for of in kernels), sum(of.agree for of in kernels)
    lines += ["", f"{agree} of {total} cases agree with their references ({seconds:.0f} s)", ""]
    rows = [["operation", "kernel", "cases", "agree", "unequal within what is allowed", "median us"]]
    for of in kernels:
        unequal, elements = of.unequal
        time = "-" if of.microseconds is None else f"{of.microseconds:.0f}"
        counts = [str(len(of.results)), str(of.agree), f"{unequal} of {elements}"]
        rows.append([of.operation, of.kernel, *counts, time])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        lines.append("  ".join(f"{cell:<{size}}" for cell, size in zip(row, widths, strict=True)).rstrip())
    failures = [result for of in kernels for result in of.results if not result.agrees]
    if failures:
        lines += ["", "What differs or failed:"]
    for result in failures:
        lines += ["", f"{result.title}: {'failed' if result.error else 'differs'}"]
        lines += [f"    {line}" for line in (result.error or result.differs or "").splitlines()]
    return "\n".join(lines) + "\n"


def _say_progress(result: OnDevice, done: int, total: int, seconds: float) -> None:
    """A line now and then, and one for whatever goes wrong, at once: a device may not come back."""
    if not result.agrees:
        found = (result.error or result.differs or "").splitlines()[0]
        print(f"tq: {result.title}: {found[:300]}", file=sys.stderr, flush=True)
    if done % 10 == 0 or done == total:
        print(f"tq: {done} of {total} cases, {seconds:.0f} s", file=sys.stderr, flush=True)


def _file_name(device: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-") or "device"
