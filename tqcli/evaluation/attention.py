"""What attention sees of several codecs, with the captured queries of one capture.

Each query sees what it would see while decoding one token at a time: the codec's version of every earlier token but
the sinks and the recent ones, which are in the cache's own dtype.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.capture.store import Capture, Window
from tqcli.codecs.base import to_cache_dtype
from tqcli.codecs.warm_up import WARM_UP_TOKENS
from tqcli.compression.plan import CompressionPlan
from tqcli.compression.tensor import decode_tensor, score_middle
from tqcli.errors import InputError
from tqcli.evaluation.coder import TENSORS, Coder
from tqcli.evaluation.distortion import capture_result
from tqcli.metrics.attention import TOP_K, AttentionDistortion, ExactAttention, attention_outputs, visible
from tqcli.metrics.bootstrap import mean_interval
from tqcli.metrics.heads import BoolArray, pool
from tqcli.progress import progress
from tqcli.report.schema import CodecResult, Metric, Metrics, Result

_LOWER = ("attention_error", "attention_kl")
_UNITS = {"attention_error": "1", "attention_kl": "nats", "logit_correlation": "1", "topk_overlap": "1"}


def evaluate_attention(
    capture: Capture,
    plans: Sequence[CompressionPlan],
    calibration: Capture | None = None,
    top_k: int = TOP_K,
) -> Result:
    """Compares attention over coded keys and values with attention over the captured ones; nothing is written.

    Queries at the first positions, where some codec of the run still waits for tokens to learn from, are left out for
    all codecs alike. Raises `InputError` for a damaged capture, one without queries or with too short windows, a
    calibration capture that doesn't fit, or a plan that compressed nothing.
    """
    coders = [Coder(capture, plan, calibration) for plan in plans]
    first = plans[0].sinks + plans[0].recent + (WARM_UP_TOKENS if any(c.warms_up for c in coders) else 0)
    tallies = [_Tally(coder) for coder in coders]
    steps, queries = len(capture.manifest.shards) * len(capture.layers), 0
    with progress(steps, "attention", "layer") as bar:
        for window in capture.windows():
            chosen = np.flatnonzero(window.query_positions >= first)
            queries += len(chosen)
            for layer in capture.layers:
                if len(chosen):
                    _add_layer(capture, window, layer, chosen, tallies, top_k)
                bar.update()
    if not queries:
        raise InputError(_no_queries(capture, first))
    for coder in coders:
        coder.check_something_compressed()
    settings = {"first_position": first, "queries": queries, "top_k": top_k}
    result = capture_result("attention", capture, plans, [t.result() for t in tallies], calibration, settings)
    result.notes += [
        f"attention of layer {record.layer} is measured without this: {note}"
        for record in capture.manifest.layers
        for note in record.notes
    ]
    return result


def _no_queries(capture: Capture, first: int) -> str:
    manifest = capture.manifest
    if manifest.decoded_from:
        return f"{capture.folder} was decoded from {manifest.decoded_from} and has no queries; name the capture itself"
    if not manifest.queries:
        return f"{capture.folder} has no queries; capture anew with --queries 64"
    return (
        f"{capture.folder} has no query at position {first} or later, where every codec has begun; capture longer "
        f"windows than {manifest.dataset.tokens} tokens, use fewer --sinks or --recent, or --calibration"
    )


class _Tally:
    """What one plan does to attention, by layer and window."""

    def __init__(self, coder: Coder) -> None:
        self.coder = coder
        self.layers: dict[int, list[AttentionDistortion]] = defaultdict(list)

    def result(self) -> CodecResult:
        """Means over layers, each layer alike; medians and the worst layer beside them."""
        layers = {layer: pool(windows) for layer, windows in self.layers.items()}
        rows = [self.coder.row(n, "both", _metrics(d), [_metrics(h) for h in d.per_head()]) for n, d in layers.items()]
        total: Metrics = {}
        for name, unit in _UNITS.items():
            values = {layer: v for layer, d in layers.items() if (v := getattr(d, name)) is not None}
            if values:
                total |= self._over_layers(name, unit, values)
        return self.coder.result(total, {}, rows)

    def _over_layers(self, name: str, unit: str, values: dict[int, float]) -> Metrics:
        """Mean, median and worst of a measure over layers; intervals of the mean are resampled over windows."""
        higher = name not in _LOWER
        worst = (min if higher else max)(values, key=values.__getitem__)
        every = list(values.values())
        by_window = np.array([[getattr(d, name) for d in self.layers[layer]] for layer in values], dtype=np.float64)
        low, high = mean_interval(by_window.mean(axis=0)) or (None, None)
        windows = by_window.shape[1]

        def metric(value: float) -> Metric:
            return Metric(value=value, unit=unit, n=windows, higher_is_better=higher)

        mean = metric(float(np.mean(every)))
        mean.ci_low, mean.ci_high = low, high
        return {
            name: mean,
            f"{name}_median": metric(float(np.median(every))),
            f"{name}_worst": metric(values[worst]),
            f"{name}_worst_layer": Metric(value=worst, unit="layer"),
        }


def _add_layer(
    capture: Capture, window: Window, layer: int, chosen: NDArray[np.intp], tallies: Sequence[_Tally], top_k: int
) -> None:
    """Measures every plan on one layer of one window, for the chosen ones of its queries."""
    ctx = capture.context(layer, "keys")
    positions = window.query_positions[chosen]
    q = window.queries(layer)[:, mx.array(chosen)].astype(mx.float32)
    k, v = (window.tensor(layer, tensor) for tensor in TENSORS)
    mask = visible(positions, k.shape[-2], ctx.window)
    exact = ExactAttention.of(q, k, v, mask, ctx.scale, top_k)
    for tally in tallies:
        coder = tally.coder
        uncoded = _uncoded(positions, k.shape[-2], coder.plan)
        logits = _logits(coder, layer, q, k, uncoded) * ctx.scale
        outputs = _outputs(coder, layer, logits, v, mask, uncoded)
        tally.layers[layer].append(exact.compare(logits, outputs))


def _uncoded(positions: NDArray[np.int32], tokens: int, plan: CompressionPlan) -> BoolArray:
    """Which tokens are in the cache's own dtype when a query sees them: sinks, and those that are recent for it."""
    j = np.arange(tokens)
    return np.asarray((j < plan.sinks) | (j > positions[:, None] - plan.recent))


def _logits(coder: Coder, layer: int, q: mx.array, k: mx.array, uncoded: BoolArray) -> mx.array:
    """<q, key> without the scale, [n_q_heads, queries, tokens], as each query finds the keys in the cache."""
    of = coder.tensors[layer, "keys"]
    encoded = coder.encode_all(layer, "keys", k)
    if encoded is not None and not uncoded.any():
        return score_middle(of.codec, q, encoded, of.ctx)
    cached = mx.repeat(to_cache_dtype(k, of.ctx).astype(mx.float32), of.ctx.gqa_ratio, axis=0)
    exact = q @ cached.swapaxes(-1, -2)
    if encoded is None:
        return exact
    sinks = encoded.segments.sinks
    coded = mx.concatenate([exact[..., :sinks], score_middle(of.codec, q, encoded, of.ctx)], axis=-1)
    return mx.where(mx.array(uncoded), exact, coded)


def _outputs(coder: Coder, layer: int, logits: mx.array, v: mx.array, mask: BoolArray, uncoded: BoolArray) -> mx.array:
    """Attention outputs [n_q_heads, queries, value_head_dim] over the values as each query finds them in the cache."""
    of = coder.tensors[layer, "values"]
    encoded = coder.encode_all(layer, "values", v)
    if encoded is None:
        return attention_outputs(logits, to_cache_dtype(v, of.ctx), mask)
    decoded = decode_tensor(of.codec, encoded, of.ctx)
    outputs = attention_outputs(logits, decoded, mask)
    if not (uncoded & mask).any():
        return outputs
    # What is uncoded for some queries alone: its weight times what coding it changed.
    change = to_cache_dtype(v, of.ctx).astype(mx.float32) - decoded
    weights = mx.softmax(mx.where(mx.array(mask), logits, -mx.inf), axis=-1, precise=True)
    return outputs + (weights * mx.array(uncoded)) @ mx.repeat(change, of.ctx.gqa_ratio, axis=0)


def _metrics(of: AttentionDistortion) -> Metrics:
    return {
        name: Metric(value=getattr(of, name), unit=unit, higher_is_better=name not in _LOWER)
        for name, unit in _UNITS.items()
    }
