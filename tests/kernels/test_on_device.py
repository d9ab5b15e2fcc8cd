"""`tq kernels check --on-device`, with the references in the place of a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from tqcli.cli.app import run
from tqcli.kernels.checker import device
from tqcli.kernels.checker.device_worker import in_processes
from tqcli.kernels.checker.operations import cases_of
from tqcli.kernels.runtime.backend import available
from tqcli.kernels.runtime.case import Case
from tqcli.kernels.runtime.kernel import Launch

Answer = Callable[[Launch, list[mx.array]], list[mx.array]]


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Those of bit packing, which a device of ours answers; `Device.answer` may be wrong."""
    found = cases_of("bit_pack")
    monkeypatch.setattr("tqcli.kernels.checker.operations.cases_of", lambda name: found)
    monkeypatch.setattr("tqcli.kernels.runtime.backend.preferred", lambda: ("metal", "a test says so"))
    monkeypatch.setattr(device, "device_facts", lambda backend: [("back-end", backend), ("device name", "Test (1)")])
    return found


def answer(monkeypatch: pytest.MonkeyPatch, cases: list[Case], by: Answer = lambda launch, outputs: outputs) -> None:
    expected = {id(case.launch): case for case in cases}
    monkeypatch.setattr(device, "run", lambda launch, backend: by(launch, list(expected[id(launch)].expected())))


def test_all_agree(
    cases: list[Case], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, cases)
    monkeypatch.chdir(tmp_path)
    assert run(["kernels", "check", "--on-device", "--jobs", "1"]) == 0
    out, err = capsys.readouterr()
    assert out == (tmp_path / "tq-kernels-Test-1.txt").read_text(encoding="utf-8")
    assert f"{len(cases)} of {len(cases)} cases agree" in out
    row = next(line.split() for line in out.splitlines() if "bit_unpack" in line)
    half = str(len(cases) // 2)
    assert row[:5] == ["bit_pack", "bit_unpack", half, half, "0"]
    assert "What differs" not in out
    assert f"{len(cases)} of {len(cases)} cases" in err


def test_what_differs_or_fails_is_told_in_full(
    cases: list[Case], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(launch: Launch, outputs: list[mx.array]) -> list[mx.array]:
        if launch is cases[0].launch:
            return [outputs[0] + 1]
        if launch is cases[3].launch:
            raise RuntimeError("line 3: no such function\nline 9: nor that")
        return outputs

    answer(monkeypatch, cases, wrong)
    assert run(["kernels", "check", "--on-device", "--out", str(tmp_path / "a" / "b.txt"), "--jobs", "1"]) == 1
    text = (tmp_path / "a" / "b.txt").read_text(encoding="utf-8")
    assert f"{len(cases) - 2} of {len(cases)} cases agree" in text
    assert "bit_pack (1 bit, [3, 33]; BITS=1): differs\n    6 of 6 elements differ, first at [0, 0]" in text
    assert "failed\n    RuntimeError: line 3: no such function\n    line 9: nor that\n" in text
    assert "tq: bit_pack (1 bit" in capsys.readouterr().err


def test_processes_share_all_cases_and_a_device_that_is_not_there_is_told() -> None:
    cases = cases_of("scalar_quant")
    missing = next(name for name in ("metal", "cuda") if name not in available())
    found = list(in_processes(cases, "scalar_quant", missing, jobs=2))
    assert sorted(of.case for of in found) == list(range(len(cases)))
    assert all(of.error and not of.agrees for of in found)


def test_cases_that_one_kernel_serves_share_a_process() -> None:
    cases = cases_of("attend")
    dealt = device.shares(cases, 3)
    assert sorted(number for share in dealt for number in share) == list(range(len(cases)))
    reduced = [[n for n in share if cases[n].launch.template == {"D": 80, "SINKS": True}] for share in dealt]
    assert sum(bool(numbers) for numbers in reduced) == 1


def test_without_a_gpu_it_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tqcli.kernels.runtime.backend.preferred", lambda: ("mlx", "MLX finds no GPU"))
    assert run(["kernels", "check", "--on-device"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "tq: there is no kernel to run here: MLX finds no GPU; without --on-device they are checked on the CPU"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--on-device", "--mutate"], "--on-device doesn't go with --mutate"),
        (["--out", "x.txt"], "--out goes with --on-device"),
        (["--jobs", "2"], "--jobs goes with --on-device"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kernels", "check", *arguments]) == 2
    assert message in capsys.readouterr().err
