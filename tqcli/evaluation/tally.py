"""Adds up the distortion that a plan causes in each tensor of a capture, window by window."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.capture.store import Window
from tqcli.codecs.context import Tensor
from tqcli.compression.tensor import EncodedTensor, decode_tensor, score_middle
from tqcli.evaluation.coder import TENSORS, CodedTensor, Coder, TensorKey, lower
from tqcli.metrics.attention import visible
from tqcli.metrics.bootstrap import ratio_interval
from tqcli.metrics.distortion import Distortion, measure_distortion, ratio, snr_db
from tqcli.metrics.heads import concatenate
from tqcli.metrics.inner_products import InnerProducts, measure_inner_products, norms
from tqcli.report.schema import CodecResult, Metric, Metrics


@dataclass
class TensorTally:
    """What was measured of one tensor, window by window."""

    distortion: list[Distortion] = field(default_factory=list)
    products: list[tuple[InnerProducts, float]] = field(default_factory=list)
    """Of keys with captured queries, with the sum over pairs of ||key - offset||**2 / ||key||**2; else empty."""


class DistortionTally:
    """What one plan does to the vectors of a capture."""

    def __init__(self, coder: Coder, inner_products: bool = True) -> None:
        self.coder = coder
        self._inner_products = inner_products
        self.tensors: dict[TensorKey, TensorTally] = defaultdict(TensorTally)

    def add(self, layer: int, tensor: Tensor, x: mx.array, window: Window) -> EncodedTensor | None:
        """Encodes and decodes x, one tensor of the window; None where it stays uncompressed."""
        encoded = self.coder.encode(layer, tensor, x)
        if encoded is None:
            return None
        of, tally = self.coder.tensors[layer, tensor], self.tensors[layer, tensor]
        segments = encoded.segments
        coded = slice(segments.sinks, segments.sinks + segments.coded)
        decoded = decode_tensor(of.codec, encoded, of.ctx)
        offset = of.codec.offset(encoded.coded, encoded.context(of.ctx))
        tally.distortion.append(measure_distortion(x, decoded, offset, coded))
        if self._inner_products and tensor == "keys" and len(window.query_positions):
            tally.products.append(_products(of, window.queries(layer), x, encoded, window.query_positions, offset))
        return encoded

    def result(self) -> CodecResult:
        """Everything added up, per layer and in total."""
        # A tensor that was refused in some window counts as skipped in all of them.
        measured = [key for key in self.coder.tensors if key in self.tensors and key not in self.coder.skipped]
        by_tensor = {t: self._metrics([k for k in measured if k[1] == t]) for t in TENSORS}
        layers = [self.coder.row(*key, self._metrics([key]), self._heads(key)) for key in measured]
        return self.coder.result(self._metrics(measured, products=False), by_tensor, layers)

    def _heads(self, key: TensorKey) -> list[Metrics]:
        """One for each KV head."""
        windows = self.tensors[key].distortion
        errors = np.sum([d.error for d in windows], axis=0)
        energies = np.sum([d.energy for d in windows], axis=0)
        cosines = np.sum([d.cosine for d in windows], axis=0) / sum(d.vectors for d in windows)
        return [
            {
                "relative_mse": lower(ratio(float(error), float(energy)), "1"),
                "cosine": Metric(value=float(cosine), unit="1", higher_is_better=True),
            }
            for error, energy, cosine in zip(errors, energies, cosines, strict=True)
        ]

    def _metrics(self, keys: list[TensorKey], products: bool = True) -> Metrics:
        """Of one tensor, or of several pooled: errors over energies."""
        if not keys:
            return {}
        tallies = [self.tensors[key] for key in keys]
        windows = len(tallies[0].distortion)
        errors = np.array([sum(t.distortion[w].error.sum() for t in tallies) for w in range(windows)])
        energies = np.array([sum(t.distortion[w].energy.sum() for t in tallies) for w in range(windows)])
        low, high = ratio_interval(errors, energies) or (None, None)
        value = ratio(errors.sum(), energies.sum())
        every = [d for t in tallies for d in t.distortion]
        vectors = sum(d.vectors * len(d.error) for d in every)
        cosine = sum(float(d.cosine.sum()) for d in every)
        metrics = {
            "relative_mse": Metric(value=value, unit="1", n=windows, ci_low=low, ci_high=high, higher_is_better=False),
            "relative_mse_theory": lower(self._theory(keys, float(energies.sum())), "1"),
            "cosine": Metric(value=cosine / vectors if vectors else None, unit="1", n=vectors, higher_is_better=True),
            "snr_db": Metric(value=snr_db(value), unit="dB", n=windows, higher_is_better=True),
            "worst_vector": lower(max((float(d.worst.max()) for d in every), default=None), "1"),
        }
        return metrics | (self._product_metrics(keys) if products else {})

    def _theory(self, keys: list[TensorKey], energy: float) -> float | None:
        """The codecs' own expectation, scaled by the share of the energy that is left for them after centring."""
        expected = 0.0
        for key in keys:
            of = self.coder.tensors[key]
            per_unit = of.codec.relative_mse_theory(of.ctx.head_dim)
            if per_unit is None:
                return None
            expected += per_unit * sum(float(d.coded_energy.sum()) for d in self.tensors[key].distortion)
        return ratio(expected, energy)

    def _product_metrics(self, keys: list[TensorKey]) -> Metrics:
        """Bias, slope and variance of the scores of captured queries; nothing where there are no queries."""
        products = [p for key in keys for p in self.tensors[key].products]
        if not products:
            return {}
        pooled = concatenate([p for p, _ in products])
        pairs = float(pooled.pairs.sum())
        expected = 0.0
        for key in keys:
            of = self.coder.tensors[key]
            per_unit = of.codec.ip_variance_theory(of.ctx.head_dim)
            if per_unit is None:
                expected = math.nan
                break
            expected += per_unit * sum(share for _, share in self.tensors[key].products)
        return {
            "ip_bias": Metric(value=pooled.bias, unit="1", n=int(pairs)),
            "ip_slope": Metric(value=pooled.slope, unit="1", n=int(pairs)),
            "ip_variance_d": lower(pooled.variance_d, "1"),
            "ip_variance_d_theory": lower(None if math.isnan(expected) else ratio(expected, pairs), "1"),
        }


def _products(
    of: CodedTensor,
    queries: mx.array,
    keys: mx.array,
    encoded: EncodedTensor,
    positions: NDArray[np.int32],
    offset: mx.array | None,
) -> tuple[InnerProducts, float]:
    """Inner products of queries with the coded keys that they see, and the sum over these pairs of the energy share.

    That is ||key - offset||**2 / ||key||**2, the part of a key's energy that the codec codes.
    """
    segments, ctx = encoded.segments, of.ctx
    coded = slice(segments.sinks, segments.sinks + segments.coded)
    mask = visible(positions, keys.shape[-2], ctx.window)[:, coded]
    middle = keys[..., coded, :].astype(mx.float32)
    exact = queries.astype(mx.float32) @ mx.repeat(middle, ctx.gqa_ratio, axis=0).swapaxes(-1, -2)
    key_norms = norms(middle)
    measured = measure_inner_products(
        exact, score_middle(of.codec, queries, encoded, ctx), norms(queries), key_norms, mask, ctx.head_dim
    )
    left = key_norms if offset is None else norms(middle - offset)
    shares = np.divide(left, key_norms, out=np.zeros_like(left), where=key_norms > 0) ** 2
    return measured, float((shares @ mask.sum(axis=0)).sum()) * ctx.gqa_ratio
