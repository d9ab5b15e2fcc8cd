"""Adds up what a codec did to each tensor of a capture, window by window, and turns it into results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from tqcli.capture.store import Capture
from tqcli.codecs.base import Codec, Unsupported
from tqcli.codecs.centring import Centred, centring_used
from tqcli.codecs.context import LayerContext, Tensor
from tqcli.codecs.rotation import rotation_used
from tqcli.compression.plan import CompressionPlan
from tqcli.compression.tensor import EncodedTensor, decode_tensor, encode_tensor, nominal_bytes
from tqcli.errors import InputError
from tqcli.metrics.bootstrap import ratio_interval
from tqcli.metrics.distortion import Distortion, measure_distortion, ratio, snr_db
from tqcli.report.schema import CodecResult, LayerResult, Metric, Metrics, SkippedTensor

TENSORS: tuple[Tensor, ...] = ("keys", "values")


@dataclass
class TensorTally:
    """One tensor of one layer over all windows seen so far."""

    ctx: LayerContext
    codec: Codec
    spec: str
    windows: list[Distortion] = field(default_factory=list)
    elements: int = 0
    resident: int = 0
    nominal: int = 0
    fp16: int = 0
    disk: int | None = None
    uncompressed_tokens: int = 0
    tokens: int = 0

    def add(self, x: mx.array, encoded: EncodedTensor, plan: CompressionPlan) -> None:
        """Decodes what was encoded from x [n_kv_heads, tokens, head_dim] and adds its errors and bytes."""
        decoded = decode_tensor(self.codec, encoded, self.ctx)
        segments = encoded.segments
        coded = slice(segments.sinks, segments.sinks + segments.coded)
        offset = self.codec.offset(encoded.coded, encoded.context(self.ctx))
        self.windows.append(measure_distortion(x, decoded, offset, coded))
        self._count(x, encoded.nbytes)
        self.nominal += nominal_bytes(self.codec, self.ctx, x.shape[-2], plan.sinks, plan.recent)
        self.uncompressed_tokens += encoded.uncompressed_tokens

    def add_uncompressed(self, x: mx.array) -> None:
        """Adds x kept in the cache's dtype."""
        size: int = getattr(mx, self.ctx.cache_dtype).size
        self._count(x, x.size * size)
        self.nominal += x.size * size
        self.uncompressed_tokens += x.shape[-2]

    def _count(self, x: mx.array, resident: int) -> None:
        self.elements += x.size
        self.resident += resident
        self.fp16 += 2 * x.size
        self.tokens += x.shape[-2]

    @property
    def center(self) -> str:
        """How the tensor was centred: none, mean or rope."""
        return centring_used(self.codec.center, self.ctx) if isinstance(self.codec, Centred) else "none"


class CodecTally:
    """What one plan does to a capture."""

    def __init__(self, capture: Capture, plan: CompressionPlan) -> None:
        plan.check_layers(list(capture.layers))
        self.plan = plan
        self.shared: dict[str, int] = {}
        self.skipped: dict[tuple[int, Tensor], str] = {}
        self.tensors: dict[tuple[int, Tensor], TensorTally] = {}
        for layer in capture.layers:
            for tensor in TENSORS:
                ctx = capture.context(layer, tensor)
                codec = plan.codec_of(layer, tensor)
                self.tensors[layer, tensor] = TensorTally(ctx, codec, str(plan.spec(layer, tensor)))
                if reason := codec.unsupported(ctx):
                    self.skipped[layer, tensor] = reason

    def encode(self, layer: int, tensor: Tensor, x: mx.array) -> EncodedTensor | None:
        """Encodes one tensor of one window and adds it up; None where it stays uncompressed.

        A tensor that a codec refuses in one window counts as skipped in all.
        """
        tally = self.tensors[layer, tensor]
        encoded = None
        if (layer, tensor) not in self.skipped:
            try:
                encoded = encode_tensor(tally.codec, x, tally.ctx, self.plan.sinks, self.plan.recent)
            except Unsupported as e:
                self.skipped[layer, tensor] = str(e)
        if encoded is None:
            tally.add_uncompressed(x)
            return None
        mx.eval(encoded.arrays)
        tally.add(x, encoded, self.plan)
        self.shared |= {key: array.nbytes for key, array in encoded.coded.shared.items()}
        return encoded

    def check_something_compressed(self) -> None:
        """Raises `InputError` if not a single token was coded: such a run says nothing."""
        if any(t.uncompressed_tokens < t.tokens for t in self.tensors.values()):
            return
        reasons = "; ".join(sorted(set(self.skipped.values())))
        if not reasons:
            tokens = max((t.tokens // max(len(t.windows), 1) for t in self.tensors.values()), default=0)
            reasons = (
                f"windows of {tokens} tokens leave none to code beside {self.plan.sinks} sinks, {self.plan.recent} "
                "recent ones and the 64 that centring needs; use longer windows, or center=none"
            )
        raise InputError(f"{self.plan.codec} compressed nothing: {reasons}")

    def result(self) -> CodecResult:
        """Everything added up, per layer and in total."""
        everything = list(self.tensors.values())
        by_tensor: dict[Tensor, Metrics] = {
            name: _metrics([t for t in everything if t.ctx.tensor == name]) for name in TENSORS
        }
        total = _metrics(everything, shared=sum(self.shared.values()))
        layers = [
            LayerResult(layer=layer, tensor=name, codec=tally.spec, center=tally.center, metrics=_metrics([tally]))
            for (layer, name), tally in self.tensors.items()
            if (layer, name) not in self.skipped
        ]
        skipped = [SkippedTensor(layer=layer, tensor=name, reason=r) for (layer, name), r in self.skipped.items()]
        return CodecResult(
            codec=str(self.plan.codec),
            total=total,
            by_tensor=by_tensor,
            layers=layers,
            skipped=skipped,
            notes=list(self._notes()),
        )

    def _notes(self) -> Iterable[str]:
        if self.skipped:
            yield "skipped tensors are counted uncompressed, in the cache's dtype"
        fallen = {t.ctx.layer for t in self.tensors.values() if _asked_rope(t.codec) and t.center == "mean"}
        if fallen:
            yield f"center=rope is a plain mean in {len(fallen)} layers, whose rotary parameters aren't known"
        kinds = {
            (k, t.ctx.head_dim) for t in self.tensors.values() if (k := getattr(_inner(t.codec), "rotation", None))
        }
        for kind, head_dim in sorted(kinds):
            if rotation_used(kind, head_dim) != kind:
                yield f"rotation {kind} is qr for head_dim {head_dim}: there is no Hadamard matrix of that size"
        waiting = sum(t.uncompressed_tokens for t in self.tensors.values())
        tokens = sum(t.tokens for t in self.tensors.values())
        if waiting and not self.skipped:
            yield f"{waiting / tokens:.1%} of the tokens are kept uncompressed (sinks, recent, too few to centre)"


def _inner(codec: Codec) -> Codec:
    return codec.inner if isinstance(codec, Centred) else codec


def _asked_rope(codec: Codec) -> bool:
    return isinstance(codec, Centred) and codec.center == "rope"


def _metrics(tallies: list[TensorTally], shared: int = 0) -> Metrics:
    """Metrics of one tensor or of several pooled: errors over energies, bytes over elements."""
    metrics: Metrics = {}
    measured = [t for t in tallies if t.windows]
    if measured:
        metrics |= _distortion_metrics(measured)
    elements = sum(t.elements for t in tallies)
    resident, nominal = sum(t.resident for t in tallies) + shared, sum(t.nominal for t in tallies)
    fp16 = sum(t.fp16 for t in tallies)
    bits = [t.codec.bits_nominal(t.ctx) for t in tallies]
    weights = [t.elements for t in tallies]
    metrics["bits_nominal"] = _lower(float(np.average(bits, weights=weights)) if elements else None, "bits/element")
    metrics["bits_effective"] = _lower(8 * resident / elements if elements else None, "bits/element")
    metrics["bytes_resident"] = _lower(resident, "bytes")
    metrics["bytes_nominal"] = _lower(nominal, "bytes")
    metrics["bytes_fp16"] = Metric(value=fp16, unit="bytes")
    metrics["ratio"] = Metric(value=fp16 / resident if resident else None, unit="x", higher_is_better=True)
    return metrics


def _distortion_metrics(tallies: list[TensorTally]) -> Metrics:
    windows = min(len(t.windows) for t in tallies)
    errors = np.array([sum(t.windows[w].error.sum() for t in tallies) for w in range(windows)])
    energies = np.array([sum(t.windows[w].energy.sum() for t in tallies) for w in range(windows)])
    interval = ratio_interval(errors, energies)
    value = ratio(errors.sum(), energies.sum())
    vectors = sum(d.vectors * len(d.error) for t in tallies for d in t.windows)
    cosine = sum(d.cosine.sum() for t in tallies for d in t.windows)
    low, high = interval or (None, None)
    return {
        "relative_mse": Metric(value=value, unit="1", n=windows, ci_low=low, ci_high=high, higher_is_better=False),
        "relative_mse_theory": _lower(_theory(tallies, float(energies.sum())), "1"),
        "cosine": Metric(value=cosine / vectors if vectors else None, unit="1", n=vectors, higher_is_better=True),
        "snr_db": Metric(value=snr_db(value), unit="dB", n=windows, higher_is_better=True),
        "worst_vector": _lower(max((float(d.worst.max()) for t in tallies for d in t.windows), default=None), "1"),
    }


def _theory(tallies: list[TensorTally], energy: float) -> float | None:
    """The codec's own expectation, scaled by the share of the energy that is left for it after centring."""
    expected = 0.0
    for tally in tallies:
        per_unit = tally.codec.relative_mse_theory(tally.ctx.head_dim)
        if per_unit is None:
            return None
        expected += per_unit * sum(float(d.coded_energy.sum()) for d in tally.windows)
    return ratio(expected, energy)


def _lower(value: float | None, unit: str) -> Metric:
    return Metric(value=value, unit=unit, higher_is_better=False)
