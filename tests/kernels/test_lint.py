"""The lint: its findings where there is a clang, that it is missing where there is none; its parsing always."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import pytest

from tqcli.kernels.checker import lint as module
from tqcli.kernels.checker.lint import LintError, find_clang, findings_of, lint, lint_text, textual_findings
from tqcli.kernels.runtime import Kernel, Launch
from tqcli.kernels.runtime.registry import cases, operations

GOOD = """\
threadgroup float shared_rows[32];
uint i = thread_position_in_grid.x;
uint step = thread_index_in_simdgroup;
shared_rows[step] = float(x[i]);
threadgroup_barrier(mem_flags::mem_threadgroup);
T h = T(simd_sum(shared_rows[31 - step]) * metal::exp(0.5f));
h = h + h * T(2);
float4 v = float4(float(h), 1.0f, 2.0f, as_type<float>(i));
out[i] = T(i < N ? metal::max(v.x, dot(v, v)) + 1e-5f : float(h));
"""
RECORDED = """\
bits.h:5:36: error: no matching function for call to 'helper'
lint.h:1:13: note: candidate function not viable: no known conversion from '__global bfloat16_t *__private' \
(aka '__global bfloat *__private') to '__local float *__private' for 1st argument
sample.metal:31:7: error: use of undeclared identifier 'simd_maximum'; did you mean 'simd_max'?
lint.h:304:1: note: 'simd_max' declared here
sample.metal:7:14: warning: unused result [-Wunused-value]
2 errors and 1 warning generated.
"""


def launch(folder: Path, source: str, dtype: mx.Dtype = mx.float32) -> Launch:
    body = folder / "sample.metal"
    body.write_text(source)
    kernel = Kernel("sample", body, ("x",), ("out",), ("T", "N"))
    inputs = [mx.zeros((96,), dtype=dtype)]
    return Launch(kernel, inputs, {"T": dtype, "N": 80}, (96, 1, 1), (32, 1, 1), [(96,)], [dtype])


def findings(folder: Path, source: str, dtype: mx.Dtype = mx.float32) -> list[str]:
    clang = find_clang()
    assert clang is not None
    return list(map(str, lint(launch(folder, source, dtype), clang)))


def test_the_command_names_the_language_and_the_text_comes_on_stdin(tmp_path: Path) -> None:
    seen: list[tuple[Sequence[str], str]] = []

    def record(command: Sequence[str], text: str) -> str:
        seen.append((command, text))
        return ""

    it = launch(tmp_path, GOOD)
    assert lint(it, "clang-19", record) == []
    ((command, text),) = seen
    assert command[0] == "clang-19"
    assert command[-1] == "-"
    assert {"clcpp", "-fsyntax-only", "-cl-no-stdinc"} <= set(command)
    assert text == lint_text(it)
    assert "__kernel void sample(const device float* x, device float* out, uint thread_index_in_simdgroup" in text
    assert f'using T = float; constexpr int N = 80;\n# 1 "sample.metal"\n{GOOD}' in text


def test_what_clang_says_becomes_findings_in_metals_words() -> None:
    assert list(map(str, findings_of(RECORDED))) == [
        "bits.h:5: error: no matching function for call to 'helper': no known conversion from "
        "'device bfloat16_t *' (aka 'device bfloat *') to 'threadgroup float *' for 1st argument",
        "sample.metal:31: error: use of undeclared identifier 'simd_maximum'; did you mean 'simd_max'?",
        "sample.metal:7: warning: unused result [-Wunused-value]",
    ]


def test_a_clang_that_fails_otherwise_raises(tmp_path: Path) -> None:
    with pytest.raises(LintError, match="unknown argument"):
        lint(launch(tmp_path, GOOD), "clang", lambda *_: "clang: error: unknown argument: '-cl-ext'")


def test_a_warning_without_a_line_does_not_fail(tmp_path: Path) -> None:
    assert lint(launch(tmp_path, GOOD), "clang", lambda *_: "clang: warning: argument unused\n") == []


def test_headers_that_bodies_share_have_their_path() -> None:
    text = lint_text(next(case.launch for case in cases("attend")))
    assert '# 1 "attend/read_levels.h"' in text


def test_the_newest_clang_is_found_and_an_old_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"clang-19": 19, "clang-14": 14, "clang": 11}
    monkeypatch.setattr(module.shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(module, "_major", there.__getitem__)
    assert find_clang.__wrapped__() == "clang-19"
    del there["clang-19"]
    assert find_clang.__wrapped__() == "clang-14"
    del there["clang-14"]
    assert find_clang.__wrapped__() is None
    assert "apt install clang" in module.MISSING


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("float* p = buffer;", "error: float* names no address space"),
        ("const T & row = x[0];", "error: const T & names no address space"),
        ("float y = 1.5;", "note: 1.5 is a float in Metal and a double in CUDA; write 1.5f for both"),
        ("float y = 1e-5 + float(x[0]);", "note: 1e-5 is a float in Metal"),
        ("double y = 0.0f;", "error: Metal has no double; write float"),
    ],
)
def test_what_clang_lets_pass_is_found_in_the_text(tmp_path: Path, line: str, said: str) -> None:
    (finding,) = textual_findings(launch(tmp_path, f"// float* p = 1.5\n\n{line}\n"))
    assert str(finding).startswith(f"sample.metal:3: {said}")


@pytest.mark.parametrize(
    "line",
    [
        "const device T* p = x + 3;",
        "device const float* p = x;",
        "float thread& y = z;",
        "const auto mask = uint(a) & b; bool c = float(a) * b > 0x1e5 && d;",
        "float y = 1.0f + 1e-3f + .5f + 2.0h; uint n = 12;",
        "/* double\n 1.5 */",
    ],
)
def test_what_is_right_is_left_alone(tmp_path: Path, line: str) -> None:
    assert textual_findings(launch(tmp_path, line)) == []


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_a_right_body_has_no_findings_and_a_wrong_one_has_its_line(tmp_path: Path, dtype: mx.Dtype) -> None:
    """With clang; without it, that the search for one comes to nothing is all there is to see."""
    if find_clang() is None:
        assert module.MISSING.startswith("no clang 14 or newer")
        return
    assert findings(tmp_path, GOOD, dtype) == []
    wrong = {
        "out[i] = x[i]": "x[i] = T(0)",
        "device pointer": "threadgroup float* p = out;",
        "name": "float y = simd_maximum(1.0f);",
        "64 bits": "ulong y = simd_sum(ulong(i));",
        "in a loop": "for (uint j = 0; j < 2; j++) { threadgroup float late[4]; late[j] = 0.0f; }",
        "C++17": "if constexpr (N > 3) { out[i] = T(0); }",
    }
    for name, line in wrong.items():
        found = findings(tmp_path, f"{GOOD}{line};\n", dtype)
        assert found, name
        assert all(finding.startswith("sample.metal:10: ") for finding in found), (name, found)


def test_a_float_put_into_a_bfloat_is_found_with_clang(tmp_path: Path) -> None:
    source = "uint i = thread_position_in_grid.x;\nout[i] = float(x[i]) * 2.0f;\n"
    if find_clang() is None:
        assert textual_findings(launch(tmp_path, source, mx.bfloat16)) == []
        return
    assert findings(tmp_path, source, mx.float16) == []
    (found,) = findings(tmp_path, source, mx.bfloat16)
    assert found.startswith("sample.metal:2: error: ")


@pytest.mark.parametrize("operation", operations())
def test_the_bodies_of_operations_are_clean(operation: str) -> None:
    different = {lint_text(case.launch): case.launch for case in cases(operation)}
    clang = find_clang()
    for it in different.values():
        assert (textual_findings(it) if clang is None else lint(it, clang)) == []
