"""A plan at work on a capture: what it makes of each tensor, what it skips, and the bytes that all of it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np

from tqcli.capture.store import Capture
from tqcli.codecs.base import State, Unsupported, keep_uncompressed
from tqcli.codecs.context import LayerContext, Tensor
from tqcli.codecs.warm_up import WarmUp
from tqcli.compression.calibration import calibrate
from tqcli.compression.plan import CompressionPlan
from tqcli.compression.tensor import EncodedTensor, encode_tensor, nominal_bytes
from tqcli.errors import InputError
from tqcli.report.schema import CodecResult, LayerResult, Metric, Metrics, SkippedTensor

TENSORS: tuple[Tensor, ...] = ("keys", "values")
TensorKey = tuple[int, Tensor]


@dataclass
class CodedTensor:
    """One tensor of one layer: its codec, and what the windows seen so far take."""

    ctx: LayerContext
    codec: WarmUp
    spec: str
    state: State | None = None
    elements: int = 0
    resident: int = 0
    nominal: int = 0
    fp16: int = 0
    uncompressed_tokens: int = 0
    waiting_tokens: int = 0
    """Those of the uncompressed tokens that are neither sinks nor recent ones: too few to learn from."""
    tokens: int = 0

    def count(self, x: mx.array, resident: int, nominal: int, uncompressed_tokens: int, waiting: int = 0) -> None:
        """Adds one window."""
        self.waiting_tokens += waiting
        self.elements += x.size
        self.fp16 += 2 * x.size
        self.tokens += x.shape[-2]
        self.resident += resident
        self.nominal += nominal
        self.uncompressed_tokens += uncompressed_tokens

    def count_uncompressed(self, x: mx.array) -> None:
        """Adds one window that isn't coded."""
        size = keep_uncompressed(x, self.ctx).nbytes
        self.count(x, size, size, x.shape[-2])

    def count_all_uncompressed(self) -> None:
        """Counts the windows so far as if they hadn't been coded."""
        size: int = getattr(mx, self.ctx.cache_dtype).size
        self.resident = self.nominal = size * self.elements
        self.uncompressed_tokens = self.tokens

    def nominal_bytes(self, tokens: int, plan: CompressionPlan, seen: int | None = None) -> int:
        """Bytes by formula of a cache of so many tokens, out of `seen` that went through it, without what is shared."""
        return nominal_bytes(self.codec, self.ctx, tokens, plan.sinks, plan.recent, self.state is not None, seen)


class Coder:
    """Codes the tensors of one capture by one plan and keeps the accounts.

    Raises `InputError` for a plan that doesn't fit the capture, and where a codec needs a calibration capture.
    """

    def __init__(
        self,
        capture: Capture,
        plan: CompressionPlan,
        calibration: Capture | None = None,
        skipped: Mapping[TensorKey, str] | None = None,
    ) -> None:
        """`skipped`: tensors that are known beforehand to be refused, with the reason."""
        plan.check_layers(list(capture.layers))
        self.plan = plan
        self.skipped: dict[TensorKey, str] = dict(skipped or {})
        self.tensors: dict[TensorKey, CodedTensor] = {}
        for layer in capture.layers:
            for tensor in TENSORS:
                plan.codec_of(layer, tensor).check(capture.context(layer, tensor))
        states = calibrate(plan, capture, calibration)
        for layer in capture.layers:
            for tensor in TENSORS:
                ctx = capture.context(layer, tensor)
                codec = plan.codec_of(layer, tensor)
                state = states.get((layer, tensor))
                self.tensors[layer, tensor] = CodedTensor(ctx, codec, str(plan.spec(layer, tensor)), state)
                if reason := codec.unsupported(ctx):
                    self.skipped[layer, tensor] = reason
        self.refused_midway = False
        """Whether a tensor was refused after some of its windows had been coded."""
        self._shared: dict[str, int] = {}
        self._users: dict[str, set[TensorKey]] = {}

    @property
    def learned(self) -> bool:
        """Whether anything was learned from a calibration capture."""
        return any(of.state is not None for of in self.tensors.values())

    @property
    def warms_up(self) -> bool:
        """Whether some tensor waits for its first tokens before it is coded."""
        return any(
            t.state is None and t.codec.warms_up(t.ctx) for key, t in self.tensors.items() if key not in self.skipped
        )

    def encode(self, layer: int, tensor: Tensor, x: mx.array) -> EncodedTensor | None:
        """Encodes one tensor of one window and counts it; None where it stays uncompressed.

        A tensor that a codec refuses in one window counts as skipped in all, those before included.
        """
        of = self.tensors[layer, tensor]
        encoded = self._encode(layer, tensor, x, self.plan.recent)
        if encoded is None:
            of.count_uncompressed(x)
        else:
            nominal = of.nominal_bytes(x.shape[-2], self.plan)
            of.count(x, encoded.nbytes, nominal, encoded.uncompressed_tokens, encoded.waiting_tokens)
        return encoded

    def encode_all(self, layer: int, tensor: Tensor, x: mx.array) -> EncodedTensor | None:
        """As `encode`, but codes the recent tokens too: which ones are recent depends on the query."""
        of = self.tensors[layer, tensor]
        encoded = self._encode(layer, tensor, x, 0)
        if encoded is None:
            of.count_uncompressed(x)
        else:
            nominal = of.nominal_bytes(x.shape[-2], self.plan)
            recent = min(self.plan.recent, x.shape[-2] - encoded.segments.sinks)
            resident = encoded.nbytes if recent == 0 else nominal
            of.count(x, resident, nominal, encoded.uncompressed_tokens + recent, encoded.waiting_tokens)
        return encoded

    def _encode(self, layer: int, tensor: Tensor, x: mx.array, recent: int) -> EncodedTensor | None:
        of = self.tensors[layer, tensor]
        if (layer, tensor) in self.skipped:
            return None
        try:
            encoded = encode_tensor(of.codec, x, of.ctx, self.plan.sinks, recent, of.state)
        except Unsupported as e:
            self.skipped[layer, tensor] = str(e)
            self.refused_midway |= of.tokens > 0
            of.count_all_uncompressed()
            return None
        mx.eval(encoded.arrays)
        for key, array in encoded.coded.shared.items():
            if self._shared.setdefault(key, array.nbytes) != array.nbytes:
                raise ValueError(f"{of.codec.name} shares two different arrays as {key}")
            self._users.setdefault(key, set()).add((layer, tensor))
        return encoded

    def shared_bytes(self, keys: Iterable[TensorKey]) -> int:
        """Bytes of what is shared among these tensors and used by no other."""
        group = set(keys)
        return sum(size for key, size in self._shared.items() if self._users[key] <= group)

    def check_something_compressed(self) -> None:
        """Raises `InputError` if not a single token was coded: such a run says nothing."""
        if any(t.uncompressed_tokens < t.tokens for t in self.tensors.values()):
            return
        reasons = "; ".join(sorted(set(self.skipped.values())))
        if not reasons:
            learning = " and the 64 that a codec learns from" if self.warms_up else ""
            remedy = ", --calibration, or center=none" if self.warms_up else ""
            reasons = (
                f"the windows leave no token to code beside {self.plan.sinks} sinks, {self.plan.recent} recent ones"
                f"{learning}; use longer windows{remedy}"
            )
        raise InputError(f"{self.plan.codec} compressed nothing: {reasons}")

    def sizes(self, keys: Iterable[TensorKey]) -> Metrics:
        """Bits and bytes of some tensors together, with what they alone share."""
        keys = list(keys)
        tensors = [self.tensors[key] for key in keys]
        shared = self.shared_bytes(keys)
        elements, fp16 = sum(t.elements for t in tensors), sum(t.fp16 for t in tensors)
        resident, nominal = sum(t.resident for t in tensors) + shared, sum(t.nominal for t in tensors) + shared
        bits = np.average([self._bits_nominal(key) for key in keys], weights=[t.elements for t in tensors])
        return {
            "bits_nominal": lower(float(bits), "bits/element"),
            "bits_effective": lower(8 * resident / elements if elements else None, "bits/element"),
            "bytes_resident": lower(resident, "bytes"),
            "bytes_nominal": lower(nominal, "bytes"),
            "bytes_fp16": Metric(value=fp16, unit="bytes"),
            "ratio": Metric(value=fp16 / resident if resident else None, unit="x", higher_is_better=True),
        }

    def _bits_nominal(self, key: TensorKey) -> float:
        of = self.tensors[key]
        size: int = getattr(mx, of.ctx.cache_dtype).size
        return 8.0 * size if key in self.skipped else of.codec.bits_nominal(of.ctx)

    def row(self, layer: int, tensor: Tensor | Literal["both"], metrics: Metrics, heads: list[Metrics]) -> LayerResult:
        """What was measured of one layer's keys, values or both, with the sizes beside it."""
        keys: list[TensorKey] = [(layer, t) for t in TENSORS if tensor in (t, "both")]
        of = [self.tensors[key] for key in keys]
        return LayerResult(
            layer=layer,
            tensor=tensor,
            codec=of[0].spec if len({t.spec for t in of}) == 1 else " | ".join(t.spec for t in of),
            center=of[0].codec.centring(of[0].ctx),
            metrics=metrics | self.sizes(keys),
            heads=heads,
        )

    def result(self, total: Metrics, by_tensor: Mapping[Tensor, Metrics], layers: list[LayerResult]) -> CodecResult:
        """What was measured in all, with the sizes beside it."""
        return CodecResult(
            codec=str(self.plan.codec),
            total=total | self.sizes(self.tensors),
            by_tensor={t: by_tensor.get(t, {}) | self.sizes(k for k in self.tensors if k[1] == t) for t in TENSORS},
            layers=layers,
            skipped=[SkippedTensor(layer=layer, tensor=name, reason=r) for (layer, name), r in self.skipped.items()],
            notes=list(self._notes()),
        )

    def _notes(self) -> Iterable[str]:
        if self.skipped:
            yield "skipped tensors are counted uncompressed, in the cache's dtype if they fit it"
        if self.plan.values_stand_in:
            yield f"{self.plan.codec.keys.name} codes keys alone; values take {self.plan.codec.values}"
        remarks = Counter(
            remark for key, of in self.tensors.items() if key not in self.skipped for remark in of.codec.remarks(of.ctx)
        )
        yield from (f"{remark} ({count} tensors)" for remark, count in remarks.items())
        for name in TENSORS:
            of_name = [t for t in self.tensors.values() if t.ctx.tensor == name]
            if all(t.uncompressed_tokens == t.tokens for t in of_name):
                yield f"not one token of the {name} was coded"
        waiting = sum(t.waiting_tokens for t in self.tensors.values())
        tokens = sum(t.tokens for t in self.tensors.values())
        if waiting:
            yield f"{waiting / tokens:.1%} of the tokens stay uncompressed: their caches are too short to learn from"


def lower(value: float | None, unit: str) -> Metric:
    """A metric of which less is better."""
    return Metric(value=value, unit=unit, higher_is_better=False)
