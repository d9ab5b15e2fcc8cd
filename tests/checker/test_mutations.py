"""Which mistakes are put into a body, and whether they are noticed."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import yaml
from bodies import launch

from tqcli.kernels.checker.mutate import mutate, own_judge
from tqcli.kernels.checker.mutations import mutations
from tqcli.kernels.runtime.kernel import INCLUDES, Launch


def changes(text: str) -> list[tuple[int, str, str]]:
    """Line, change and the line as it is then."""
    found = mutations(Path("body.metal"), text)
    return [(m.line, m.change, m.text.splitlines()[m.line - 1].strip()) for m in found]


def test_barriers_go_one_by_one() -> None:
    text = "a;\nthreadgroup_barrier(mem_flags::mem_device);\n// simdgroup_barrier(x);\nsimdgroup_barrier(x);\n"
    assert changes(text) == [(2, "barrier removed", ";"), (4, "barrier removed", ";")]


def test_bounds_shift_by_one_both_ways() -> None:
    assert changes("if (i < n) {\n") == [
        (1, "i + 1 < n", "if (i + 1 < n) {"),
        (1, "i <= n", "if (i <= n) {"),
    ]
    assert [new for *_, new in changes("i >= n;")] == ["i + 1 >= n;", "i > n;"]
    assert [new for *_, new in changes("i > n;")] == ["i > 1 + n;", "i >= n;"]
    assert [change for _, change, _ in changes("for (int k = f(a); g(k) * 2 < rows[k + 1]; k++) {}")] == [
        "g(k) * 2 + 1 < rows[k + 1]",
        "g(k) * 2 <= rows[k + 1]",
        "index of rows + 1",
    ]


def test_comparisons_of_floats_shifts_and_templates_are_left() -> None:
    assert changes("float v = 0;\nif (v < n) {}\nif (i < 0.5f) {}\nf<T>(x);\nuint k = 1u << 3 >> 1;\n") == []
    assert changes("#if A < 3\n#endif\nconstexpr int HELD = WORDS < 4 ? WORDS : 4;\n") == []


def test_indices_shift_but_declarations_do_not() -> None:
    text = "threadgroup float a[8];\nfloat b[4], c[2];\nuint d = a[b[i]];\nreturn c[0];\n"
    assert changes(text) == [
        (3, "index of a + 1", "uint d = a[(b[i]) + 1];"),
        (3, "index of b + 1", "uint d = a[b[(i) + 1]];"),
        (4, "index of c + 1", "return c[(0) + 1];"),
    ]


def scored(right: Launch) -> dict[str, list[str]]:
    """Changes that were not noticed, by file."""
    scores = mutate([right], own_judge([right]), lambda count: None, lambda: None).scores
    assert sum(score.noticed + len(score.survivors) for score in scores) == sum(len(s.mutants) for s in scores)
    return {score.name: [f"{m.line}: {m.change}" for m in score.survivors] for score in scores}


def test_mistakes_are_noticed_but_for_harmless_ones() -> None:
    body = """
    threadgroup float buf[32];
    uint i = thread_index_in_threadgroup;
    uint at = thread_position_in_grid.x;
    buf[i] = x0[at];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint stride = 1; stride < 32; stride *= 2) {
        float other = buf[i ^ stride];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        buf[i] += other;
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (at < 50) {
        y0[at] = last(buf, i);
    }
    """
    header = "template <typename Row>\ninline float last(Row row, uint i) {\n    return row[31 - i];\n}\n"
    right = launch(body, [mx.random.normal((64,))], ((50,),), grid=64, threadgroup=32, header=header)
    assert scored(right) == {"body.metal": ["6: stride + 1 < 32"], "body: grid": [], "helpers.h": []}


def test_what_does_not_compile_does_not_count() -> None:
    right = launch('static_assert(1 < 2, "");\ny0[thread_position_in_grid.x] = 1.0f;', outputs=((64,),))
    (score, *_) = mutate([right], own_judge([right]), lambda count: None, lambda: None).scores
    assert score.uncompilable == 1
    assert score.noticed == 1
    assert [m.change for m in score.survivors] == ["1 <= 2"]


def test_what_is_called_harmless_is_a_mistake_that_is_tried() -> None:
    kernels = INCLUDES.parent
    table = yaml.safe_load((kernels / "checker" / "harmless.yaml").read_text())
    files = {path.name: path for path in sorted(kernels.rglob("*")) if path.suffix in (".metal", ".h")}
    tried = {
        (name, m.change, m.code)
        for name in {entry["file"] for entry in table}
        for m in mutations(files[name], files[name].read_text())
    }
    assert [entry for entry in table if (entry["file"], entry["change"], entry["code"]) not in tried] == []
    assert all(entry["why"] for entry in table)
