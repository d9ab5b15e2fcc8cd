"""`tq kernels check`: what is wrong with a Metal body, found on any Linux machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tqcli.cli.arguments import JsonOption, say
from tqcli.errors import InputError

if TYPE_CHECKING:
    from tqcli.kernels.checker.finding import Finding
    from tqcli.kernels.checker.operations import KernelReport
    from tqcli.kernels.runtime.kernel import Launch

NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME", help="An operation, or the .metal file of your own kernel. Default: all operations."
    ),
]
SpecOption = Annotated[
    Path | None,
    typer.Option("--spec", metavar="FILE", help="What your own kernel is launched with; see docs/kernels-check.md."),
]
MutateOption = Annotated[
    bool,
    typer.Option("--mutate", help="Put small mistakes into the bodies and show whether they are noticed (minutes)."),
]
DeviceOption = Annotated[
    bool, typer.Option("--on-device", help="Run the kernels on this machine's GPU instead, and write a report.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="The report of --on-device. Default: tq-kernels-DEVICE.txt."),
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Processes of --on-device. Default: 1 on a Mac, else most of the cores."),
]


def check(
    name: NameArgument = None,
    spec: SpecOption = None,
    mutate: MutateOption = False,
    on_device: DeviceOption = False,
    out: OutOption = None,
    jobs: JobsOption = None,
    json: JsonOption = False,
) -> None:
    """Checks Metal bodies without a Mac: races, bounds, unwritten memory, text, lint, results against the reference.

    Exits with 1 if anything is found. Example: tq kernels check qjl, or: tq kernels check my.metal --spec my.yaml
    """
    if on_device:
        _on_device(name, spec, mutate, out, jobs, json)
        return
    if out is not None or jobs is not None:
        raise InputError(f"{'--jobs' if out is None else '--out'} goes with --on-device")
    is_own = spec is not None or (name or "").endswith(".metal")
    if is_own and (spec is None or name is None):
        missing = "--spec FILE" if spec is None else "the .metal file"
        raise InputError(
            f"your own kernel needs a body and a spec; name {missing} too: tq kernels check my.metal --spec my.yaml"
        )
    with _refused():
        if mutate:
            clean = _mutate(name, spec, json)
        elif spec:
            clean = _own(str(name), spec, json)
        else:
            clean = _project(name, json)
    if not clean:
        raise typer.Exit(1)


def _on_device(
    name: str | None, spec: Path | None, mutate: bool, out: Path | None, jobs: int | None, json: bool
) -> None:
    from tqcli.cli.kernels_device import check_on_device

    given = {"--spec": spec is not None, "--mutate": mutate, "--json": json}
    if wrong := [option for option, is_given in given.items() if is_given]:
        raise InputError(f"--on-device doesn't go with {wrong[0]}")
    with _refused():
        agree = check_on_device(name, out, jobs)
    if not agree:
        raise typer.Exit(1)


@contextmanager
def _refused() -> Iterator[None]:
    """What the checker refuses is the user's to mend: one line and exit code 2."""
    from tqcli.kernels.checker.lint import LintError

    try:
        yield
    except (ValueError, LintError) as e:
        raise InputError(str(e)) from e


def _project(name: str | None, json: bool) -> bool:
    from tqcli.kernels.checker.operations import cases_of, check_cases
    from tqcli.progress import progress

    cases = cases_of(name)
    with progress(len(cases), "check", "case") as bar:
        reports = check_cases(cases, bar.update)
    clean = all(report.is_clean for report in reports)
    if json:
        _print_json({"clean": clean, "kernels": [_report_document(report) for report in reports]})
    else:
        _print_reports(reports)
    return clean


def _own(body: str, spec: Path, json: bool) -> bool:
    from tqcli.kernels.checker import check as check_launch
    from tqcli.kernels.checker.operations import lint_all
    from tqcli.kernels.checker.spec import user_kernel

    launch = user_kernel(Path(body), spec).launch
    checked = check_launch(launch)
    linted = lint_all([launch])
    outputs = _output_documents(launch, checked.outputs)
    lint = None if linted is None else linted[0]
    clean = not checked.findings and not lint
    if json:
        found = {"findings": _findings(checked.findings), "lint": None if lint is None else _findings(lint)}
        _print_json({"clean": clean, "body": body, **found, "outputs": outputs})
        return clean
    _print_lines([*(lint or []), *checked.findings], f"{Path(body).name}: nothing found by the CPU checker")
    for output in outputs:
        values = " ".join(value if isinstance(value, str) else f"{value:g}" for value in output["first"])
        print(f"{output['name']}: {output['dtype']} {output['shape']}, sha256 {output['sha256'][:12]}, starts {values}")
    if lint is None:
        _say_no_lint()
    return clean


def _mutate(name: str | None, spec: Path | None, json: bool) -> bool:
    from tqcli.cli.kernels_mutate import mutate_own, mutate_project, print_scores, scores_document

    if spec is None:
        tally = mutate_project(name)
    else:
        outcome = mutate_own(Path(str(name)), spec)
        if isinstance(outcome, list):
            say("mistakes can only be put into a body in which nothing is found; mend what is found first")
            if json:
                _print_json({"clean": False, "findings": _findings(outcome)})
            else:
                _print_lines(outcome)
            return False
        tally = outcome
    if json:
        _print_json(scores_document(tally))
    else:
        print_scores(tally)
    return tally.is_enough


def _print_reports(reports: Sequence[KernelReport]) -> None:
    from tqcli.report.terminal import new_table, print_table

    table = new_table("operation", "kernel", "cases", "Mac text", "lint", "CPU checker", "results")
    for report in reports:
        golden = "equal" if report.golden == report.cases else f"{report.cases - report.golden} differ"
        lint = "-" if report.lint is None else _number(report.lint, "clean")
        cells = [_number(report.findings, "clean"), _number(report.differences, "as reference", "differ")]
        table.add_row(report.operation, report.kernel, str(report.cases), golden, lint, *cells)
    print_table(table)
    for report in reports:
        _print_lines([*(report.lint or []), *report.findings])
        _print_lines([f"{report.kernel}: {difference}" for difference in report.differences])
    print("Mac text: byte for byte what MLX compiles on a Mac. CPU checker: races, bounds, memory, barriers.")
    if any(report.lint is None for report in reports):
        _say_no_lint()


def _number(found: Sequence[object], none: str, some: str = "found") -> str:
    return f"{len(found)} {some}" if found else none


def _print_lines(lines: Sequence[object], none: str = "") -> None:
    for line in lines:
        print(line)
    if none and not lines:
        print(none)


def _say_no_lint() -> None:
    from tqcli.kernels.checker.lint import MISSING

    say(f"not linted: {MISSING}")


def _report_document(report: KernelReport) -> dict[str, Any]:
    return {
        "operation": report.operation,
        "kernel": report.kernel,
        "clean": report.is_clean,
        "cases": report.cases,
        "golden": report.golden,
        "lint": None if report.lint is None else _findings(report.lint),
        "findings": _findings(report.findings),
        "differences": report.differences,
    }


def _findings(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [{**asdict(finding), "message": str(finding)} for finding in findings]


def _output_documents(launch: Launch, outputs: Sequence[Any]) -> list[dict[str, Any]]:
    """Enough of each output to compare two bodies by."""
    from hashlib import sha256

    documents = []
    for name, dtype, output in zip(launch.kernel.outputs, launch.output_dtypes, outputs, strict=True):
        digest = sha256(output.tobytes()).hexdigest()
        kind = str(dtype).removeprefix("mlx.core.")
        first = [_number_or_name(value.item()) for value in output.reshape(-1)[:4]]
        documents.append({"name": name, "dtype": kind, "shape": list(output.shape), "sha256": digest, "first": first})
    return documents


def _number_or_name(value: float) -> float | str:
    """JSON has no NaN and no infinities: their names."""
    return value if isfinite(value) else str(value)


def _print_json(document: dict[str, Any]) -> None:
    from json import dumps

    print(dumps(document, indent=1))
