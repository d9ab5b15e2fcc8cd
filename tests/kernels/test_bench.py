"""`tq kernels bench`: what is timed and what is told of it. How long it takes is not tested."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import mlx.core as mx
import pytest

from tqcli.cli.app import run
from tqcli.kernels.bench.measure import COPY, KERNEL, OPERATIONS, PLAIN, Measured, Timed, crossover
from tqcli.kernels.bench.plot import plot
from tqcli.kernels.bench.timing import Contender, race
from tqcli.kernels.runtime import reset_used, set_backend, used
from tqcli.kernels.runtime.case import to_numpy
from tqcli.kernels.runtime.kernel import launch_bytes


@pytest.fixture(autouse=True)
def plain_operations() -> None:
    set_backend(None)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_workload_launches_what_it_calls(operation: str) -> None:
    reset_used()
    work = OPERATIONS[operation](1024, "mlx")
    reset_used()
    mx.eval(work.call(*work.inputs[0], backend="mlx"))
    assert operation in {use.operation for use in used()}
    launches = work.launches(*work.inputs[0])
    for launch in launches:
        launch.check()
    assert sum(map(launch_bytes, launches)) >= sum(array.nbytes for array in work.inputs[0])
    assert work.in_numpy is not None
    work.in_numpy(*(to_numpy(x.astype(mx.float32) if x.dtype == mx.float16 else x) for x in work.inputs[0]))
    for builtin in work.builtins.values():
        mx.eval(builtin.call(*builtin.inputs[0]))


@pytest.mark.parametrize("operation", ["bit_pack", "bit_unpack", "scalar_quantise", "vector_scores", "attend"])
def test_numpy_does_the_same_work(operation: str) -> None:
    import numpy as np

    work = OPERATIONS[operation](2048, "mlx")
    arrays = work.inputs[0]
    expected = to_numpy(work.call(*arrays, backend="mlx"))
    if work.plain is not None:
        np.testing.assert_allclose(to_numpy(work.plain(*arrays)), expected, rtol=1e-4, atol=1e-4)
    assert work.in_numpy is not None
    got = work.in_numpy(*(to_numpy(x.astype(mx.float32) if x.dtype == mx.float16 else x) for x in arrays))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_bytes_of_a_launch_are_those_of_its_inputs_and_outputs() -> None:
    codes = mx.zeros((7, 128), dtype=mx.uint8)
    (launch,) = OPERATIONS["bit_pack"](1024, "mlx").launches(codes)
    sizes = launch.inputs[1].nbytes
    assert launch_bytes(launch) == 7 * 128 + sizes + 7 * 16 * 4


def test_what_fails_is_told_and_the_others_go_on() -> None:
    def fails(x: mx.array) -> mx.array:
        raise RuntimeError("no such\nkernel")

    x = [(mx.zeros(8),), (mx.ones(8),)]
    contenders = {"a": Contender(fails, x), "b": Contender(lambda x: x + 1, x)}
    race(contenders, rounds=5, budget=60)
    assert contenders["a"].error == "RuntimeError: no such kernel"
    assert contenders["b"].error is None
    assert len(contenders["b"].seconds) == 5


def _measured(*medians: tuple[int, float, float]) -> list[Measured]:
    """Size, microseconds of the kernel and of plain operations."""

    def timed(name: str, time: float) -> Timed:
        return Timed(name, (time, time, 2 * time), 1.0, 0.5, None)

    return [Measured("x", n, n, n, [timed(KERNEL, ours), timed(PLAIN, plain)]) for n, ours, plain in medians]


def test_the_crossover_is_where_the_kernel_gets_faster_for_good() -> None:
    assert crossover(_measured((1024, 1, 2), (4096, 1, 3))) == 0
    assert crossover(_measured((1024, 2, 1), (4096, 3, 2))) is None
    assert crossover(_measured((1024, 2, 1), (4096, 1, 2))) == 2048
    assert crossover(_measured((1024, 1, 9), (4096, 4, 1), (16384, 1, 4))) == 8192
    assert crossover([]) is None


def test_a_figure_has_a_line_for_each_implementation(tmp_path: Path) -> None:
    failed = Timed("<odd & failed>", None, None, None, "no")
    measured = [replace(of, timed=[*of.timed, failed]) for of in _measured((1024, 2, 1), (4096, 1, 2))]
    written = plot(measured, "x < y", tmp_path / "figures")
    assert written[0] == tmp_path / "figures" / "x.svg"
    text = "".join(ElementTree.fromstring(written[0].read_text(encoding="utf-8")).itertext())
    assert KERNEL in text and PLAIN in text and "x < y" in text and "odd" not in text
    assert plot([replace(of, timed=[failed]) for of in measured], "x", tmp_path) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tqcli.kernels.bench.measure.sizes", lambda backend, quick: [1024])
    out = tmp_path / "new" / "bench.json"
    assert run(["kernels", "bench", "scalar_dequantise", "--quick", "--out", str(out), "--plot", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "scalar_dequantise" in printed and PLAIN in printed and COPY in printed
    document = json.loads(out.read_text(encoding="utf-8"))
    (operation,) = document["operations"]
    assert operation["operation"] == "scalar_dequantise"
    assert [of["elements"] for of in operation["sizes"]] == [1024]
    names = [timed["implementation"] for timed in operation["sizes"][0]["timed"]]
    assert (KERNEL in names) == (document["backend"] != "mlx")
    assert (tmp_path / "scalar_dequantise.svg").is_file()
    assert ("not timed" in printed) == (document["backend"] == "mlx")


def test_an_operation_that_is_not_timed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "bench", "qjl_score"]) == 2
    assert "no operation or kernel called 'qjl_score' is timed; there is qjl_scores" in capsys.readouterr().err


def test_an_operation_stands_for_its_kernels_that_are_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tqcli.kernels.bench.measure.sizes", lambda backend, quick: [])
    timed = {}
    for name in ("bit_pack", "qjl", "qjl_scores"):
        assert run(["kernels", "bench", name, "--json"]) == 0
        timed[name] = [of["operation"] for of in json.loads(capsys.readouterr().out)["operations"]]
    assert timed == {
        "bit_pack": ["bit_pack", "bit_unpack"],
        "qjl": ["qjl_encode", "qjl_scores"],
        "qjl_scores": ["qjl_scores"],
    }


@pytest.mark.parametrize(
    ("option", "place", "words"),
    [
        ("--out", "file/bench.json", "choose another with --out"),
        ("--out", "", "is a folder; name a file with --out"),
        ("--plot", "file", "choose another with --plot"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_timed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    place: str,
    words: str,
) -> None:
    def fails(*arguments: object) -> None:
        raise AssertionError("something was timed")

    monkeypatch.setattr("tqcli.kernels.bench.measure.measure", fails)
    (tmp_path / "file").write_text("kept")
    assert run(["kernels", "bench", "qjl", option, str(tmp_path / place)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1 and words in err
    assert (tmp_path / "file").read_text() == "kept"
