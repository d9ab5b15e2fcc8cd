"""What of a body's text the checker takes, what it refuses, and wherever its files lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bodies import launch, marked_lines
from faults import GO, NUMBERS

from tqcli.kernels.checker import check


@pytest.mark.parametrize(
    "declared",
    [
        "threadgroup unsigned int a[64];",
        "threadgroup volatile uint a[64];",
        "volatile threadgroup uint a[64];",
        "threadgroup unsigned long long a[64], b;",
        "threadgroup alignas(16) float a[64];",
        "typedef float row_t[64];\nthreadgroup row_t a;",
        "threadgroup metal::atomic<float> b[2]; threadgroup float a[64];",
    ],
)
def test_threadgroup_memory_is_shared_however_it_is_declared(declared: str) -> None:
    faulty = launch(f"{declared}\n{GO}a[i] = x0[at];  // here\ny0[at] = a[63 - i];", [NUMBERS])
    races = [(f.place, f.buffer) for f in check(faulty).findings if f.kind == "data race"]
    assert races == [(marked_lines(faulty)[0], "a")]


def test_an_array_of_a_type_with_several_arguments_is_shared() -> None:
    body = (
        "threadgroup vec<float, 2> a[64];\n"
        + GO
        + ("a[i].x = x0[at];\nthreadgroup_barrier(mem_flags::mem_threadgroup);\ny0[at] = a[63 - i].x;")
    )
    checked = check(launch(body, [NUMBERS]))
    assert checked.findings == []
    assert checked.outputs[0].tolist() == NUMBERS.tolist()[::-1]


def test_threadgroup_memory_in_a_macro_is_refused() -> None:
    body = "#define SHARED \\\n  threadgroup\nSHARED float a[64];\ny0[0] = a[0];"
    with pytest.raises(ValueError, match=r"body.metal:2: 'threadgroup' is no plain declaration in threadgroup memory"):
        check(launch(body))


@pytest.mark.parametrize(
    "line", ['#include "other.h"', "# include <string>", "#\\\ninclude <simd/simd.h>", "#import <a>"]
)
def test_includes_are_refused_but_for_those_of_metal(line: str) -> None:
    with pytest.raises(ValueError, match=r"^helpers.h:[23]: includes .*; name headers in the spec instead$"):
        check(launch("y0[0] = 1.0f;", header=f'// #include "x"\n{line}\n'))
    assert (
        check(launch("#include <metal_stdlib>\ny0[0] = 1.0f;", outputs=((1,),), grid=1, threadgroup=1)).findings == []
    )


@pytest.mark.parametrize("folder", ["a (copy)", "back\\slash", 'quo"te', "line\u2028break", "new\nline", "per%s"])
def test_lines_are_known_wherever_the_body_lies(folder: str, tmp_path: Path) -> None:
    faulty = launch(GO + "y0[at] = twice(x0[at]);\ny0[at + 1] = 1.0f;  // here", [NUMBERS], header=_TWICE)
    place = tmp_path / folder
    place.mkdir()
    body, header = faulty.kernel.body.rename(place / "body.metal"), Path(faulty.kernel.headers[0]).rename(place / "t.h")
    moved = replace(faulty, kernel=replace(faulty.kernel, body=body, headers=(str(header),)))
    found = {finding.kind: finding for finding in check(moved).findings}
    assert [found["out-of-bounds write"].place] == marked_lines(moved)
    assert found["shift"].place == "t.h:2"
    with pytest.raises(ValueError, match=r"^t.h:2: doesn't compile"):
        header.write_text("inline float twice(float x) {\n  return nothing;\n}\n")
        check(moved)


_TWICE = """
inline float twice(float x) {
  return float(int(x) << 33 - int(x));
}
"""
