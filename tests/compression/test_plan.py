"""Which codec goes where: by tensor, by layer, by token, and what is said where that can't be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from small_captures import write_capture

from tqcli.capture.store import open_capture
from tqcli.codecs.spec import parse_codec
from tqcli.compression.decompress import decompress
from tqcli.compression.manifest import load_encoded_manifest
from tqcli.compression.plan import CompressionPlan, parse_layer_bits
from tqcli.compression.tensor import Segments
from tqcli.errors import InputError
from tqcli.evaluation.attention import evaluate_attention
from tqcli.evaluation.compress import compress
from tqcli.evaluation.distortion import evaluate_distortion
from tqcli.evaluation.memory import evaluate_memory
from tqcli.storage import MANIFEST, write_json, write_shard


def test_layers_with_other_bits_are_coded_with_them(tmp_path: Path) -> None:
    capture = open_capture(write_capture(tmp_path / "c", layers=3))
    plan = CompressionPlan(parse_codec("turboquant-mse@3/2"), parse_layer_bits("0:8,2:5/4"))
    result = compress(capture, plan, tmp_path / "e")
    bits = {(row.layer, row.tensor): row.metrics["bits_nominal"].value for row in result.codecs[0].layers}
    assert [bits[layer, "keys"] for layer in range(3)] == [8, 3, 5]
    assert [bits[layer, "values"] for layer in range(3)] == [8, 2, 4]
    manifest = load_encoded_manifest(tmp_path / "e")
    assert manifest.layers[2].keys.startswith("turboquant-mse@5,")
    assert manifest.layers[2].values.startswith("turboquant-mse@4,")


def test_more_bits_are_less_error_and_more_bytes(tmp_path: Path) -> None:
    capture = open_capture(write_capture(tmp_path / "c", shift=0.0))
    plans = [CompressionPlan(parse_codec(f"turboquant-mse@{bits}")) for bits in range(1, 9)]
    totals = [codec.total for codec in evaluate_distortion(capture, plans).codecs]
    errors = [t["relative_mse"].value or 0 for t in totals]
    sizes = [t["bytes_resident"].value or 0 for t in totals]
    assert errors == sorted(errors, reverse=True)
    assert sizes == sorted(sizes)
    for total in totals:
        theory = total["relative_mse_theory"].value
        assert total["relative_mse"].value == pytest.approx(theory, rel=0.05)


def test_a_head_dim_that_affine_can_not_group_is_skipped_with_the_reason(tmp_path: Path) -> None:
    capture = open_capture(write_capture(tmp_path / "c", head_dim=64, value_head_dim=80))
    result = compress(capture, CompressionPlan(parse_codec("affine@4")), tmp_path / "e").codecs[0]
    assert {(s.layer, s.tensor) for s in result.skipped} == {(0, "values"), (1, "values")}
    assert all("80" in s.reason and "64" in s.reason for s in result.skipped)
    assert {row.tensor for row in result.layers} == {"keys"}
    # What is skipped is kept in 16 bits, and counted.
    assert result.by_tensor["values"]["bits_effective"].value == pytest.approx(16, rel=0.01)


@pytest.mark.parametrize(
    ("codec", "sizes", "says"),
    [
        ("affine@4", {"head_dim": 80}, "head_dim 80 is not a multiple"),
        ("turboquant-mse@4", {"tokens": 40, "value_head_dim": 64}, None),
        ("turboquant-mse@4,center=mean", {"tokens": 40}, "leave no token to code"),
    ],
)
def test_a_run_that_compresses_nothing_fails(
    tmp_path: Path, codec: str, sizes: dict[str, int], says: str | None
) -> None:
    capture = open_capture(write_capture(tmp_path / "c", **sizes))  # type: ignore[arg-type]
    plan = CompressionPlan(parse_codec(codec))
    if says is None:
        assert evaluate_distortion(capture, [plan]).codecs[0].notes  # keys wait, values are coded, and it is said
        return
    with pytest.raises(InputError, match="compressed nothing") as caught:
        evaluate_distortion(capture, [plan])
    assert says in str(caught.value)


@pytest.mark.parametrize("tokens", [1, 7, 63, 65])
def test_odd_window_lengths(tmp_path: Path, tokens: int) -> None:
    capture = open_capture(write_capture(tmp_path / "c", tokens=tokens, head_dim=80))
    plan = CompressionPlan(parse_codec("turboquant-mse@3,center=none"), sinks=4 if tokens > 10 else 0)
    total = compress(capture, plan, tmp_path / "e").codecs[0].total
    assert 0 < (total["relative_mse"].value or 0) < 0.06


@pytest.mark.parametrize(
    ("tokens", "sinks", "recent", "expected"),
    [
        (0, 4, 32, (0, 0, 0)),
        (3, 4, 32, (3, 0, 0)),
        (30, 4, 32, (4, 0, 26)),
        (100, 4, 32, (4, 64, 32)),
        (5, 0, 0, (0, 5, 0)),
    ],
)
def test_segments(tokens: int, sinks: int, recent: int, expected: tuple[int, int, int]) -> None:
    assert Segments.split(tokens, sinks, recent) == Segments(*expected)


@pytest.mark.parametrize(
    ("text", "says"),
    [("0", "'0'"), ("0:x", "'0:x'"), ("a:4", "'a:4'"), ("0:4/3/2", "'0:4/3/2'"), ("0:4,0:3", "layer 0 twice")],
)
def test_layer_bits_that_can_not_be_read(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_layer_bits(text)
    assert says in str(caught.value)


def test_layer_bits_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    capture = open_capture(write_capture(tmp_path / "c"))
    for bits, says in (({7: (4, 4)}, "layer 7; there are layers 0 to 1"), ({0: (9, 9)}, "not 9")):
        with pytest.raises(InputError) as caught:
            compress(capture, CompressionPlan(parse_codec("turboquant-mse@4"), bits), tmp_path / "e")
        assert says in str(caught.value)
    with pytest.raises(InputError, match="identity, which has no choice of bits"):
        compress(capture, CompressionPlan(parse_codec("identity"), {0: (4, 4)}), tmp_path / "e")
    assert not (tmp_path / "e").exists()


def test_memory_counts_sinks_and_recent_tokens_at_the_models_dtype(tmp_path: Path) -> None:
    capture = open_capture(write_capture(tmp_path / "c", tokens=1024, windows=1))
    plan = CompressionPlan(parse_codec("turboquant-mse@4,center=none"), sinks=4, recent=32)
    total = evaluate_memory(capture, [plan]).codecs[0].total
    nominal, elements = total["bytes_nominal"].value, 2 * 2 * 2 * 1024 * 64
    assert nominal is not None
    codebook_and_signs = 4 * 16 + 64
    assert 8 * (nominal - codebook_and_signs) / elements == pytest.approx((36 * 16 + 988 * 4.25) / 1024)
    assert total["bytes_resident"].value == nominal
    projected = total["bytes_nominal_131072"].value
    assert projected is not None
    assert 8 * projected / (elements * 128) == pytest.approx(4.25, rel=0.01)


def test_the_first_stage_is_decoded_alone(tmp_path: Path) -> None:
    capture = open_capture(write_capture(tmp_path / "c"))
    compress(capture, CompressionPlan(parse_codec("turboquant-rvq@4,scale=plain | turboquant-mse@4")), tmp_path / "rvq")
    compress(capture, CompressionPlan(parse_codec("turboquant-mse@2 | turboquant-mse@4")), tmp_path / "mse")
    manifest = decompress(tmp_path / "rvq", tmp_path / "coarse", stages=1)
    assert manifest.decoded_from == "turboquant-rvq@4,scale=plain | turboquant-mse@4 (stages=1)"
    decompress(tmp_path / "mse", tmp_path / "expected")
    coarse, expected = (next(open_capture(tmp_path / name).windows()) for name in ("coarse", "expected"))
    for tensor in ("keys", "values"):
        assert mx.allclose(coarse.tensor(1, tensor), expected.tensor(1, tensor), atol=1e-6).item()  # type: ignore[arg-type]
    with pytest.raises(InputError, match="which has no stages; leave out --stages 1"):
        decompress(tmp_path / "mse", tmp_path / "other", stages=1)
    with pytest.raises(InputError, match="stages must be 1 or 2, not 3"):
        decompress(tmp_path / "rvq", tmp_path / "other", stages=3)
    assert not (tmp_path / "other").exists()


def with_an_outlier(folder: Path, window: int, token: int) -> Path:
    """A capture whose keys of layer 0 hold an element that float16 can't, in one window."""
    write_capture(folder, windows=3)
    path = folder / f"window-{window:05d}.safetensors"
    arrays = mx.load(str(path))
    assert isinstance(arrays, dict)
    keys = np.array(arrays["layers.0.keys"])
    keys[0, token, 3] = 7e4
    file = write_shard(folder, path.name, arrays | {"layers.0.keys": mx.array(keys)}, {"format": "tq-capture"})
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["shards"][window] |= vars(file)
    write_json(folder / MANIFEST, manifest)
    return folder


def test_a_tensor_refused_in_one_window_is_skipped_in_all(tmp_path: Path) -> None:
    capture = open_capture(with_an_outlier(tmp_path / "c", window=1, token=0))
    plan = CompressionPlan(parse_codec("turboquant-mse@3,center=none"), sinks=4)
    codec = evaluate_distortion(capture, [plan]).codecs[0]
    assert [(s.layer, s.tensor) for s in codec.skipped] == [(0, "keys")]
    assert {(row.layer, row.tensor) for row in codec.layers} == {(0, "values"), (1, "keys"), (1, "values")}
    assert codec.total["relative_mse"].n == 3
    assert codec.total["relative_mse"].value == pytest.approx(codec.total["relative_mse_theory"].value, rel=0.05)
    row = next(row for row in codec.layers if (row.layer, row.tensor) == (1, "keys"))
    coded = row.metrics["bytes_resident"].value
    # The window with the outlier in the capture's float32, since float16 won't do; the others in float16.
    assert codec.by_tensor["keys"]["bytes_resident"].value == (coded or 0) + 2 * 128 * 64 * (2 + 4 + 2)


@pytest.mark.parametrize("codec", ["affine@4", "turboquant-mse@4"])
def test_an_element_beyond_float16_ends_no_run(tmp_path: Path, codec: str) -> None:
    capture = open_capture(with_an_outlier(tmp_path / "c", window=1, token=100))
    plan = CompressionPlan(parse_codec(f"{codec},center=none"))
    refused = [(0, "keys")] if codec == "affine@4" else []
    for measured in (evaluate_distortion, evaluate_attention, evaluate_memory):
        # The memory of the first window alone is looked at, which has no such element.
        expected = [] if measured is evaluate_memory else refused
        assert [(s.layer, s.tensor) for s in measured(capture, [plan]).codecs[0].skipped] == expected
    total = compress(capture, plan, tmp_path / "e").codecs[0].total
    # What is said of the bytes is so of the arrays in the folder, in every window.
    arrays = {path.name: mx.load(str(path)) for path in (tmp_path / "e").glob("*.safetensors")}
    assert total["bytes_resident"].value == sum(a.nbytes for file in arrays.values() for a in file.values())  # type: ignore[union-attr]
    kept = [name for name, file in arrays.items() if "0.keys.uncompressed" in file]
    assert len(kept) == (3 if refused else 0)
    decompress(tmp_path / "e", tmp_path / "d")
    decoded = list(open_capture(tmp_path / "d").windows())[1].keys(0)
    assert decoded[0, 100, 3].item() == pytest.approx(7e4, rel=0 if refused else 0.1)


@pytest.mark.parametrize(
    ("bits", "expected"), [("0:1", (1, 2)), ("0:2.5", (2.5, 3)), ("0:0.5", (0.5, 2)), ("0:4/3", (4, 3))]
)
def test_values_beside_a_keys_codec_follow_other_bits_of_a_layer(bits: str, expected: tuple[float, float]) -> None:
    plan = CompressionPlan(parse_codec("qjl@1"), parse_layer_bits(bits))
    assert (plan.spec(0, "keys").bits, plan.spec(0, "values").bits) == expected
    assert plan.spec(1, "values").bits == 2


def test_what_the_captured_dtype_can_not_hold_is_clipped_and_said(tmp_path: Path) -> None:
    write_capture(tmp_path / "c", dtype="float16", windows=1, layers=1)
    file = tmp_path / "c" / "window-00000.safetensors"
    arrays = mx.load(str(file))
    assert isinstance(arrays, dict)
    arrays["layers.0.values"] = mx.full(arrays["layers.0.values"].shape, 65000.0).astype(mx.float16)
    record = write_shard(tmp_path / "c", file.name, arrays, {"format": "tq-capture"})
    manifest = json.loads((tmp_path / "c" / MANIFEST).read_text())
    manifest["shards"][0] |= vars(record)
    write_json(tmp_path / "c" / MANIFEST, manifest)
    compress(
        open_capture(tmp_path / "c"), CompressionPlan(parse_codec("turboquant-mse@2,rotation=none")), tmp_path / "e"
    )
    said: list[str] = []
    decompress(tmp_path / "e", tmp_path / "d", on_clipped=said.append)
    assert len(said) == 1
    assert "values of layers.0 are beyond float16: clipped" in said[0]
    next(open_capture(tmp_path / "d").windows()).values(0)  # can be read


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a: a.pop("0.keys.sinks"), "decode to"),
        (lambda a: a.update({"0.keys.scales": a["0.keys.scales"].reshape(-1)}), "isn't of 2 heads|don't fit"),
        (lambda a: a.update({"0.keys.codes": a["0.keys.codes"][:1]}), "codes of the keys of layer 0 isn't of 2 heads"),
        (lambda a: a.update({"0.keys.mean": a["0.keys.mean"][:1]}), "mean of the keys of layer 0 isn't of 2 heads"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, change: Callable[[Any], object], says: str) -> None:
    capture = open_capture(write_capture(tmp_path / "c", windows=1, layers=1))
    compress(capture, CompressionPlan(parse_codec("turboquant-mse@4"), sinks=4), tmp_path / "e")
    file = tmp_path / "e" / "window-00000.safetensors"
    arrays = mx.load(str(file))
    change(arrays)
    record = write_shard(tmp_path / "e", file.name, arrays, {"format": "tq-encoded"})  # type: ignore[arg-type]
    manifest = json.loads((tmp_path / "e" / MANIFEST).read_text())
    manifest["shards"][0] |= vars(record)
    write_json(tmp_path / "e" / MANIFEST, manifest)
    with pytest.raises(InputError, match=says):
        decompress(tmp_path / "e", tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_sliding_layer_in_a_long_text_is_coded_though_its_window_is_short(tmp_path: Path) -> None:
    capture = open_capture(write_capture(tmp_path / "c", tokens=256, windows=1, window=32))
    total = evaluate_memory(capture, [CompressionPlan(parse_codec("turboquant-mse@4"))]).codecs[0].total
    assert (total["bytes_nominal_8192"].value or 0) < 0.4 * (total["bytes_fp16_8192"].value or 0)
