"""Each input here ends in exit code 2 and one clear line that names the value."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from running import PROSE, arrays_of, capture_arguments, done, edit_manifest, make_capture, refusal, workplace

from tqcli.storage import MANIFEST, sha256_file

# isort: split
import mlx.core as mx
import numpy as np

USES = (["eval", "distortion"], ["eval", "memory"], ["compress"], ["inspect"])
READ_ALL = (["eval", "distortion"], ["compress"])
"""Those that read every window; `eval memory` needs one."""
CODEC = ("--algo", "affine", "--bits", "4")


def refusals(folder: Path) -> list[str]:
    """The line of every command that reads a capture."""
    return [refusal(*use, folder, *(() if use == ["inspect"] else CODEC), folder=folder.parent) for use in USES]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return make_capture(tmp_path / "capture")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit(capture: Path) -> None:
    flip(capture / "window-00000.safetensors")
    for line in refusals(capture):
        assert "window-00000.safetensors" in line and "sha256" in line


def test_a_flipped_bit_in_the_last_window(capture: Path) -> None:
    flip(capture / "window-00002.safetensors")
    for use in READ_ALL:
        assert "window-00002.safetensors" in refusal(*use, capture, *CODEC, folder=capture.parent)
    assert "window-00002.safetensors" in refusal("inspect", capture)


@pytest.mark.parametrize("size", [0, 5, 1000])
def test_a_truncated_shard(capture: Path, size: int) -> None:
    shard = capture / "window-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:size])
    for line in refusals(capture):
        assert "window-00000.safetensors" in line and f"{size} bytes" in line and "truncated" in line


def test_a_missing_shard(capture: Path) -> None:
    (capture / "window-00000.safetensors").unlink()
    for line in refusals(capture):
        assert "window-00000.safetensors is missing" in line


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"tq"', "{}", "\x00\x01", '{"format": "other"}'])
def test_a_manifest_that_is_none(capture: Path, text: str) -> None:
    (capture / MANIFEST).write_text(text)
    for line in refusals(capture):
        assert MANIFEST in line or str(capture) in line


def test_a_manifest_that_is_not_text(capture: Path) -> None:
    (capture / MANIFEST).write_bytes(b"\xff\xfe\x00")
    for line in refusals(capture):
        assert MANIFEST in line


@pytest.mark.parametrize("field", ["model", "dataset", "layers", "shards", "queries", "backend"])
def test_a_manifest_without_a_field(capture: Path, field: str) -> None:
    edit_manifest(capture, **{field: None})
    for line in refusals(capture):
        assert MANIFEST in line and field in line


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"version": 99}, "99"),
        ({"queries": "many"}, "queries"),
        ({"shards": {}}, "shards"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_manifest_with_a_wrong_field(capture: Path, changes: dict[str, Any], named: str) -> None:
    edit_manifest(capture, **changes)
    for line in refusals(capture):
        assert MANIFEST in line and named in line


def test_a_folder_of_another_kind(capture: Path, tmp_path: Path) -> None:
    encoded = tmp_path / "encoded"
    done("compress", capture, *CODEC, "--out", encoded)
    for use in (["eval", "distortion"], ["eval", "memory"], ["compress"]):
        line = refusal(*use, encoded, *CODEC)
        assert str(encoded) in line and "not a capture" in line
    line = refusal("decompress", capture, "--out", tmp_path / "decoded")
    assert str(capture) in line and "not an encoded folder" in line
    for line in refusals(workplace() / "model"):
        assert "model" in line and MANIFEST in line


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    for line in refusals(tmp_path / "nowhere"):
        assert "nowhere is not a folder" in line
    assert "nowhere" in refusal("decompress", tmp_path / "nowhere", "--out", tmp_path / "decoded")


def test_no_capture_at_all(tmp_path: Path) -> None:
    for use in USES[:3]:
        assert "tq capture" in refusal(*use, *CODEC, folder=tmp_path)


def test_a_damaged_encoded_folder(capture: Path, tmp_path: Path) -> None:
    encoded = tmp_path / "encoded"
    done("compress", capture, "--bits", 4, "--out", encoded)
    flip(encoded / "window-00001.safetensors")
    assert "window-00001.safetensors" in refusal("decompress", encoded, "--out", tmp_path / "decoded")
    assert "window-00001.safetensors" in refusal("inspect", encoded)
    edit_manifest(encoded, layers=None)
    assert "layers" in refusal("decompress", encoded, "--out", tmp_path / "decoded")
    assert "layers" in refusal("inspect", encoded)


def rewrite(folder: Path, window: int, change: dict[str, Any]) -> None:
    """Changes arrays of a shard, and the manifest with it, so that only the numbers are wrong. None removes one."""
    path = folder / f"window-{window:05d}.safetensors"
    arrays = {name: mx.array(np.array(array)) for name, array in arrays_of(path).items()}
    for name, edit in change.items():
        array = arrays.pop(name)
        if edit is not None:
            arrays[name] = edit(array)
    mx.save_safetensors(str(path), arrays, {"format": "tq-capture"})
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["shards"][window] |= {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("tensor", ["keys", "values"])
def test_nan_or_inf_is_named_by_layer_head_and_token(capture: Path, tensor: str, value: float) -> None:
    def spoil(x: mx.array) -> mx.array:
        x[0, 17, 5] = value
        return x

    rewrite(capture, 1, {f"layers.1.{tensor}": spoil})
    for use in READ_ALL:
        line = refusal(*use, capture, *CODEC, folder=capture.parent)
        assert f"the {tensor} of layer 1, head 0, token 17" in line
        assert "window-00001.safetensors" in line and "NaN or inf" in line


def test_a_shard_without_a_tensor_or_with_another_shape(capture: Path) -> None:
    rewrite(capture, 0, {"layers.1.values": None})
    assert "lacks layers.1.values" in refusal("eval", "distortion", capture, *CODEC)
    rewrite(capture, 0, {"layers.0.keys": lambda x: x[:, :-1]})
    line = refusal("eval", "distortion", capture, *CODEC)
    assert "layers.0.keys" in line and "(1, 95, 64)" in line and "(1, 96, 64)" in line


def test_a_shard_that_is_no_safetensors_file(capture: Path) -> None:
    path = capture / "window-00000.safetensors"
    for content in (b"not safetensors at all", struct.pack("<Q", 10**9) + b"{}"):
        path.write_bytes(content)
        manifest = json.loads((capture / MANIFEST).read_text())
        manifest["shards"][0] |= {"bytes": len(content), "sha256": sha256_file(path)}
        (capture / MANIFEST).write_text(json.dumps(manifest))
        for use in USES[:3]:
            assert "window-00000.safetensors" in refusal(*use, capture, *CODEC, folder=capture.parent)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "no text"),
        (b" \n\t\r\n ", "no text"),
        (b"It was the best of times.", "shorter than a window of 96 tokens"),
        (b"caf\xe9 " * 200, "not UTF-8"),
    ],
)
def test_a_text_that_can_not_be_used(tmp_path: Path, content: bytes, named: str) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(content)
    line = refusal(*capture_arguments(tmp_path / "out", "--dataset", text))
    assert str(text) in line and named in line
    assert not (tmp_path / "out").exists()


def test_a_text_that_is_not_there(tmp_path: Path) -> None:
    line = refusal(*capture_arguments(tmp_path / "out", "--dataset", tmp_path / "nothing.txt"))
    assert f"{tmp_path / 'nothing.txt'} doesn't exist" in line
    assert "is a folder" in refusal(*capture_arguments(tmp_path / "out", "--dataset", tmp_path))
    assert "'moby'" in refusal(*capture_arguments(tmp_path / "out", "--dataset", "moby"))


def test_more_windows_than_there_are(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(PROSE * 6)
    line = refusal(*capture_arguments(tmp_path / "out", "--dataset", text, windows=500))
    assert "windows of 96 tokens, not 500" in line and "--windows" in line


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--windows", "0", "--windows must be 1 or more, not 0"),
        ("--windows", "-3", "-3"),
        ("--tokens", "0", "--tokens must be"),
        ("--tokens", "many", "--tokens"),
        ("--queries", "0", "--queries must be 1 or more, not 0"),
        ("--seed", "-1", "--seed must be 0 or more, not -1"),
        ("--dtype", "float8", "float8"),
        ("--layers", "2", "--layers names layer 2; the model has layers 0 to 1"),
        ("--layers", "0-7", "layers 0 to 1"),
        ("--layers", "a", "'a'"),
        ("--layers", "1-", "'1-'"),
        ("--layers", "1-0", "'1-0'"),
        ("--layers", "-1", "-1"),
        ("--layers", "0,,1", "''"),
        ("--layers", "", "''"),
        ("--layers", "²", "'²'"),
        ("--layers", "0-99999999999999", "'0-99999999999999'"),
        ("--colour", "red", "--colour"),
    ],
)
def test_an_option_out_of_range(tmp_path: Path, option: str, value: str, named: str) -> None:
    assert named in refusal(*capture_arguments(tmp_path / "out", option, value))
    assert not (tmp_path / "out").exists()


def test_an_unknown_model_is_answered_with_the_nearest(tmp_path: Path) -> None:
    line = refusal("capture", "smolm2-135m", "--out", tmp_path / "out")
    assert "'smolm2-135m'" in line and "smollm2-135m" in line
    assert "model/x" in refusal("capture", "./model/x", "--out", tmp_path / "out")


def test_a_model_whose_download_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    line = refusal("capture", "no-such-org/no-such-model", "--out", tmp_path / "out")
    assert "no-such-org/no-such-model" in line
    assert not (tmp_path / "out").exists()


def test_a_model_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert "config.json" in refusal("capture", tmp_path / "model", "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("codec", "named"),
    [
        ("turboquant", "turboquant-mse"),
        ("afine@4", "affine"),
        ("turboquant-mse@9", "9"),
        ("turboquant-mse@0", "0"),
        ("turboquant-mse@-1", "-1"),
        ("affine@1", "1"),
        ("affine@7", "7"),
        ("turboquant-mse@x", "'x'"),
        ("turboquant-mse@4/2/1", "4/2/1"),
        ("turboquant-mse", "number of bits"),
        ("identity@4", "identity"),
        ("turboquant-mse@4,centre=rope", "center"),
        ("turboquant-mse@4,center=median", "median"),
        ("turboquant-mse@4,rotation=spin", "spin"),
        ("turboquant-mse@4,seed=first", "first"),
        ("turboquant-mse@4,seed", "'seed'"),
        ("affine@4,group=48", "48"),
        ("", "''"),
        ("@4", "''"),
    ],
)
def test_a_codec_that_is_none(capture: Path, codec: str, named: str) -> None:
    line = refusal("eval", "distortion", capture, "--codec", codec)
    assert named in line
    if codec != "turboquant-mse":  # there compress has a default number of bits
        assert named in refusal("compress", capture, "--algo", codec, folder=capture.parent)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--bits", "4"], "--bits goes with --algo"),
        (["--option", "seed=1"], "--option goes with --algo"),
        (["--algo", "affine@4", "--bits", "4"], "affine@4"),
        (["--codec", "affine@4", "--codec", "affine@4"], "twice"),
        (["--codec", "affine@4", "--sinks", "-1"], "--sinks must be 0 or more, not -1"),
        (["--codec", "affine@4", "--recent", "-2"], "--recent must be 0 or more, not -2"),
    ],
)
def test_options_that_do_not_go_together(capture: Path, arguments: list[str], named: str) -> None:
    for command in ("distortion", "memory"):
        assert named in refusal("eval", command, capture, *arguments)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x", "'x'"),
        ("0", "'0'"),
        ("7:4", "layer 7"),
        ("0:4,0:2", "layer 0 twice"),
        ("0:99", "99"),
        ("0:4/2/1", "0:4/2/1"),
    ],
)
def test_layer_bits_that_can_not_be_used(capture: Path, text: str, named: str) -> None:
    assert named in refusal("compress", capture, "--bits", 4, "--layer-bits", text, folder=capture.parent)
    assert not (capture.parent / "encoded").exists()


def test_a_run_that_would_compress_nothing(capture: Path) -> None:
    line = refusal("compress", capture, *CODEC, "--sinks", 4000, folder=capture.parent)
    assert "compressed nothing" in line


def test_an_encoded_folder_is_not_replaced_without_being_asked(capture: Path, tmp_path: Path) -> None:
    encoded = tmp_path / "encoded"
    done("compress", capture, *CODEC, "--out", encoded)
    assert "--overwrite" in refusal("compress", capture, *CODEC, "--out", encoded)
    done("compress", capture, *CODEC, "--out", encoded, "--overwrite")
    (encoded / MANIFEST).rename(tmp_path / MANIFEST)
    # No run leaves shards without a manifest, so these may be somebody's own.
    assert "window-00000.safetensors" in refusal("compress", capture, *CODEC, "--out", encoded, "--overwrite")
    (tmp_path / MANIFEST).rename(encoded / MANIFEST)
    assert f"{capture} holds something else" in refusal("compress", capture, *CODEC, "--out", capture, "--overwrite")
    (encoded / "thesis.txt").write_text("mine")
    assert "thesis.txt" in refusal("compress", capture, *CODEC, "--out", encoded, "--overwrite")


def test_what_can_not_be_written_to(capture: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("x")
    encoded = tmp_path / "encoded"
    done("compress", capture, *CODEC, "--out", encoded)
    for out in (taken, taken / "under"):
        assert str(out) in refusal("compress", capture, *CODEC, "--out", out)
        assert str(out) in refusal("decompress", encoded, "--out", out)
    (encoded / MANIFEST).write_text("{")
    assert MANIFEST in refusal("compress", capture, *CODEC, "--out", encoded, "--overwrite")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--algo", "turboquant-mse@3 | affine@4", "--seed", 7], "names two codecs; write bits and options inside it"),
        (["--algo", "qjl@1 | affine@4", "--value-algo", "affine@8"], "names the values' codec already; leave out"),
        (["--algo", "qjl@1/3", "--value-bits", 2], "names the values' codec already; leave out --value-bits 2"),
        (["--algo", "turboquant-mse@4", "--value-algo", "affine@8/4"], "names bits for keys and values"),
        (["--algo", "turboquant-mse@4", "--value-algo", "qjl@2"], "qjl codes keys, not values"),
        (["--algo", "turboquant-mse@8,outliers=8"], "which turboquant-mse hasn't; give it fewer bits"),
        (["--algo", "vecinfer", "--bits", 1], "vecinfer learns from another text"),
        (["--algo", "qjl", "--bits", 1, "--option", "outliers=8"], "for example qjl@2"),
    ],
)
def test_codecs_that_do_not_go_together(capture: Path, tmp_path: Path, arguments: list[object], says: str) -> None:
    assert says in refusal("compress", capture, *arguments, "--out", tmp_path / "e")
    assert not (tmp_path / "e").exists()


def test_options_inside_and_beside_a_codec_are_joined(capture: Path, tmp_path: Path) -> None:
    arguments = ["--algo", "turboquant-mse,center=mean", "--bits", 3, "--value-algo", "fp16"]
    done("compress", capture, *arguments, "--out", tmp_path / "e")
    assert "turboquant-mse@3,center=mean | fp16" in (tmp_path / "e" / "manifest.json").read_text()


def test_qjl_at_one_bit_works_as_it_stands_and_says_what_values_take(capture: Path, tmp_path: Path) -> None:
    outcome = done("compress", capture, "--algo", "qjl", "--bits", 1, "--out", tmp_path / "e")
    assert "qjl codes keys alone; values take turboquant-mse@2" in outcome.out
    assert "turboquant-mse@2" in done("inspect", tmp_path / "e").out
