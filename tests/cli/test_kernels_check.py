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
from tqcli.kernels.checker.spec import user_launch

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
    shown = re.findall(r"\$ tq kernels check (\S+) --spec spec.yaml\n((?:[^$`].*\n)+)", PAGE.read_text())
    assert [body for body, _ in shown] == ["xor.metal", "range.metal", "xor-no-barrier.metal", "range-no-barrier.metal"]
    for body, output in shown:
        outcome = tq("kernels", "check", body, "--spec", "spec.yaml", folder=BUTTERFLY)
        assert outcome.out == output
        assert outcome.code == ("no-barrier" in body)


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
    launch = user_launch(*written(tmp_path, spec))
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
        arrays.append(np.array(user_launch(*written(tmp_path, spec)).inputs[0]))
    assert np.array_equal(arrays[0], arrays[1]) and not np.array_equal(arrays[0], arrays[2])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grd": [1, 1, 1]}, "grd: no such setting; there are inputs, outputs, grid"),
        ({"grid": [0, 1, 1]}, "grid.0: Input should be greater than or equal to 1"),
        ({"grid": [64]}, "grid: List should have at least 3 items"),
        ({"threadgroup": [64, 64, 1]}, "threadgroup: a threadgroup has at most 1024 threads, not 4096"),
        ({"outputs": {}}, "outputs: Dictionary should have at least 1 item"),
        ({"template": {"T": "float17"}}, "template: T: 'float17' is not a number, true, false or one of float32"),
        ({"inputs": {"x": {"dtype": "double", "shape": [1]}}}, "inputs.x.dtype: Input should be 'float32', 'float16'"),
        ({"inputs": {"x": {"dtype": "int8", "shape": [3], "values": [1]}}}, "1 values for shape [3], which has 3"),
        ({"inputs": {"x": {"dtype": "int8", "shape": [1], "sed": 1}}}, "inputs.x.sed: no such setting; there are dtyp"),
        ({"inputs": {"x": {"dtype": "int8", "shape": []}}}, "inputs.x.shape: List should have at least 1 item"),
        ({"inputs": {"x": {"dtype": "uint8", "shape": [1], "values": [300]}}}, "300 is not one of uint8's integers"),
        ({"inputs": {"x": {"dtype": "int32", "shape": [1], "values": [9.5]}}}, "9.5 is not one of int32's integers"),
        ({"inputs": {"x": {"dtype": "int32", "shape": [1], "values": [float("nan")]}}}, "nan is not one of int32's"),
        ({"inputs": {"x": {"dtype": "int8", "shape": [1], "seed": -1}}}, "inputs.x.seed: Input should be greater than"),
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
    assert "is not a mapping with inputs" in refusal("kernels", "check", body, "--spec", spec)
    body, spec = written(tmp_path, SPEC, BODY + "// \N{DEGREE SIGN}\n")
    assert "own.metal:3: Metal bodies have to be plain ASCII" in refusal("kernels", "check", body, "--spec", spec)
    assert "nothing.metal is not a file" in refusal("kernels", "check", tmp_path / "nothing.metal", "--spec", spec)
    assert "name --spec FILE too" in refusal("kernels", "check", body)
    body, spec = written(tmp_path, SPEC, BODY.replace("x[at]", "nothing[at]"))
    assert "own.metal:2: doesn't compile: " in refusal("kernels", "check", body, "--spec", spec)


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
