"""What codecs learn from a calibration capture, and which captures will do."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from small_captures import write_capture

from tqcli.capture.store import Capture, open_capture
from tqcli.codecs.spec import parse_codec
from tqcli.compression.calibration import calibrate, check_calibration
from tqcli.compression.decompress import decompress
from tqcli.compression.manifest import load_encoded_manifest
from tqcli.compression.plan import CompressionPlan
from tqcli.errors import InputError
from tqcli.evaluation.compress import compress
from tqcli.evaluation.distortion import evaluate_distortion


def edited(folder: Path, **changes: object) -> Capture:
    """The capture with other values in its manifest; `model` and `dataset` are merged."""
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    for key, value in changes.items():
        document[key] = document[key] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(document))
    return open_capture(folder)


@pytest.fixture
def evaluated(tmp_path: Path) -> Capture:
    return open_capture(write_capture(tmp_path / "evaluated"))


@pytest.fixture
def other(tmp_path: Path) -> Capture:
    write_capture(tmp_path / "other", tokens=192)
    return edited(tmp_path / "other", dataset={"text_sha256": "another"})


def test_a_calibrated_mean_is_that_of_all_windows_and_none_of_the_evaluated(evaluated: Capture, other: Capture) -> None:
    states = calibrate(CompressionPlan(parse_codec("affine@4,center=mean"), sinks=4), evaluated, other)
    assert set(states) == {(layer, tensor) for layer in (0, 1) for tensor in ("keys", "values")}
    keys = np.concatenate([np.array(window.keys(1))[:, 4:] for window in other.windows()], axis=1)
    found = np.array(states[1, "keys"]["mean"].astype(mx.float32))
    assert found == pytest.approx(keys.mean(axis=1, keepdims=True), abs=0.01)


def test_codecs_that_learn_nothing_are_left_alone(evaluated: Capture, other: Capture) -> None:
    assert calibrate(CompressionPlan(parse_codec("affine@4")), evaluated, other) == {}
    assert calibrate(CompressionPlan(parse_codec("affine@4,center=mean")), evaluated, None) == {}


def test_a_codec_that_needs_a_calibration_capture_says_so(evaluated: Capture) -> None:
    with pytest.raises(InputError, match=r"vecinfer learns from another text.*--calibration"):
        evaluate_distortion(evaluated, [CompressionPlan(parse_codec("vecinfer@1"))])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": {"weights_sha256": "1", "name": "bigger"}}, "is of bigger, not of the made that is measured"),
    ],
)
def test_a_capture_that_will_not_do_is_named(
    evaluated: Capture, other: Capture, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        check_calibration(evaluated, edited(other.folder, **changes))


@pytest.mark.parametrize(("shared", "refused"), [(31, False), (32, True), (128, True)])
def test_a_capture_that_shares_text_is_refused_whatever_file_it_is_from(
    evaluated: Capture, other: Capture, shared: int, refused: bool
) -> None:
    shards = other.manifest.model_dump()["shards"]
    shards[1]["token_ids"][60 : 60 + shared] = evaluated.manifest.shards[0].token_ids[:shared]
    capture = edited(other.folder, shards=shards)
    if not refused:
        check_calibration(evaluated, capture)
        return
    with pytest.raises(InputError, match=r"shares text.*window 1 with window 0"):
        check_calibration(evaluated, capture)


def test_a_missing_layer_is_named(tmp_path: Path, evaluated: Capture) -> None:
    write_capture(tmp_path / "less", layers=1)
    with pytest.raises(InputError, match="lacks layer 1; capture the same layers"):
        check_calibration(evaluated, edited(tmp_path / "less", dataset={"text_sha256": "another"}))


@pytest.mark.parametrize(
    "codec", ["turboquant-mse@3", "turboquant-mse@2.5", "vecinfer@1,iterations=3", "qjl@2,outliers=8"]
)
def test_a_calibrated_folder_decodes_without_the_calibration_capture(
    tmp_path: Path, evaluated: Capture, other: Capture, codec: str
) -> None:
    plan = CompressionPlan(parse_codec(codec), sinks=4, recent=8)
    result = compress(evaluated, plan, tmp_path / "encoded", calibration=other)
    manifest = load_encoded_manifest(tmp_path / "encoded")
    assert manifest.calibration is not None
    assert manifest.calibration.text_sha256 == "another"
    decompress(tmp_path / "encoded", tmp_path / "decoded")
    error = energy = 0.0
    for a, b in zip(evaluated.windows(), open_capture(tmp_path / "decoded").windows(), strict=True):
        x, y = np.array(a.keys(1)), np.array(b.keys(1))
        error += float(((x - y) ** 2).sum())
        energy += float((x**2).sum())
    row = next(r for r in result.codecs[0].layers if (r.layer, r.tensor) == (1, "keys"))
    assert error / energy == pytest.approx(row.metrics["relative_mse"].value, rel=1e-3)


def test_what_a_tensor_alone_shares_is_in_its_row_and_all_of_it_in_the_total(
    tmp_path: Path, evaluated: Capture, other: Capture
) -> None:
    codec = compress(
        evaluated, CompressionPlan(parse_codec("vecinfer@1,iterations=2")), tmp_path / "e", calibration=other
    ).codecs[0]
    codebook, codes = 256 * 8 * 2, 2 * 2 * 128 * 64 // 8
    row = next(r for r in codec.layers if (r.layer, r.tensor) == (0, "values"))
    assert row.metrics["bytes_resident"].value == codes + codebook
    assert row.metrics["bytes_nominal"].value == codes + codebook
    shared = mx.load(str(tmp_path / "e" / "shared.safetensors"))
    assert isinstance(shared, dict)
    own = 2 * 2 * codes
    assert codec.total["bytes_resident"].value == own + sum(array.nbytes for array in shared.values())
    on_disk = sum(row.metrics["bytes_disk"].value or 0 for row in codec.layers)
    assert on_disk < (codec.total["bytes_disk"].value or 0)
    assert on_disk > own + sum(array.nbytes for name, array in shared.items() if name[0].isdigit())


def test_a_codebook_of_the_whole_model_is_counted_once(evaluated: Capture, other: Capture) -> None:
    sizes = {}
    for scope in ("head", "layer", "model"):
        plan = CompressionPlan(parse_codec(f"identity | vecinfer@1,iterations=2,scope={scope}"))
        total = evaluate_distortion(evaluated, [plan], other).codecs[0].by_tensor["values"]
        sizes[scope] = total["bytes_resident"].value or 0
    codebook = 256 * 8 * 2
    assert sizes["layer"] - sizes["model"] == codebook
    assert sizes["head"] - sizes["layer"] == 2 * codebook


def test_a_decoded_capture_is_nothing_to_calibrate_on(tmp_path: Path, evaluated: Capture) -> None:
    compress(evaluated, CompressionPlan(parse_codec("turboquant-mse@8")), tmp_path / "e")
    decompress(tmp_path / "e", tmp_path / "d")
    decoded = open_capture(tmp_path / "d")
    with pytest.raises(InputError, match="was decoded from turboquant-mse@8; calibrate with a capture of the model"):
        check_calibration(evaluated, decoded)
    with pytest.raises(InputError, match="shares text with what is measured"):
        check_calibration(decoded, evaluated)


def test_short_windows_share_text_too(tmp_path: Path, evaluated: Capture) -> None:
    write_capture(tmp_path / "short", tokens=16)
    shards = open_capture(tmp_path / "short").manifest.model_dump()["shards"]
    shards[0]["token_ids"] = evaluated.manifest.shards[1].token_ids[50:66]
    with pytest.raises(InputError, match="window 0 with window 1"):
        check_calibration(evaluated, edited(tmp_path / "short", shards=shards))


def test_calibration_windows_that_are_all_sinks_are_refused(tmp_path: Path, evaluated: Capture) -> None:
    write_capture(tmp_path / "short", tokens=4)
    plan = CompressionPlan(parse_codec("turboquant-mse@3"), sinks=4)
    with pytest.raises(InputError, match="windows of 4 tokens leave none to learn from beside 4 sinks"):
        calibrate(plan, evaluated, open_capture(tmp_path / "short"))


def test_a_calibration_that_nothing_learns_from_is_not_said_to_be_used(evaluated: Capture, other: Capture) -> None:
    result = evaluate_distortion(evaluated, [CompressionPlan(parse_codec("affine@4"))], other)
    assert result.settings["calibration"] is None
    assert "was not used" in result.notes[0]
