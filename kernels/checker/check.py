"""Runs launches on a Linux CPU and finds what is wrong with them: races, bounds, uninitialised memory, barriers."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from tqcli.kernels.checker.compiler import BodyError, build, runner
from tqcli.kernels.checker.execute import Buffer, Ran, buffers_of, execute, findings_of
from tqcli.kernels.checker.finding import Checked, Finding, unique
from tqcli.kernels.checker.names import refuse_names
from tqcli.kernels.checker.processes import workers as threads
from tqcli.kernels.checker.source import (
    Instance,
    Texts,
    files_of,
    refuse_text,
    text_of,
    translation_unit,
)
from tqcli.kernels.runtime.kernel import Kernel, Launch, Size
from tqcli.kernels.runtime.shared_memory import without_comments

SECONDS = 120
"""How long a launch may run."""
_TOGETHER = 6
"""Instances of a body that are compiled as one text: fewer parse it more often, more leave a processor idle."""
_MOST_THREADS = 1024
_MOST_IN_GRID = 2**30
"""Threads of a grid: more than a launch's two minutes are enough for, but of the emptiest bodies."""
_MOST_TRIED = 2**18
"""Threads of a grid that is tried for a hint."""
_WRONG_GRID = ("unwritten", "out-of-bounds")


def check(launch: Launch) -> Checked:
    """Runs a launch thread by thread and watches every access of its memory.

    Raises `CompilerError` (a `ValueError`) if the body doesn't compile or the machine has no C++ compiler, `ValueError`
    if the launch doesn't fit its kernel.
    """
    (checked,) = check_all([launch])
    return checked


def check_all(launches: Sequence[Launch], seconds: int = SECONDS) -> list[Checked]:
    """`check` of several launches, compiled and run side by side; each may run for `seconds`. Raises as `check`."""
    return run_all([prepare(launch) for launch in launches], seconds=seconds, workers=os.cpu_count() or 1)


@dataclass(frozen=True)
class Prepared:
    """A launch, and its memory as the runner takes it."""

    launch: Launch
    buffers: list[Buffer]


def prepare(launch: Launch) -> Prepared:
    """Raises `ValueError` if the launch doesn't fit its kernel. To be called in the thread that made the arrays."""
    _refuse(launch)
    return Prepared(launch, buffers_of(launch, launch.kernel.source))


def run_all(
    all_prepared: Sequence[Prepared],
    texts: Texts | None = None,
    seconds: int = SECONDS,
    workers: int = 1,
    once: bool = False,
    go_on: bool = False,
    done: Callable[[], object] | None = None,
) -> list[Checked]:
    """Checks launches by several workers at once; `texts` stand for some files' own. `done` is called after each.

    `once`: what is compiled is not kept, and findings may have line 0, which is quicker. `go_on`: that a body doesn't
    compile is a finding of its launches. May be called in any thread. Raises `CompilerError` as `check`.
    """
    runner()  # once, before several threads want it
    found: dict[int, Checked] = {}

    def run(batch: tuple[Kernel, dict[Instance, list[int]]]) -> None:
        kernel, members = batch
        sources = {path: text_of(path, texts or {}) for path in files_of(kernel)}
        try:
            library = build(translation_unit(kernel, list(members), texts or {}), sources, once)
        except BodyError as e:
            if not go_on:
                raise
            for index in (index for indices in members.values() for index in indices):
                found[index] = Checked([], [e.finding])
                if done:
                    done()
            return
        try:
            for number, indices in enumerate(members.values()):
                for index in indices:
                    found[index] = _check(all_prepared[index], library, number, texts or {}, seconds)
                    if done:
                        done()
        finally:
            if once:
                library.unlink(missing_ok=True)

    batches = _batches([each.launch for each in all_prepared])
    if workers == 1:
        for batch in batches:
            run(batch)
    else:
        with threads(workers) as pool:
            list(pool.map(run, batches))
    return [found[index] for index in range(len(all_prepared))]


def _batches(launches: Sequence[Launch]) -> list[tuple[Kernel, dict[Instance, list[int]]]]:
    """Instances that are compiled together, with the launches of each."""
    kernels: dict[tuple[Kernel, str], dict[Instance, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, launch in enumerate(launches):
        instance = Instance.of(launch)
        kinds = " ".join(type(value).__name__ for value in instance.template)
        kernels[launch.kernel, kinds][instance].append(index)
    batches = []
    for (kernel, _), instances in kernels.items():
        parts = max(1, -(-len(instances) // _TOGETHER))
        for part in range(parts):
            batches.append((kernel, dict(list(instances.items())[part::parts])))
    return batches


def _refuse(launch: Launch) -> None:
    """Raises `ValueError` for a launch of which nothing sensible could be run."""
    kernel, here = launch.kernel, f"launch of {launch.kernel.name}: "
    if len(launch.inputs) != len(kernel.inputs) or any(x.ndim == 0 for x in launch.inputs):
        raise ValueError(f"{here}inputs {[x.shape for x in launch.inputs]} for {kernel.inputs}, none 0-dimensional")
    if set(launch.template) != set(kernel.template):
        raise ValueError(f"{here}template parameters {sorted(launch.template)}, not {sorted(kernel.template)}")
    try:
        refuse_names(kernel.inputs, kernel.outputs, launch.template)
    except ValueError as e:
        raise ValueError(f"{here}{e}") from e
    if not len(launch.output_shapes) == len(launch.output_dtypes) == len(kernel.outputs):
        raise ValueError(f"{here}{len(launch.output_shapes)} output shapes for {kernel.outputs}")
    if min(launch.grid) < 1 or min(launch.threadgroup) < 1:
        raise ValueError(f"{here}grid {launch.grid} or threadgroup {launch.threadgroup} is empty")
    if prod(launch.threadgroup) > _MOST_THREADS:
        raise ValueError(f"{here}a threadgroup has at most {_MOST_THREADS} threads, not {prod(launch.threadgroup)}")
    if prod(launch.grid) > _MOST_IN_GRID:
        threads = f"{prod(launch.grid)} threads, and the checker runs at most {_MOST_IN_GRID}"
        raise ValueError(f"{here}grid {launch.grid} has {threads}; give it a smaller one")
    for path in files_of(kernel):
        refuse_text(path)


def _check(prepared: Prepared, library: Path, number: int, texts: Texts, seconds: int) -> Checked:
    launch, buffers = prepared.launch, prepared.buffers
    body = text_of(launch.kernel.body, texts)
    ran = execute(library, number, launch, buffers, seconds)
    findings = findings_of(ran.reports, library, files_of(launch.kernel), _first_mentions(launch.kernel, body))
    findings += _grid_findings(launch)
    unwritten = {report.buffer for report in ran.reports if report.kind == "unwritten output"}
    if any(report.kind in ("no end", "crash") for report in ran.reports):  # what was left unwritten isn't told then
        unwritten = set(launch.kernel.outputs)
    elif unwritten:
        findings = _with_hint(findings, launch, lambda grid: execute(library, number, launch, buffers, seconds, grid))
    never = [fill & (name in unwritten) for name, fill in zip(launch.kernel.outputs, ran.unwritten, strict=True)]
    return Checked(ran.outputs, unique(_without_echoes(findings)), never)


def _first_mentions(kernel: Kernel, body: str) -> dict[str, tuple[str, int]]:
    """Where the body first writes an output: `out[...] =`, or names it at all."""
    plain = without_comments(body)
    places = {}
    for name in kernel.outputs:
        match = re.search(rf"\b{name}\s*\[[^;]*\]\s*=[^=]", plain) or re.search(rf"\b{name}\b", plain)
        places[name] = (str(kernel.body), plain.count("\n", 0, match.start()) + 1 if match else 0)
    return places


def _grid_findings(launch: Launch) -> list[Finding]:
    grid, group = launch.grid, launch.threadgroup
    if not any(threads % side for threads, side in zip(grid, group, strict=True)):
        return []
    text = f"grid {grid} is in threads and not a multiple of the threadgroup {group}, so Metal and CUDA differ"
    return [Finding(launch.kernel.body.name, 0, "grid", "", text)]


def _with_hint(findings: list[Finding], launch: Launch, run: Callable[[Size], Ran]) -> list[Finding]:
    """Says so where everything would be written, and within bounds, if the grid counted threadgroups."""
    x, y, z = (threads * side for threads, side in zip(launch.grid, launch.threadgroup, strict=True))
    if (x, y, z) == launch.grid or x * y * z > _MOST_TRIED:
        return findings
    if any(report.kind.startswith(_WRONG_GRID) for report in run((x, y, z)).reports):
        return findings
    hint = f"; is the grid given in threadgroups? It is in threads, and {(x, y, z)} writes them all"
    return [replace(f, text=f.text + hint) if f.kind == "unwritten output" else f for f in findings]


def _without_echoes(findings: list[Finding]) -> list[Finding]:
    """Leaves out what the sanitizer says of a threadgroup array's index where the array itself is reported too."""
    told = {(f.file, f.line) for f in findings if f.kind.startswith("out-of-bounds")}
    return [f for f in findings if f.kind != "index outside an array" or (f.file, f.line) not in told]
