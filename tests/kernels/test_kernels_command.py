"""`tq kernels list` and `tq kernels source`."""

from __future__ import annotations

import json

import pytest

from tqcli.cli.app import run
from tqcli.kernels.runtime import set_backend
from tqcli.kernels.runtime.registry import cases, kernels, operations
from tqcli.kernels.runtime.text import cuda_text, metal_text


@pytest.fixture(autouse=True)
def no_back_end_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TQ_BACKEND", raising=False)
    set_backend(None)


def test_list_names_every_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["operation", "kernel", "files", "template", "cases", "back-ends"]
    assert [line.split()[1] for line in lines[1:-1]] == list(kernels())
    assert lines[-1].startswith("Used here: ")
    assert all(len(line) <= 160 for line in lines)


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["kernel"]: row for row in document["kernels"]}
    assert {row["operation"] for row in rows.values()} == set(operations())
    pack = rows["bit_pack"]
    assert pack["files"] == ["bit_pack/bit_pack.metal", "include/bits.h"]
    assert pack["template"] == ["BITS"]
    assert pack["cases"] == sum(case.launch.kernel.name == "bit_pack" for case in cases("bit_pack"))
    assert document["backend"] in ("metal", "cuda", "mlx")


@pytest.mark.parametrize("backend", ["metal", "cuda"])
def test_source_prints_the_text_of_a_case_and_nothing_else_on_stdout(
    capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    launch = [case.launch for case in cases("bit_pack") if case.launch.kernel.name == "bit_pack"][2]
    assert run(["kernels", "source", "bit_pack", "--backend", backend, "--case", "2"]) == 0
    out, err = capsys.readouterr()
    assert out == (metal_text if backend == "metal" else cuda_text)(launch)
    assert err.startswith("tq: bit_pack, case 2 of 0 to ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bit_pak"], "no kernel is called 'bit_pak'; did you mean bit_pack?"),
        (["qjl"], "no kernel is called 'qjl'; did you mean qjl_encode or qjl_scores?"),
        (["%%%"], "there are attend"),
        (["bit_pack", "--case", "999"], "--case goes from 0 to"),
        (["bit_pack", "--backend", "mlx"], "'mlx' is not one of 'metal', 'cuda'"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(["kernels", "source", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message in err


def test_a_back_end_named_by_the_environment_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TQ_BACKEND", "opencl")
    assert run(["kernels", "list"]) == 2
    assert "TQ_BACKEND is opencl: there is no such back-end" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["list"], ["source", "attend"], ["check", "bit_pack"]])
def test_what_needs_no_device_works_where_the_one_that_is_named_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr("tqcli.kernels.runtime.backend.available", lambda: ("mlx",))
    monkeypatch.setenv("TQ_BACKEND", "metal")
    assert run(["kernels", *command]) == 0
    out = capsys.readouterr().out
    if command == ["list"]:
        assert "Used here: none (TQ_BACKEND is metal: MLX finds no such device; this machine has mlx, auto)" in out
