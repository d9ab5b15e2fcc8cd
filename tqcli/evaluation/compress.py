"""Compresses a capture into an encoded folder and tells, layer by layer, what that cost and saved."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

from tqcli.capture.store import Capture
from tqcli.compression.plan import CompressionPlan
from tqcli.compression.store import EncodedWriter, check_out
from tqcli.evaluation.coder import TENSORS, Coder
from tqcli.evaluation.distortion import capture_result
from tqcli.evaluation.tally import DistortionTally
from tqcli.kernels.runtime import used
from tqcli.progress import progress
from tqcli.report.schema import CodecResult, Metric, Metrics, Result
from tqcli.storage import plain_path, staged_folder


def compress(
    capture: Capture,
    plan: CompressionPlan,
    out: Path,
    *,
    calibration: Capture | None = None,
    overwrite: bool = False,
) -> Result:
    """Writes every tensor of the capture, coded by the plan, to `out`, and measures what can be decoded from it.

    Raises `InputError` for a damaged capture, a calibration capture that doesn't fit, an `out` that can't be written,
    or a plan that compresses nothing.
    """
    out = plain_path(out)
    check_out(out, overwrite)
    before = used()
    coder = Coder(capture, plan, calibration)
    with staged_folder(out) as folder:
        result = _compress(capture, coder, folder, calibration if coder.learned else None)
        # What is refused in a later window is coded in the shards before: once more, without it.
        while coder.refused_midway:
            for path in folder.iterdir():
                path.unlink()
            coder = Coder(capture, plan, calibration, coder.skipped)
            result = _compress(capture, coder, folder, calibration if coder.learned else None)
    return capture_result("compress", capture, [coder], [result], calibration, used(before))


def _compress(capture: Capture, coder: Coder, folder: Path, learned_from: Capture | None) -> CodecResult:
    tally = DistortionTally(coder, inner_products=False)
    writer = EncodedWriter(capture, coder.plan, folder, learned_from)
    with progress(len(capture.manifest.shards) * len(capture.layers), "compress", "layer") as bar:
        for window in capture.windows():
            for layer in capture.layers:
                for tensor in TENSORS:
                    x = window.tensor(layer, tensor)
                    mx.eval(x)
                    encoded = tally.add(layer, tensor, x, window)
                    writer.add(layer, tensor, x, encoded, tally.coder.tensors[layer, tensor].ctx)
                bar.update()
            tally.coder.check_something_compressed()
            writer.end_window(window)
    writer.finish(tally.coder.skipped)
    result = tally.result()
    for row in result.layers:
        _on_disk(row.metrics, writer.bytes_of([(row.layer, row.tensor)]))
    for name in TENSORS:
        _on_disk(result.by_tensor[name], writer.bytes_of(key for key in writer.disk if key[1] == name))
    _on_disk(result.total, writer.bytes_on_disk())
    rest = writer.bytes_on_disk() - sum(result.by_tensor[name]["bytes_disk"].value or 0 for name in TENSORS)
    result.notes.append(f"{rest:.0f} bytes on disk are the manifest and what keys and values share: in the total alone")
    return result


def _on_disk(metrics: Metrics, size: int) -> None:
    """Adds the bytes in the files, and takes effective bits and ratio from them."""
    fp16 = metrics["bytes_fp16"].value or 0
    metrics["bytes_disk"] = Metric(value=size, unit="bytes", higher_is_better=False)
    metrics["bits_effective"] = Metric(
        value=16 * size / fp16 if fp16 else None, unit="bits/element", higher_is_better=False
    )
    metrics["ratio"] = Metric(value=fp16 / size if size else None, unit="x", higher_is_better=True)
