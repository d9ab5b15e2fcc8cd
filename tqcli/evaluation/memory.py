"""Bytes of a compressed cache: measured on one window, by formula, and projected to longer contexts."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from tqcli.capture.store import Capture
from tqcli.codecs.base import Unsupported
from tqcli.codecs.context import Tensor
from tqcli.compression.plan import CompressionPlan
from tqcli.compression.tensor import encode_tensor
from tqcli.evaluation.coder import TENSORS, Coder
from tqcli.evaluation.distortion import capture_result, check_plans
from tqcli.kernels.runtime import used
from tqcli.progress import progress
from tqcli.report.schema import Metric, Result

PROJECTED_TOKENS = (8192, 32768, 131072)


def evaluate_memory(capture: Capture, plans: Sequence[CompressionPlan], calibration: Capture | None = None) -> Result:
    """Encodes the capture's first window with every plan and counts bytes; a window stands for one cache.

    Raises `InputError` for a damaged capture, a calibration capture that doesn't fit, or a plan that compressed
    nothing.
    """
    window = next(capture.windows())
    check_plans(plans)
    before = used()
    coders = [Coder(capture, plan, calibration) for plan in plans]
    peaks = [0] * len(plans)
    with progress(len(capture.layers) * len(plans), "memory", "layer") as bar:
        for layer in capture.layers:
            for index, coder in enumerate(coders):
                for tensor in TENSORS:
                    x = window.tensor(layer, tensor)
                    mx.eval(x)
                    peaks[index] = max(peaks[index], _peak_of_encoding(coder, layer, tensor, x))
                    coder.encode(layer, tensor, x)
                bar.update()
    results = []
    for coder, peak in zip(coders, peaks, strict=True):
        coder.check_something_compressed()
        result = coder.result({}, {}, [coder.row(*key, {}, []) for key in coder.tensors if key not in coder.skipped])
        result.total["peak_bytes"] = Metric(value=peak, unit="bytes", higher_is_better=False)
        for tokens in PROJECTED_TOKENS:
            compressed, fp16 = _projected(coder, tokens)
            result.total[f"bytes_nominal_{tokens}"] = Metric(value=compressed, unit="bytes", higher_is_better=False)
            result.total[f"bytes_fp16_{tokens}"] = Metric(value=fp16, unit="bytes")
        results.append(result)
    return capture_result("memory", capture, coders, results, calibration, used(before))


def _peak_of_encoding(coder: Coder, layer: int, tensor: Tensor, x: mx.array) -> int:
    """Bytes above those of the input at the highest point of encoding one tensor."""
    if (layer, tensor) in coder.skipped:
        return 0
    of = coder.tensors[layer, tensor]
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    try:
        mx.eval(encode_tensor(of.codec, x, of.ctx, coder.plan.sinks, coder.plan.recent, of.state).arrays)
    except Unsupported:
        return 0
    return max(0, int(mx.get_peak_memory() - before))


def _projected(coder: Coder, tokens: int) -> tuple[int, int]:
    """Bytes by formula of a cache of so many tokens, compressed and in fp16. Sliding layers hold a window at most."""
    compressed, fp16 = coder.shared_bytes(coder.tensors), 0
    for key, of in coder.tensors.items():
        held = tokens if of.ctx.window is None else min(tokens, of.ctx.window)
        size = held * of.ctx.n_kv_heads * of.ctx.head_dim
        fp16 += 2 * size
        if key in coder.skipped:
            dtype: mx.Dtype = getattr(mx, of.ctx.cache_dtype)
            compressed += dtype.size * size
        else:
            compressed += of.nominal_bytes(held, coder.plan, tokens)
    return compressed, fp16
