"""Planted faults: each is found, at its line, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import pytest
from atomic_faults import MORE
from bodies import launch, marked_lines
from divergence_faults import DIVERGENCE
from faults import FAULTS, GO, NUMBERS, Fault

from tqcli.kernels.checker import check, check_all, execute
from tqcli.kernels.runtime.kernel import Launch


@pytest.mark.parametrize("fault", [*FAULTS, *MORE, *DIVERGENCE], ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_at_its_line(fault: Fault) -> None:
    faulty = fault.launch()
    findings = check(faulty).findings
    places = [finding.place for finding in findings if finding.kind == fault.kind]
    assert places == marked_lines(faulty), findings
    (finding,) = (finding for finding in findings if finding.kind == fault.kind)
    assert f"{fault.kind}{'' if fault.says[0] == ':' else ' '}{fault.says}" in str(finding)


@pytest.mark.parametrize("fault", [*FAULTS, *MORE, *DIVERGENCE], ids=lambda fault: fault.name)
def test_nothing_else_is_found(fault: Fault) -> None:
    kinds = {finding.kind for finding in check(fault.launch()).findings}
    assert kinds <= {fault.kind, *fault.also}


def test_a_grid_in_threadgroups_is_recognised() -> None:
    body = GO + "if (at < 256) y0[at] = x0[at % 64];  // here"
    faulty = launch(body, [NUMBERS], ((256,),), grid=4, threadgroup=64)
    found = {finding.kind: finding for finding in check(faulty).findings}
    assert set(found) == {"grid", "unwritten output"}
    assert str(found["grid"]).startswith("body.metal: grid: grid (4, 1, 1) is in threads and not a multiple of")
    assert [found["unwritten output"].place] == marked_lines(faulty)
    assert found["unwritten output"].text == (
        "y0[4]: 252 of 256 elements were never written, this one first; is the grid given in threadgroups? "
        "It is in threads, and (256, 1, 1) writes them all"
    )


def test_a_short_grid_gets_no_wrong_advice() -> None:
    found = check(launch(GO + "y0[at] = x0[at];", [NUMBERS], grid=32, threadgroup=32)).findings
    assert [finding.kind for finding in found] == ["unwritten output"]
    assert "threadgroups?" not in found[0].text


def test_a_body_without_end_is_stopped() -> None:
    faulty = launch(GO + "while (x0[0] == 0.0f) y0[at] = x0[1];  // here", [NUMBERS])
    (checked,) = check_all([faulty], seconds=1)
    assert [f.place for f in checked.findings if f.kind == "no end"] == marked_lines(faulty)


@pytest.mark.parametrize(
    "loop",
    [
        "for (;;) {}  // here",
        "uint n = at;\nwhile (n != 1000) n = (n * 2 + 1) | 1;  // here",
        "float v = x0[at];\nwhile (v >= 0.0f)\n    v = metal::fabs(metal::tan(v));  // here",
        "for (;;) threadgroup_barrier(mem_flags::mem_none);  // here",
    ],
)
def test_a_loop_that_touches_no_memory_is_stopped_and_told_at_its_line(loop: str) -> None:
    faulty = launch(GO + loop + "\ny0[at] = 1.0f;", [NUMBERS])
    (checked,) = check_all([faulty], seconds=1)
    assert [(f.place, f.kind) for f in checked.findings] == [(*marked_lines(faulty), "no end")]


def test_a_crash_is_a_finding() -> None:
    faulty = launch(GO + "y0[at] = deep(x0, at);", [NUMBERS], header=_RECURSION)
    assert "crash" in [finding.kind for finding in check(faulty).findings]


_RECURSION = """
inline float deep(const device float* x, uint n) {
    float much[1024];
    for (uint i = 0; i < 1024; i++) much[i] = x[i % 64] + n;
    return much[n % 1024] + (x[63] > 0.0f ? deep(x, n + 1) * much[(n + 7) % 1024] : 0.0f);
}
"""


def test_findings_are_told_once_for_a_line_and_buffer_and_are_sorted() -> None:
    body = GO + "y0[at] = x0[at + 40];\nfloat a = x0[at + 1] + x0[at + 2];\ny0[at + 50] = a;"
    found = check(launch(body, [NUMBERS])).findings
    told = [(f.line, f.kind, f.buffer) for f in found]
    assert told == sorted(set(told))
    assert (5, "out-of-bounds read", "x0") in told
    (read,) = (f for f in found if f.line == 4 and f.buffer == "x0")
    assert read.count == 40


def test_without_addr2line_it_is_said_why_the_line_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "_addr2line", lambda: None)
    (finding,) = check(launch(GO + "y0[at] = x0[at + 1];", [NUMBERS])).findings
    assert finding.place == "body.metal"
    assert finding.text.endswith("; its line isn't known without addr2line: apt install binutils")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: launch("y0[0] = nothing;", [NUMBERS]), "body.metal:1: doesn't compile: "),
        (lambda: launch("y0[0] = 1.0f", [NUMBERS]), "doesn't compile: expected"),
        (lambda: launch("y0[0] = x0;", [mx.array(1.0)]), "none 0-dimensional"),
        (lambda: launch("y0[0] = 1.0f;", threadgroup=2048), "at most 1024 threads, not 2048"),
        (lambda: launch("y0[0] = 1.0f;", grid=0), "is empty"),
    ],
)
def test_what_cannot_be_run_is_refused(change: Callable[[], Launch], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(change())
