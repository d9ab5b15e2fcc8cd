"""Gates for GitHub Actions: annotations of the job, and its summary.

The escapes are those of GitHub's workflow commands: %, carriage return and line feed in messages, in properties also
colon and comma.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tqcli.errors import InputError
from tqcli.report.gates import bound_text, by_severity, counted, gate_text, subject, value_text
from tqcli.report.markdown_text import code, plain, table
from tqcli.report.run import RunResult
from tqcli.streams import visible

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
_SHOWN = 10
"""Annotations of one kind that GitHub shows of a step; it drops the others without a word."""
_COMMAND = re.compile(r"^\s*::|##\[", re.MULTILINE)
"""GitHub looks for commands behind leading spaces, and for its older ones anywhere in a line."""
_LARGEST = 1_000_000
"""Bytes of a summary; GitHub refuses one of more than 1 MiB."""


def job_annotations(run: RunResult) -> list[str]:
    """Lines to print: an error for each failed gate or step, a warning for each inconclusive gate, a notice of all.

    Of more than ten of a kind the tenth says how many more there are.
    """
    gates = by_severity(run.gates)
    steps = [(f"tq {run.name}: {of.step} failed", _of_codec(of.codec) + of.error) for of in run.failures]
    failed = [(f"tq {run.name}: gate failed", gate_text(gate)) for gate in gates if gate.verdict == "fail"]
    unclear = [(f"tq {run.name}: inconclusive", gate_text(gate)) for gate in gates if gate.verdict == "inconclusive"]
    lines = _commands("error", steps + failed) + _commands("warning", unclear)
    return [*lines, _command("notice", f"tq {run.name}", _verdict(run))]


def job_summary(run: RunResult) -> str:
    """The job's summary in Markdown: the verdict, a table of the gates, failed ones first, and what went wrong."""
    lines = [f"## tq: {plain(run.name)}", "", f"**{plain(_verdict(run))}**"]
    if run.description:
        lines += ["", plain(run.description)]
    if run.gates:
        rows = [
            [
                f"**{gate.verdict}**" if gate.verdict != "pass" else gate.verdict,
                code(subject(gate)),
                plain(value_text(gate)) or "none",
                plain(bound_text(gate)),
                plain(gate.reason),
            ]
            for gate in by_severity(run.gates)
        ]
        lines += ["", *table(("verdict", "gate", "value (95 % interval)", "bound", "remark"), rows)]
    if run.failures:
        lines += ["", "Steps that failed:", ""]
        lines += [f"- {plain(of.step)}: {plain(_of_codec(of.codec) + of.error)}" for of in run.failures]
    environment = run.environment
    lines += ["", plain(f"tq {environment.tq}, MLX {environment.mlx}, {environment.device}"), ""]
    return "\n".join(lines)


def write_job_summary(text: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Appends to the summary of the job that this runs in; None outside of one.

    Raises `InputError` where the file can't be written.
    """
    name = environment.get(SUMMARY_VARIABLE)
    if not name:
        return None
    path = Path(name)
    try:
        with path.open("a", encoding="utf-8", errors="replace") as f:
            f.write(_cut(text))
    except OSError as e:
        raise InputError(f"can't write the job's summary to {path} ({SUMMARY_VARIABLE}): {e.strerror}") from e
    return path


def inert(text: str) -> str:
    """Text in which no line is a workflow command, whatever names it holds: `::` at a line's start, `##[` anywhere."""
    return _COMMAND.sub(lambda found: f"{found[0][:-1]}\N{ZERO WIDTH SPACE}{found[0][-1]}", text)


def _verdict(run: RunResult) -> str:
    steps = len(run.failures)
    return counted(run.gates) + (f"; {steps} {'step' if steps == 1 else 'steps'} failed" if steps else "")


def _of_codec(codec: str | None) -> str:
    return "" if codec is None else f"{codec}: "


def _cut(text: str) -> str:
    """As many whole lines as GitHub takes."""
    if len(text.encode(errors="replace")) <= _LARGEST:
        return text
    kept, size = [], 0
    for line in text.splitlines():
        size += len(line.encode(errors="replace")) + 1
        if size > _LARGEST:
            break
        kept.append(line)
    return "\n".join([*kept, "", "The rest is left out: GitHub takes no longer summary.", ""])


def _commands(kind: str, messages: list[tuple[str, str]]) -> list[str]:
    if len(messages) > _SHOWN:
        left = len(messages) - _SHOWN + 1
        messages = [*messages[: _SHOWN - 1], ("tq", f"and {left} more, in the job's summary and log")]
    return [_command(kind, title, message) for title, message in messages]


def _command(kind: str, title: str, message: str) -> str:
    return f"::{kind} title={_property(title)}::{_message(message)}"


def _message(text: str) -> str:
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return visible(escaped)


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
