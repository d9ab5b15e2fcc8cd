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
from tqcli.codecs.base import keep_uncompressed
from tqcli.codecs.warm_up import WARM_UP_TOKENS
from tqcli.compression.plan import CompressionPlan
from tqcli.compression.tensor import decode_tensor, score_middle
from tqcli.errors import InputError
from tqcli.evaluation.coder import TENSORS, Coder
from tqcli.evaluation.distortion import capture_result, check_plans
from tqcli.kernels.runtime import used
from tqcli.metrics.attention import (
    TOP_K,
    AttentionDistortion,
    ExactAttention,
    attention_outputs,
    mean_interval,
    visible,
)
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
    check_plans(plans)
    if top_k < 1:
        raise InputError(f"--top-k must be 1 or more, not {top_k}")
    before = used()
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
    captured = sum(len(window.query_positions) for window in capture.windows())
    settings = {"first_position": first, "queries": queries, "queries_captured": captured, "top_k": top_k}
    results = [tally.result() for tally in tallies]
    result = capture_result("attention", capture, coders, results, calibration, used(before), settings)
    recent = plans[0].recent
    hidden = [record.layer for record in capture.manifest.layers if record.window and record.window <= recent]
    if hidden:
        result.notes.append(f"no query sees a coded token in layers {hidden}: their window is no longer than {recent}")
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
        """Means over layers, each layer alike; medians and the worst layer beside them.

        A measure counts the layers in which something was coded that it depends on: an output needs keys and values,
        the others keys alone.
        """
        skipped = self.coder.skipped
        keys = [layer for layer in self.layers if (layer, "keys") not in skipped]
        either = [layer for layer in self.layers if layer in keys or (layer, "values") not in skipped]
        rows = []
        for layer in either:
            damage = pool(self.layers[layer])
            names = [name for name in _UNITS if layer in keys or name == "attention_error"]
            rows.append(
                self.coder.row(layer, "both", _metrics(damage, names), [_metrics(h, names) for h in damage.per_head()])
            )
        total: Metrics = {}
        for name in _UNITS:
            total |= self._over_layers(name, either if name == "attention_error" else keys)
        return self.coder.result(total, {}, rows)

    def _over_layers(self, name: str, layers: list[int]) -> Metrics:
        """Mean, median and worst of a measure over layers; the interval of the mean is resampled over windows."""
        pooled = {layer: pool(self.layers[layer]) for layer in layers}
        values = {layer: value for layer, d in pooled.items() if (value := getattr(d, name)) is not None}
        if not values:
            return {}
        higher = name not in _LOWER
        worst = (min if higher else max)(values, key=values.__getitem__)
        windows = len(self.layers[worst])
        low, high = mean_interval([self.layers[layer] for layer in values], name) or (None, None)

        def metric(value: float, low: float | None = None, high: float | None = None) -> Metric:
            return Metric(value=value, unit=_UNITS[name], n=windows, ci_low=low, ci_high=high, higher_is_better=higher)

        every = list(values.values())
        return {
            name: metric(float(np.mean(every)), low, high),
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
    try:
        exact = ExactAttention.of(q, k, v, mask, ctx.scale, top_k)
    except ValueError as e:
        raise InputError(f"attention of layer {layer} in {window.shard.file} can't be compared: {e}") from e
    for tally in tallies:
        coder = tally.coder
        uncoded = _uncoded(positions, k.shape[-2], coder.plan)
        logits = _logits(coder, layer, q, k, mask, uncoded) * ctx.scale
        outputs = _outputs(coder, layer, logits, v, mask, uncoded)
        tally.layers[layer].append(exact.compare(logits, outputs))


def _uncoded(positions: NDArray[np.int32], tokens: int, plan: CompressionPlan) -> BoolArray:
    """Which tokens are in the cache's own dtype when a query sees them: sinks, and those that are recent for it."""
    j = np.arange(tokens)
    return np.asarray((j < plan.sinks) | (j > positions[:, None] - plan.recent))


def _logits(coder: Coder, layer: int, q: mx.array, k: mx.array, mask: BoolArray, uncoded: BoolArray) -> mx.array:
    """<q, key> without the scale, [n_q_heads, queries, tokens], as each query finds the keys in the cache."""
    of = coder.tensors[layer, "keys"]
    encoded = coder.encode_all(layer, "keys", k)
    if encoded is not None and not (uncoded & mask).any():
        return score_middle(of.codec, q, encoded, of.ctx)
    cached = mx.repeat(keep_uncompressed(k, of.ctx).astype(mx.float32), of.ctx.gqa_ratio, axis=0)
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
        return attention_outputs(logits, keep_uncompressed(v, of.ctx), mask)
    decoded = decode_tensor(of.codec, encoded, of.ctx)
    outputs = attention_outputs(logits, decoded, mask)
    if not (uncoded & mask).any():
        return outputs
    # What is uncoded for some queries alone: its weight times what coding it changed.
    change = keep_uncompressed(v, of.ctx).astype(mx.float32) - decoded
    weights = mx.softmax(mx.where(mx.array(mask), logits, -mx.inf), axis=-1, precise=True)
    return outputs + (weights * mx.array(uncoded)) @ mx.repeat(change, of.ctx.gqa_ratio, axis=0)


def _metrics(of: AttentionDistortion, names: list[str]) -> Metrics:
    return {
        name: Metric(value=getattr(of, name), unit=_UNITS[name], higher_is_better=name not in _LOWER) for name in names
    }
