"""What doesn't compile is told at the user's line, whichever compiler says it and wherever that noticed it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import which

import mlx.core as mx
import numpy as np
import pytest
from bodies import launch

from tqcli.kernels.checker import CompilerError, check
from tqcli.kernels.checker.compiler import compiler, runner
from tqcli.kernels.checker.diagnosis import diagnosis
from tqcli.kernels.checker.operations import cases_of, check_cases

START = "uint at = thread_position_in_grid.x;\n"
COMPILERS = [name for name in ("g++", "clang++-14", "clang++-19", "clang++") if which(name)]


@pytest.fixture(params=COMPILERS)
def each_compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("CXX", request.param)
    compiler.cache_clear()
    yield request.param
    monkeypatch.undo()
    compiler.cache_clear()


def said_of(body: str, header: str = "") -> str:
    with pytest.raises(CompilerError) as caught:
        check(launch(START + body, [mx.zeros((64,))], header=header))
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "line", "what"),
    [
        ("if (at < 64) {\n    y0[at] = 1.0f;\n", 2, "'{' is never closed"),
        ("y0[at] = 1.0f;\n}\n", 3, "'}' closes nothing"),
        ("y0[at] = 1.0f;\n}\nint more = 3;\n", 3, "'}' closes nothing"),
        ("y0[at] = (x0[at];\n", 2, "'(' is never closed"),
        ("if (at < 64 {\n    y0[at] = 1.0f;\n}\n", 2, "'(' is never closed"),
        ("if (at < 64) {\n    y0[at = 1.0f;\n}\n", 3, "'[' isn't closed before the '}' in line 4"),
        ("y0[at] = 1.0f;\n/* {\n", 3, "the comment is never closed"),
        ("y0[at] = nothing;\n", 2, ""),
        ("y0[at] = 1.0f\n", 2, ""),
        (
            "atomic_fetch_add_explicit(&y0[at], 1.0f, memory_order_relaxed);\n",
            2,
            "; an output is atomic by atomic_outputs: true in the spec, or by a cast: (device atomic_float*)&y[0]",
        ),
        ("y0[at] = float4(1.0f).xy.x;\n", 2, "; the CPU checker has no swizzles of several members"),
        ("y0[at] = simd_shuffle(Large(), 0).x[0];\n", 2, "a lane's value is at most 32 bytes"),
    ],
)
def test_a_mistake_is_told_at_its_line(each_compiler: str, body: str, line: int, what: str) -> None:
    said = said_of(body, header="struct Large {\n    float x[9];\n};\n")
    assert said.startswith(f"body.metal:{line}: doesn't compile: ")
    assert what in said


def test_a_bracket_of_a_header_is_told_there(each_compiler: str) -> None:
    header = "// {\ninline float twice(float x) {\n    return 2.0f * x;\n"
    assert said_of("y0[at] = twice(x0[at]);\n", header) == "helpers.h:2: doesn't compile: '{' is never closed"


def test_brackets_in_comments_texts_and_other_branches_do_not_count() -> None:
    text = "// (\n/* { */\n#if 1\nif (a) {\n#else\nif (b) {\n#endif\n}\nchar c = '(';\nnothing;\n"
    said = "/tq-file/0:10:1: error: 'nothing' was not declared in this scope"
    line = "body.metal:10: doesn't compile: 'nothing' was not declared in this scope"
    assert str(diagnosis(said, {Path("body.metal"): text})) == line


def test_what_no_line_asked_for_names_the_body() -> None:
    said = "the checker:3:7: error: something\nmsl.h:4:1: note: here\n"
    assert str(diagnosis(said, {Path("body.metal"): "int a;"})) == "body.metal: doesn't compile: something"
    assert str(diagnosis(said, {})) == "doesn't compile: something"
    assert diagnosis("cc1plus: out of memory", {}) is None


def test_functions_in_a_body_are_told_where_they_go(each_compiler: str) -> None:
    said = said_of("float twice(float x) { return 2.0f * x; }\n")
    assert said.startswith("body.metal:2: doesn't compile: ") and "functions of your own go into a header" in said


def test_a_body_that_does_not_compile_is_a_finding_beside_others(tmp_path: Path) -> None:
    (good, other) = cases_of("bit_pack")[:2]
    (tmp_path / "broken.metal").write_text("words[0] = nothing;\n")
    kernel = replace(good.launch.kernel, name="broken", body=tmp_path / "broken.metal")
    broken = replace(good, launch=replace(good.launch, kernel=kernel))
    reports = {report.kernel: report for report in check_cases([good, broken, other])}
    assert [report.is_clean for report in reports.values()] == [True, False, True]
    (finding,) = reports["broken"].findings
    assert finding.told.startswith("broken.metal:1: doesn't compile: ")
    assert finding.told.endswith("[CPU checker; broken.metal, 1 bit, [3, 33]]")
    assert not reports["broken"].compiles and reports["broken"].differences == []


@pytest.mark.parametrize(
    "literal", ["16777217.0 - 16777216.0", "half(1.0 + 1e-9) - half(1)", "float4(1e-9 + 1.0).x - 1"]
)
def test_literals_without_a_suffix_are_floats(each_compiler: str, literal: str) -> None:
    checked = check(launch(START + f"y0[at] = x0[at] + float({literal});", [mx.zeros((64,))]))
    assert checked.findings == []
    assert not checked.outputs[0].any()


def test_every_compiler_here_gives_the_same_result(each_compiler: str) -> None:
    body = START + "half h = half(x0[at]) * half(0.3f);\nh += h * half(3);\ny0[at] = float(-h) + float(bfloat(x0[at]));"
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    checked = check(launch(body, [mx.array(x)]))
    assert checked.findings == []
    h = x.astype(np.float16) * np.float16(0.3)
    h = h + h * np.float16(3)
    rounded = np.array(mx.array(x).astype(mx.bfloat16).astype(mx.float32))
    np.testing.assert_array_equal(checked.outputs[0], rounded - h.astype(np.float32))


def test_every_compiler_here_sees_whole_vectors_written(each_compiler: str) -> None:
    body = """
    threadgroup float4 rows[64];
    uint i = thread_index_in_threadgroup;
    float4 v;
    for (uint k = 0; k < 4; k++) v[k] = i + k < 64 ? x0[i + k] : 0.0f;
    rows[i] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float4 row = rows[63 - i];
    y0[i] = row.x + row.w;
    """
    assert check(launch(body, [mx.ones((64,))])).findings == []


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("nonsense", "CXX is 'nonsense', and there is no program nonsense: name g++ or clang++, or unset CXX"),
        ("true", "CXX is 'true', which is no C++ compiler of GNU's or clang's kind: name g++ or clang++"),
        ("'g++", 'CXX is "\'g++", which is no command (No closing quotation): name g++'),
    ],
)
def test_a_compiler_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, named: str, words: str) -> None:
    monkeypatch.setenv("CXX", named)
    compiler.cache_clear()
    try:
        with pytest.raises(CompilerError) as caught:
            compiler()
    finally:
        compiler.cache_clear()
    assert str(caught.value).startswith(words)


def test_a_compiler_may_have_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env g++")
    compiler.cache_clear()
    try:
        assert compiler().command == (which("env"), "g++")
    finally:
        compiler.cache_clear()


def test_unfinished_files_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQ_CACHE", str(tmp_path))
    folder = tmp_path / "kernels-check"
    folder.mkdir()
    for name in ("tmpold.part", "tmpold.o", "tmpnew.part", "body-0.so"):
        (folder / name).touch()
        if "new" not in name:
            os.utime(folder / name, (0, 0))
    runner.cache_clear()
    try:
        assert runner().parent == folder
    finally:
        runner.cache_clear()
    kept = sorted(path.name for path in folder.iterdir() if not path.name.startswith("runner-"))
    assert kept == ["body-0.so", "tmpnew.part"]
