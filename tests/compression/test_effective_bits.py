"""Bits counted from the files: codes are really packed, and little else is stored."""

from pathlib import Path

import numpy as np
import pytest
from small_captures import write_capture

from tqcli.capture.store import open_capture
from tqcli.codecs.spec import parse_codec
from tqcli.compression.decompress import decompress
from tqcli.compression.plan import CompressionPlan
from tqcli.evaluation.compress import compress

WINDOWS, TOKENS = 4, 1024


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A capture of 4 x 1,024 tokens for each head_dim, two layers of three KV heads."""
    folder = tmp_path_factory.mktemp("captures")
    return {
        d: write_capture(folder / str(d), head_dim=d, windows=WINDOWS, tokens=TOKENS, kv_heads=3) for d in (64, 80, 128)
    }


def bits_on_disk(folder: Path, capture: Path) -> float:
    """Every byte of every file of the folder over the elements of the capture."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    manifest = open_capture(capture).manifest
    elements = sum(layer.n_kv_heads * (layer.head_dim + layer.value_head_dim) for layer in manifest.layers)
    return 8 * size / (elements * WINDOWS * TOKENS)


@pytest.mark.parametrize(("head_dim", "expected"), [(128, 4.125), (64, 4.25)])
def test_effective_bits_are_the_codes_and_one_scale(tmp_path: Path, head_dim: int, expected: float) -> None:
    """All files counted, manifest and shared arrays too: at most 0.5 % more than 4 + 16 / d bits."""
    capture = write_capture(
        tmp_path / "capture", head_dim=head_dim, windows=WINDOWS, tokens=TOKENS, kv_heads=3, layers=8, dtype="float16"
    )
    result = compress(open_capture(capture), CompressionPlan(parse_codec("turboquant-mse@4")), tmp_path / "encoded")
    on_disk = bits_on_disk(tmp_path / "encoded", capture)
    assert expected <= on_disk <= expected * 1.005
    assert result.codecs[0].total["bits_effective"].value == pytest.approx(on_disk)


@pytest.mark.parametrize(
    ("bits", "expected"), [(1, 1.2), (2, 2.2), (3, 3.2), (4, 4.2), (5, 5.2), (6, 6.2), (7, 7.2), (8, 8.2)]
)
def test_rows_that_end_inside_a_word_are_counted_padded(captures: dict[int, Path], bits: int, expected: float) -> None:
    """d = 80: codes in whole 32-bit words; the scale in the slack where 16 bits are free, else beside it."""
    capture = open_capture(captures[80])
    codec = parse_codec(f"turboquant-mse@{bits},center=none").values.build("values")
    ctx = capture.context(0, "values")
    x = next(capture.windows()).values(0)
    words = -(-80 * bits // 32)
    slack = words * 32 - 80 * bits
    assert expected == pytest.approx((words * 32 + (0 if slack >= 16 else 16)) / 80)
    assert 8 * codec.encode(x, ctx).nbytes / x.size == pytest.approx(expected)


@pytest.mark.parametrize(
    ("codec", "sinks", "recent"),
    [
        ("turboquant-mse@3", 0, 0),
        ("turboquant-mse@7/5,rotation=qr", 4, 32),
        ("affine@4", 4, 0),
        ("identity", 0, 0),
        ("turboquant-mse@2 | fp16", 1, 1),
    ],
)
def test_a_folder_decodes_without_anything_else(
    captures: dict[int, Path], tmp_path: Path, codec: str, sinks: int, recent: int
) -> None:
    source = open_capture(captures[64])
    result = compress(source, CompressionPlan(parse_codec(codec), sinks=sinks, recent=recent), tmp_path / "encoded")
    decompress(tmp_path / "encoded", tmp_path / "decoded")
    decoded = open_capture(tmp_path / "decoded")
    for tensor in ("keys", "values"):
        error = energy = 0.0
        for a, b in zip(source.windows(), decoded.windows(), strict=True):
            x, y = np.array(a.tensor(1, tensor)), np.array(b.tensor(1, tensor))  # type: ignore[arg-type]
            error += float(((x - y) ** 2).sum())
            energy += float((x**2).sum())
            assert np.abs(x - y)[:, :sinks].max(initial=0) < 0.01 * np.abs(x).max()
            assert np.abs(x - y)[:, TOKENS - recent :].max(initial=0) < 0.01 * np.abs(x).max()
        row = next(r for r in result.codecs[0].layers if (r.layer, r.tensor) == (1, tensor))
        assert error / energy == pytest.approx(row.metrics["relative_mse"].value, rel=1e-3, abs=1e-12)


def test_by_formula_and_in_buffers_agree(captures: dict[int, Path], tmp_path: Path) -> None:
    for head_dim, capture in captures.items():
        plan = CompressionPlan(parse_codec("turboquant-mse@3/2"), {0: (8, 4)}, sinks=4, recent=32)
        total = compress(open_capture(capture), plan, tmp_path / str(head_dim)).codecs[0].total
        nominal, resident = total["bytes_nominal"].value, total["bytes_resident"].value
        assert nominal is not None
        assert resident is not None
        assert resident == nominal
