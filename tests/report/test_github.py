"""What a job on GitHub is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import failure, judged, run

from tqcli.errors import InputError
from tqcli.report.github import inert, job_annotations, job_summary, write_job_summary


def test_a_command_for_what_needs_a_look_and_one_that_counts() -> None:
    gates = [judged(), judged("inconclusive"), judged("fail", value=0.3)]
    assert job_annotations(run(gates=gates, failures=[failure()])) == [
        "::error title=tq made%3A perplexity failed::qjl@4: no memory",
        "::error title=tq made%3A gate failed::kl_mean of turboquant-mse@4, total: 0.3 (0.0016 to 0.0024) nats, "
        "at most 0.02",
        "::warning title=tq made%3A inconclusive::kl_mean of turboquant-mse@4, total: 0.002 (0.0016 to 0.0024) nats, "
        "at most 0.02",
        "::notice title=tq made::1 gate failed, 1 is inconclusive, 1 passed; 1 step failed",
    ]


def test_commands_are_escaped_as_github_asks() -> None:
    error = "50 %\r\n::error::x, y: z"
    lines = job_annotations(run(name="a,b:c%\n", failures=[failure(error, None, "capture")]))
    assert lines[0] == "::error title=tq a%2Cb%3Ac%25%0A%3A capture failed::50 %25%0D%0A::error::x, y: z"


@given(st.text(), st.text())
def test_no_name_makes_a_second_command(name: str, reason: str) -> None:
    lines = job_annotations(run(name=name, gates=[judged("fail", codec=name, reason=reason)]))
    assert len(lines) == 2
    for line in lines:
        assert "\n" not in line and "\r" not in line
        kind, _, properties = line.removeprefix("::").partition("::")[0].partition(" ")
        assert kind in ("error", "notice")
        assert properties.startswith("title=tq ") and "," not in properties


@given(st.text(alphabet=":# []ab\t\n", max_size=20))
def test_no_text_makes_a_command(text: str) -> None:
    shown = inert(text)
    assert not [line for line in shown.split("\n") if line.lstrip().startswith("::") or "##[" in line]
    assert shown.replace("\u200b", "") == text


def test_control_characters_of_names_are_escapes() -> None:
    (line, _) = job_annotations(run(gates=[judged("fail", codec="red\x1b[31m\a")]))
    assert r"red\x1b[31m\x07" in line


def test_of_more_than_github_shows_the_last_counts_the_rest() -> None:
    lines = job_annotations(run(gates=[judged("fail")] * 13))
    assert sum(line.startswith("::error") for line in lines) == 10
    assert lines[9].endswith("and 4 more, in the job's summary and log")
    assert sum("more" in line for line in job_annotations(run(gates=[judged("fail")] * 10))) == 0


def test_the_summary_has_failed_gates_first() -> None:
    gates = [judged(), judged("fail", metric="ppl", value=None, ci_low=None, ci_high=None, reason="no ppl")]
    text = job_summary(run(gates=gates, failures=[failure()], description="What it is."))
    lines = text.splitlines()
    assert lines[0] == "## tq: made"
    assert "**1 gate failed, 1 passed; 1 step failed**" in lines
    table = [line for line in lines if line.startswith("|")]
    assert table[2:] == [
        "| **fail** | `ppl of turboquant-mse@4, total` | none | at most 0.02 | no ppl |",
        "| pass | `kl_mean of turboquant-mse@4, total` | 0.002 (0.0016 to 0.0024) nats | at most 0.02 |  |",
    ]
    assert "- perplexity: qjl@4: no memory" in lines
    assert lines[-1] == "tq 0.1, MLX 0.32, cpu"


def test_names_are_no_markup() -> None:
    hostile = "a | b\n<script> `x` [y](z) @team"
    text = job_summary(run(gates=[judged(codec=hostile, reason=hostile)], description=hostile))
    (row,) = [line for line in text.splitlines() if line.startswith("| pass")]
    code, reason = row.split(" | ")[1], row.split(" | ")[-1]
    assert row.replace(r"\|", "").count("|") == 6
    assert code == r"`` kl_mean of a \| b <script> `x` [y](z) @team, total ``"
    assert "<" not in reason and "[" not in reason and "@" not in reason and "`" not in reason
    assert "<script>" not in text.replace(code, "")


def test_the_summary_is_appended_where_github_says(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n", encoding="utf-8")
    environment = {"GITHUB_STEP_SUMMARY": str(path)}
    assert write_job_summary("one\n", environment) == path
    write_job_summary("two \ud800\n", environment)
    assert path.read_text(encoding="utf-8") == "before\none\ntwo ?\n"
    assert write_job_summary("one\n", {}) is None
    with pytest.raises(InputError, match="GITHUB_STEP_SUMMARY"):
        write_job_summary("one\n", {"GITHUB_STEP_SUMMARY": str(tmp_path)})


def test_a_summary_that_is_too_long_for_github_is_cut_at_a_line(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    write_job_summary("é" * 998 + "\n" + "é" * 499_999 + "\nlast\n", {"GITHUB_STEP_SUMMARY": str(path)})
    assert path.read_text(encoding="utf-8") == "é" * 998 + "\n\nThe rest is left out: GitHub takes no longer summary.\n"
