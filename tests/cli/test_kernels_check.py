"""`tq kernels check BODY --spec SPEC`, and the example of the documents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import yaml
from running import done, refusal, tq

from tqcli.kernels.checker.compiler import compiler
from tqcli.kernels.checker.lint import find_clang
from tqcli.kernels.checker.spec import user_kernel
from tqcli.kernels.runtime.attributes import METAL_ATTRIBUTES

REPOSITORY = Path(__file__).resolve().parents[2]
BUTTERFLY = REPOSITORY / "docs" / "examples" / "butterfly"
PAGE = REPOSITORY / "docs" / "kernels-check.md"
SPEC: dict[str, Any] = {
    "inputs": {"x": {"dtype": "float32", "shape": [64], "values": "arange"}},
    "outputs": {"y": {"dtype": "float32", "shape": [64]}},
    "grid": [64, 1, 1],
    "threadgroup": [32, 1, 1],
}
BODY = "uint at = thread_position_in_grid.x;\ny[at] = x[at];\n"


def written(folder: Path, spec: dict[str, Any] | str, body: str = BODY) -> tuple[Path, Path]:
    (folder / "own.metal").write_text(body)
    (folder / "own.yaml").write_text(spec if isinstance(spec, str) else yaml.safe_dump(spec))
    return folder / "own.metal", folder / "own.yaml"


def test_the_documents_show_what_the_example_gives() -> None:
    shown = re.findall(r"\$ tq kernels check \$B/(\S+) --spec \$B/spec.yaml\n((?:[^$`].*\n)+)", PAGE.read_text())
    assert [body for body, _ in shown] == ["xor.metal", "range.metal", "xor-no-barrier.metal", "range-no-barrier.metal"]
    for body, output in shown:
        outcome = tq("kernels", "check", BUTTERFLY / body, "--spec", BUTTERFLY / "spec.yaml")
        if find_clang() is None:
            output = output.replace(" and the lint", ", not linted")
        assert outcome.out == output
        assert outcome.code == ("no-barrier" in body)


def test_the_documents_list_what_is_in_scope() -> None:
    listed = re.search(r"In scope are\n(.*?)The spec says", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert listed is not None
    assert set(METAL_ATTRIBUTES) <= set(re.findall(r"`(\w+)`", listed[1]))


def test_pairing_by_xor_and_by_range_is_one_butterfly() -> None:
    found = {}
    for body in BUTTERFLY.glob("*.metal"):
        document = tq("kernels", "check", body, "--spec", BUTTERFLY / "spec.yaml", "--json").document
        findings = [(f["line"], f["kind"], f["buffer"], f["text"]) for f in document["findings"]]
        found[body.stem] = (findings, [output["sha256"] for output in document["outputs"]])
    assert found["xor"] == found["range"]
    assert found["xor-no-barrier"] == found["range-no-barrier"]
    assert found["xor"][0] == []
    assert [finding[:3] for finding in found["xor-no-barrier"][0]] == [(11, "data race", "buf")]
    assert found["xor"][1] != found["xor-no-barrier"][1]


def test_json_tells_findings_and_outputs(tmp_path: Path) -> None:
    body, spec = written(tmp_path, SPEC, BODY.replace("x[at]", "x[at + 1]"))
    outcome = tq("kernels", "check", body, "--spec", spec, "--json")
    assert outcome.code == 1
    assert outcome.document["clean"] is False
    (finding,) = outcome.document["findings"]
    assert (
        finding["message"] == "own.metal:2: out-of-bounds read of x[64]: thread 31 of threadgroup 1; x has 64 elements"
    )
    assert outcome.document["outputs"][0]["first"] == [1, 2, 3, 4]


def test_a_spec_gives_every_kind_of_parameter(tmp_path: Path) -> None:
    (tmp_path / "twice.h").write_text("inline float twice(float x) { return 2.0f * x; }\n")
    spec = {
        "inputs": {
            "a": {"dtype": "bfloat16", "shape": [2, 3], "values": "ones"},
            "b": {"dtype": "uint32", "shape": [3], "values": [1, 2, 4294967295]},
            "c": {"dtype": "bool", "shape": [2], "values": [0, 1]},
            "d": {"dtype": "int64", "shape": [50]},
            "e": {"dtype": "float16", "shape": [1], "values": "zeros"},
        },
        "outputs": {"y": {"dtype": "float16", "shape": [2, 2]}, "z": {"dtype": "uint8", "shape": [1]}},
        "grid": [32, 2, 1],
        "threadgroup": [32, 1, 1],
        "template": {"D": 128, "T": "bfloat16", "FLAG": True},
        "headers": ["twice.h"],
        "init_value": 3,
    }
    launch = user_kernel(*written(tmp_path, spec)).launch
    a, b, c, d, e = launch.inputs
    assert a.dtype == mx.bfloat16 and a.shape == (2, 3) and bool(mx.all(a == 1))
    assert b.tolist() == [1, 2, 4294967295]
    assert c.tolist() == [False, True] and c.dtype == mx.bool_
    assert d.dtype == mx.int64 and d.min().item() >= 0 and d.max().item() < 256
    assert e.tolist() == [0]
    assert launch.template == {"D": 128, "T": mx.bfloat16, "FLAG": True}
    assert launch.grid == (32, 2, 1) and launch.init_value == 3
    assert launch.output_dtypes == [mx.float16, mx.uint8] and launch.output_shapes == [(2, 2), (1,)]
    assert launch.kernel.header.startswith("inline float twice")


def test_normal_values_follow_the_seed(tmp_path: Path) -> None:
    arrays = []
    for seed in (1, 1, 2):
        spec = {**SPEC, "inputs": {"x": {"dtype": "float32", "shape": [64], "seed": seed}}}
        arrays.append(np.array(user_kernel(*written(tmp_path, spec)).launch.inputs[0]))
    assert np.array_equal(arrays[0], arrays[1]) and not np.array_equal(arrays[0], arrays[2])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grd": [1, 1, 1]}, "grd: no such setting; there are inputs, outputs, grid"),
        ({"grid": [0, 1, 1]}, "own.yaml: grid[0] is 0; write a number of at least 1"),
        ({"grid": [64, 1, 1.5]}, "grid[2] is 1.5; write a whole number"),
        ({"grid": 64}, "grid is 64; write a list"),
        ({"grid": [64]}, "grid is [64]; it takes at least 3, not 1"),
        ({"threadgroup": [64, 64, 1]}, "threadgroup: a threadgroup has at most 1024 threads, not 4096"),
        ({"grid": [65536, 65536, 1], "threadgroup": [1, 1, 1]}, "grid (65536, 65536, 1) has 4294967296 threads, and"),
        (
            {"outputs": {"y": {"dtype": "int8", "shape": [0, 2**40]}}},
            f"outputs.y.shape: {2**40} elements are more than {2**24}",
        ),
        ({"outputs": {}}, "outputs is {}; it takes at least 1, not 0"),
        ({"outputs": {"y": {"shape": [1]}}}, "outputs.y.dtype is missing; add it"),
        ({"outputs": {"y": 3}}, "outputs.y is 3; write a mapping of dtype, shape"),
        ({"template": {"T": "float17"}}, "template.T: 'float17' is not a whole number, true, false or one of float32"),
        ({"template": {"T": 1.5}}, "template.T is 1.5; write a whole number, true, false or one of float32, float16"),
        ({"template": {"T": 2**32}}, "own.yaml: template.T: 4294967296 is beyond an int, -2147483648 to 2147483647"),
        ({"template": {"2x": 1}}, "template: the name \"2x\" has to be letters, digits and underscores, no digit"),
        ({"template": {True: 1}}, "is no text; write it in quotes"),
        ({"inputs": {"half": {"dtype": "int8", "shape": [1]}}}, "inputs.half: 'half' is a word of Metal; take another"),
        ({"inputs": {"y": {"dtype": "int8", "shape": [1]}}}, "outputs.y: 'y' is a name in inputs too; give each its"),
        ({"inputs": {"x": {"dtype": "double", "shape": [1]}}}, "inputs.x.dtype is \"double\"; write float32, float16"),
        ({"inputs": {"x": {"dtype": "int8", "shape": [1], "values": "all"}}}, "inputs.x.values is \"all\"; write"),
        ({"init_value": "zero"}, "init_value is \"zero\"; write a number"),
        ({"atomic_outputs": "maybe"}, "atomic_outputs is \"maybe\"; write true or false"),
        ({"atomic_outputs": True, "outputs": {"y": {"dtype": "int8", "shape": [1]}}}, "Metal has no atomic int8; with"),
        ({"harmless": [{"change": "at <= 3"}]}, "harmless[0].why is missing; add it"),
        ({"harmless": [{"change": "at <= 3", "why": ""}]}, "harmless[0].why is \"\"; write a text that isn't empty"),
        ({"inputs": {"x": {"dtype": "int8", "shape": [3], "values": [1]}}}, "1 values for shape [3], which has 3"),
        ({"inputs": {"x": {"dtype": "int8", "shape": [1], "sed": 1}}}, "inputs.x.sed: no such setting; there are dtyp"),
        ({"inputs": {"x": {"dtype": "int8", "shape": []}}}, "inputs.x.shape is []; it takes at least 1, not 0"),
        ({"inputs": {"x": {"dtype": "uint8", "shape": [1], "values": [300]}}}, "300 is not one of uint8's integers"),
        ({"inputs": {"x": {"dtype": "int32", "shape": [1], "values": [9.5]}}}, "9.5 is not one of int32's integers"),
        ({"inputs": {"x": {"dtype": "int32", "shape": [1], "values": [float("nan")]}}}, "nan is not one of int32's"),
        ({"inputs": {"x": {"dtype": "int8", "shape": [1], "seed": -1}}}, "inputs.x.seed is -1; write a number of at"),
        ({"headers": ["no.h"]}, "no.h is not there; headers lie beside the spec"),
    ],
)  # fmt: skip
def test_a_wrong_spec_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    body, spec = written(tmp_path, {**SPEC, **change})
    assert words in refusal("kernels", "check", body, "--spec", spec)


def test_other_wrong_files_are_refused(tmp_path: Path) -> None:
    body, spec = written(tmp_path, "inputs: [")
    assert "is not YAML" in refusal("kernels", "check", body, "--spec", spec)
    body, spec = written(tmp_path, "[]")
    assert "is not a mapping with outputs, grid, threadgroup" in refusal("kernels", "check", body, "--spec", spec)
    body, spec = written(tmp_path, SPEC, BODY + "// \N{DEGREE SIGN}\n")
    assert "own.metal:3: Metal bodies have to be plain ASCII" in refusal("kernels", "check", body, "--spec", spec)
    assert "nothing.metal is not a file" in refusal("kernels", "check", tmp_path / "nothing.metal", "--spec", spec)
    assert "name --spec FILE too" in refusal("kernels", "check", body)
    body, spec = written(tmp_path, SPEC, BODY.replace("x[at]", "nothing[at]"))
    assert "own.metal:2: doesn't compile: " in refusal("kernels", "check", body, "--spec", spec)


def test_a_key_that_is_there_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    text = yaml.safe_dump(SPEC) + "outputs:\n  z: {dtype: int8, shape: [1]}\n"
    line = len(text.splitlines()) - 1
    body, spec = written(tmp_path, text)
    said = refusal("kernels", "check", body, "--spec", spec)
    assert f"own.yaml:{line}: the key 'outputs' is there twice, first in line" in said


def test_a_compiler_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body, spec = written(tmp_path, SPEC)
    monkeypatch.setenv("CXX", "nonsense")
    compiler.cache_clear()
    try:
        line = refusal("kernels", "check", body, "--spec", spec)
    finally:
        compiler.cache_clear()
    assert line == "CXX is 'nonsense', and there is no program nonsense: name g++ or clang++, or unset CXX"


@pytest.mark.parametrize(
    "body",
    ["xor", "range"],
)
def test_the_example_passes_with_mistakes(body: str) -> None:
    outcome = done("kernels", "check", f"{body}.metal", "--spec", "spec.yaml", "--mutate", folder=BUTTERFLY)
    assert outcome.out.rstrip().endswith(
        "12 of 13 mistakes were noticed, 92.3 %; without the 1 that are harmless, 100.0 %."
    )
    assert "harmless: Strides are powers of two" in outcome.out
    assert outcome.err.splitlines()[-1] == "tq: 13 of 13 mistakes tried"


def test_a_harmless_mistake_that_is_not_tried_is_told(tmp_path: Path) -> None:
    entries = [
        {"change": "at <= 3", "why": "no such bound"},
        {"file": "other.metal", "change": "at < 3", "why": "not here"},
    ]
    body, spec = written(tmp_path, {**SPEC, "harmless": entries})
    outcome = done("kernels", "check", body, "--spec", spec, "--mutate")
    told = [line for line in outcome.err.splitlines() if "harmless" in line]
    assert len(told) == 1
    assert "harmless: 'at <= 3' is no mistake that was tried; take it out or mend it" in told[0]


ATOMIC = "atomic_fetch_add_explicit({}, x[at], memory_order_relaxed);\n"


@pytest.mark.parametrize(
    ("atomic_outputs", "target"),
    [
        (True, "&y[at / 16]"),
        (False, "(device atomic_float*)&y[at / 16]"),
        (False, "reinterpret_cast<device atomic<float>*>(y) + at / 16"),
    ],
)
def test_outputs_may_be_atomic_by_a_flag_or_a_cast(tmp_path: Path, atomic_outputs: bool, target: str) -> None:
    outputs = {"y": {"dtype": "float32", "shape": [4]}}
    spec = {**SPEC, "outputs": outputs, "init_value": 0, "atomic_outputs": atomic_outputs}
    body, path = written(tmp_path, spec, "uint at = thread_position_in_grid.x;\n" + ATOMIC.format(target))
    document = done("kernels", "check", body, "--spec", path, "--json").document
    assert document["lint"] == []
    assert document["outputs"][0]["first"] == [120, 376, 632, 888]


def test_a_plain_access_of_an_atomic_output_is_told_at_its_line(tmp_path: Path) -> None:
    spec = {**SPEC, "init_value": 0, "atomic_outputs": True}
    body, path = written(tmp_path, spec, BODY)
    assert "own.metal:2: doesn't compile: " in refusal("kernels", "check", body, "--spec", path)


def test_without_a_compiler_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body, spec = written(tmp_path, SPEC)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    compiler.cache_clear()
    try:
        line = refusal("kernels", "check", body, "--spec", spec)
    finally:
        compiler.cache_clear()
    assert line == "checking kernels needs a C++ compiler and none is on PATH; install one: apt install g++"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert "there is qjl" in refusal("kernels", "check", "qlj")


def test_mistakes_in_an_own_kernel_are_counted(tmp_path: Path) -> None:
    body, spec = written(tmp_path, SPEC)
    document = done("kernels", "check", body, "--spec", spec, "--mutate", "--json").document
    assert document["mutants"] == document["noticed"] == 3  # two indices and the grid
    assert document["score"] == 1


def test_a_body_with_findings_is_not_mutated() -> None:
    outcome = tq("kernels", "check", BUTTERFLY / "xor-no-barrier.metal", "--spec", BUTTERFLY / "spec.yaml", "--mutate")
    assert outcome.code == 1
    assert "data race on buf" in outcome.out and "mend what is found first" in outcome.err


def test_outputs_that_are_no_numbers_are_names_in_json(tmp_path: Path) -> None:
    body, spec = written(tmp_path, SPEC, BODY.replace("x[at]", "x[at] / 0.0f"))
    document = tq("kernels", "check", body, "--spec", spec, "--json").document
    assert document["outputs"][0]["first"] == ["nan", "inf", "inf", "inf"]


def test_a_literal_without_a_suffix_is_a_note_and_no_fault(tmp_path: Path) -> None:
    body, spec = written(tmp_path, SPEC, BODY.replace("x[at]", "2.0 * x[at]"))
    outcome = done("kernels", "check", body, "--spec", spec)
    assert "own.metal:2: note: 2.0 is a float in Metal and a double in CUDA; write 2.0f for both [lint]" in outcome.out
    document = done("kernels", "check", body, "--spec", spec, "--json").document
    assert document["clean"] is True and document["outputs"][0]["first"] == [0, 2, 4, 6]
    assert [(note["kind"], note["tool"]) for note in document["lint"]] == [("note", "lint")]


def test_elements_that_no_thread_wrote_are_no_numbers(tmp_path: Path) -> None:
    body, spec = written(tmp_path, SPEC, BODY.replace("y[at] =", "if (at != 1) y[at] ="))
    outcome = tq("kernels", "check", body, "--spec", spec)
    assert "own.metal:2: unwritten output: y[1]: 1 of 64 elements were never written" in outcome.out
    assert outcome.out.endswith("starts 0 unwritten 2 3\n")


def test_metals_own_headers_may_be_included(tmp_path: Path) -> None:
    body, spec = written(tmp_path, SPEC, "#include <metal_stdlib>\nusing namespace metal;\n" + BODY + "nothing;\n")
    assert "own.metal:5: doesn't compile: " in refusal("kernels", "check", body, "--spec", spec)
    body.write_text(body.read_text().removesuffix("nothing;\n"))
    assert "nothing found" in done("kernels", "check", body, "--spec", spec).out


@pytest.mark.parametrize("start", ["kernel void", "[[kernel]] void", "kernel\nvoid", '[[host_name("f")]] kernel void'])
def test_a_complete_kernel_is_refused(tmp_path: Path, start: str) -> None:
    text = f"using namespace metal;\n{start} whole(device float* y [[buffer(0)]]) {{ y[0] = 1; }}\n"
    body, spec = written(tmp_path, SPEC, text)
    said = refusal("kernels", "check", body, "--spec", spec)
    assert "own.metal:2: whole is a complete kernel; the file has to be the bare body" in said


def test_a_spec_for_a_kernel_of_tq_is_refused(tmp_path: Path) -> None:
    _, spec = written(tmp_path, SPEC)
    said = refusal("kernels", "check", "bit_pack", "--spec", spec)
    assert said == "--spec is for a kernel of your own, and bit_pack is tq's: leave it out, or name your .metal file"


def test_normal_booleans_are_of_both_kinds(tmp_path: Path) -> None:
    spec = {**SPEC, "inputs": {"x": {"dtype": "bool", "shape": [64]}}}
    assert 10 < np.array(user_kernel(*written(tmp_path, spec)).launch.inputs[0]).sum() < 54
