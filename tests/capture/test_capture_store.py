from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import write_tiny_model

from tqcli.capture.run import capture
from tqcli.capture.store import Capture, open_capture
from tqcli.datasets import Document, Text
from tqcli.errors import InputError
from tqcli.models import LoadedModel, load
from tqcli.storage import sha256_file, write_shard

# isort: split
import mlx.core as mx

BOOK = Text("book.txt", (Document("book", "It was the best of times, it was the worst of times. " * 200),))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(str(write_tiny_model(tmp_path_factory.mktemp("llama") / "model")))


@pytest.fixture
def folder(llama: LoadedModel, tmp_path: Path) -> Path:
    capture(llama, BOOK, tmp_path / "capture", windows=3, tokens=32, queries=5)
    return tmp_path / "capture"


def rewritten(folder: Path, window: int, changes: dict[str, mx.array | None]) -> Capture:
    """The capture with arrays of one shard replaced (None: left out) and its hash in the manifest put right."""
    opened = open_capture(folder)
    shard = opened.manifest.shards[window]
    arrays = dict(mx.load(str(folder / shard.file)))  # type: ignore[arg-type]
    arrays = {name: mx.array(x) for name, x in (arrays | changes).items() if x is not None}
    mx.eval(arrays)
    record = write_shard(folder, shard.file, arrays, {})
    shards = list(opened.manifest.shards)
    shards[window] = shard.model_copy(update={"bytes": record.bytes, "sha256": record.sha256})
    return replace(opened, manifest=opened.manifest.model_copy(update={"shards": shards}))


def test_a_shard_is_verified_once_when_it_is_first_read(folder: Path) -> None:
    opened = open_capture(folder)
    assert len(list(opened.windows())) == 3
    path = folder / opened.manifest.shards[1].file
    hashed = sha256_file(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert sha256_file(path) != hashed
    assert len(list(opened.windows())) == 3
    with pytest.raises(InputError, match=r"window-00001\.safetensors doesn't match its sha256"):
        list(open_capture(folder).windows())
    assert len(list(open_capture(folder, check=False).windows())) == 3


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("query_positions", None, "lacks query_positions"),
        ("layers.1.queries", None, r"lacks layers\.1\.queries"),
        ("layers.0.keys", mx.zeros((2, 31, 16)), r"layers\.0\.keys is float32 \(2, 31, 16\)"),
        ("layers.0.values", mx.zeros((2, 32, 16), dtype=mx.float16), r"layers\.0\.values is float16"),
    ],
)
def test_a_shard_that_is_not_as_the_manifest_says(
    folder: Path, name: str, change: mx.array | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        list(rewritten(folder, 2, {name: change}).windows())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_the_place_of_a_value_that_is_not_finite_is_named(folder: Path, value: float) -> None:
    x = mx.zeros((2, 32, 16))
    x[1, 17, 3] = value
    *_, window = rewritten(folder, 2, {"layers.1.values": x}).windows()
    assert window.keys(1).shape == (2, 32, 16)
    with pytest.raises(InputError, match=r"window 2.* values of layer 1, head 1, token 17"):
        window.values(1)


def test_the_largest_finite_values_are_no_fault(folder: Path) -> None:
    x = mx.full((2, 32, 16), 3.4e38)
    window = next(rewritten(folder, 0, {"layers.0.keys": x}).windows())
    assert mx.array_equal(window.keys(0), x).item()


def test_memory_is_one_windows_however_many_there_are(llama: LoadedModel, tmp_path: Path) -> None:
    def peak(windows: int, again: int) -> int:
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        out = tmp_path / f"{windows}-{again}"
        capture(llama, BOOK, out, windows=windows, tokens=256, queries=5)
        for window in open_capture(out).windows():
            for layer in (0, 1):
                mx.eval(window.keys(layer), window.values(layer), window.queries(layer))
        return int(mx.get_peak_memory() - before)

    # A window's peak varies with when the buffers of the one before are freed, so twelve of each are compared.
    few, many = max(peak(2, again) for again in range(6)), peak(12, 0)
    assert many < 1.1 * few
