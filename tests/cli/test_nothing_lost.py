"""A command that fails, or is pointed at the wrong place, leaves what was there."""

from pathlib import Path

import pytest
from small_captures import write_capture

from tqcli.cli.app import run
from tqcli.codecs.spec import parse_codec
from tqcli.compression.manifest import load_encoded_manifest


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return write_capture(tmp_path / "capture")


def compress(capture: Path, out: Path, *more: str) -> int:
    return run(["compress", str(capture), "--out", str(out), *more])


def test_a_detour_to_the_capture_itself_is_refused(capture: Path) -> None:
    before = contents(capture)
    assert compress(capture, capture / "no" / ".." / ".." / capture.name, "--bits", "4") == 2
    assert contents(capture) == before


@pytest.mark.parametrize(
    "more", [("--bits", "4", "--sinks", "1000"), ("--algo", "affine@4,group=128"), ("--bits", "9")]
)
def test_a_failed_overwrite_keeps_the_old_folder(capture: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    assert compress(capture, out, "--bits", "3") == 0
    before = contents(out)
    assert compress(capture, out, "--overwrite", *more) == 2
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["capture", "out"]


def test_a_damaged_source_keeps_the_old_result(capture: Path, tmp_path: Path) -> None:
    encoded, decoded = tmp_path / "encoded", tmp_path / "decoded"
    assert compress(capture, encoded, "--bits", "3") == 0
    assert run(["decompress", str(encoded), "--out", str(decoded)]) == 0
    before = contents(decoded)
    shard = encoded / "window-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert run(["decompress", str(encoded), "--out", str(decoded), "--overwrite"]) == 2
    assert contents(decoded) == before


def test_files_of_the_same_names_are_not_taken_for_ours(capture: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "window-00000.safetensors").write_text("photographs")
    for more in ((), ("--overwrite",)):
        assert compress(capture, out, "--bits", "3", *more) == 2
    assert contents(out) == {"window-00000.safetensors": b"photographs"}


def test_options_of_the_values_are_kept_where_their_bits_change(capture: Path, tmp_path: Path) -> None:
    algo = "turboquant-mse@4,center=mean,scale=unbiased"
    assert compress(capture, tmp_path / "out", "--algo", algo, "--value-bits", "2") == 0
    expected = parse_codec("turboquant-mse@4/2,center=mean,scale=unbiased")
    layer = load_encoded_manifest(tmp_path / "out").layers[0]
    assert "scale=unbiased" in layer.keys and "center=mean" in layer.keys
    assert "@2,scale=unbiased" in layer.values and "center=mean" in layer.values
    assert load_encoded_manifest(tmp_path / "out").codec == str(expected)


@pytest.mark.parametrize(
    "more",
    [
        ("--algo", "turboquant-mse@4 | affine@4", "--value-bits", "2"),
        ("--algo", "turboquant-mse@4", "--value-algo", "affine@4", "--value-bits", "2"),
        ("--algo", "fp16", "--value-bits", "2"),
    ],
)
def test_bits_that_contradict_are_refused(
    capture: Path, tmp_path: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compress(capture, tmp_path / "out", *more) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "2" in line
    assert "None" not in line


def test_a_name_that_the_system_refuses_is_one_line(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "x" * 300]) == 2
    assert compress(capture, capture.parent / ("y" * 300), "--bits", "4") == 2
    assert [line[:4] for line in capsys.readouterr().err.splitlines()] == ["tq: ", "tq: "]
