"""Bytes of a compressed cache: measured on one window, by formula, and projected to longer contexts."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from tqcli.capture.store import Capture
from tqcli.codecs.context import Tensor
from tqcli.compression.plan import CompressionPlan
from tqcli.compression.tensor import encode_tensor, nominal_bytes
from tqcli.evaluation.distortion import capture_result
from tqcli.evaluation.tally import TENSORS, CodecTally
from tqcli.progress import progress
from tqcli.report.schema import Metric, Result

PROJECTED_TOKENS = (8192, 32768, 131072)


def evaluate_memory(capture: Capture, plans: Sequence[CompressionPlan]) -> Result:
    """Encodes the capture's first window with every plan and counts bytes; a window stands for one cache.

    Raises `InputError` for a damaged capture, or a plan that compressed nothing.
    """
    window = next(capture.windows())
    tallies = [CodecTally(capture, plan) for plan in plans]
    peaks = [0] * len(plans)
    with progress(len(capture.layers) * len(plans), "memory", "layer") as bar:
        for layer in capture.layers:
            for index, tally in enumerate(tallies):
                for tensor in TENSORS:
                    x = window.tensor(layer, tensor)
                    mx.eval(x)
                    peaks[index] = max(peaks[index], _peak_of_encoding(tally, layer, tensor, x))
                    tally.encode(layer, tensor, x)
                bar.update()
    results = []
    for tally, peak in zip(tallies, peaks, strict=True):
        tally.check_something_compressed()
        result = tally.result()
        result.total["peak_bytes"] = Metric(value=peak, unit="bytes", higher_is_better=False)
        for tokens in PROJECTED_TOKENS:
            compressed, fp16 = _projected(capture, tally, tokens)
            result.total[f"bytes_nominal_{tokens}"] = Metric(value=compressed, unit="bytes", higher_is_better=False)
            result.total[f"bytes_fp16_{tokens}"] = Metric(value=fp16, unit="bytes")
        results.append(result)
    return capture_result("memory", capture, plans, results)


def _peak_of_encoding(tally: CodecTally, layer: int, tensor: Tensor, x: mx.array) -> int:
    """Bytes above those of the input at the highest point of encoding one tensor."""
    if (layer, tensor) in tally.skipped:
        return 0
    of = tally.tensors[layer, tensor]
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(encode_tensor(of.codec, x, of.ctx, tally.plan.sinks, tally.plan.recent).arrays)
    return max(0, int(mx.get_peak_memory() - before))


def _projected(capture: Capture, tally: CodecTally, tokens: int) -> tuple[int, int]:
    """Bytes by formula of a cache of so many tokens, compressed and in fp16. Sliding layers hold a window at most."""
    compressed = sum(tally.shared.values())
    fp16 = 0
    for (layer, name), of in tally.tensors.items():
        held = tokens if of.ctx.window is None else min(tokens, of.ctx.window)
        ctx = capture.context(layer, name)
        size = held * ctx.n_kv_heads * ctx.head_dim
        fp16 += 2 * size
        if (layer, name) in tally.skipped:
            dtype: mx.Dtype = getattr(mx, ctx.cache_dtype)
            compressed += dtype.size * size
        else:
            compressed += nominal_bytes(of.codec, ctx, held, tally.plan.sinks, tally.plan.recent)
    return compressed, fp16
