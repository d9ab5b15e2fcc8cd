"""One layer's keys or values in a cache: sinks, a coded middle that grows, and a raw tail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import mlx.core as mx
import numpy as np

from tqcli.cache.buffers import STEP, TokenBuffers, own
from tqcli.codecs.base import Codec, Encoded, State, Unsupported, keep_uncompressed
from tqcli.codecs.context import LayerContext, RotaryParameters
from tqcli.codecs.identity import Identity
from tqcli.codecs.spec import CodecSpec
from tqcli.codecs.warm_up import WARM_UP_TOKENS
from tqcli.errors import InputError
from tqcli.kernels.attend import Raw, Tokens
from tqcli.kernels.runtime import chosen

_DECODED = "for so many queries keys are decoded, which is quicker"


@dataclass(frozen=True)
class Step:
    """What is at hand between an update and the attention that goes with it."""

    first: int
    """Position of the update's first token."""
    coded: int
    """Where the coded tokens ended before the update; `raw` begins here."""
    raw: mx.array
    """[vectors, tokens, head_dim]: the old tail and the update, in the cache's dtype."""
    ready: bool
    """Whether the codec had what it learns before the update."""


class TensorCache:
    """Keeps what attention needs of one layer's keys, or of its values; they come in [vectors, tokens, head_dim].

    vectors is batch * n_kv_heads. The first `sinks` tokens and the `recent` last ones are kept in the dtype
    `ctx.cache_dtype`, to which every token is rounded when it comes; what lies between is coded and packed. A codec
    that learns from its first tokens leaves them raw until it has `WARM_UP_TOKENS` of them.

    state: what was learned from a calibration capture for this tensor.
    Raises `Unsupported` if the codec can't code this shape and `InputError` if it needs a calibration.
    """

    def __init__(
        self, spec: CodecSpec, ctx: LayerContext, sinks: int = 0, recent: int = 0, state: State | None = None
    ) -> None:
        self.spec, self.sinks, self.recent = spec, sinks, recent
        self.ctx = replace(ctx, positions=None)
        self.codec = spec.build(ctx.tensor)
        self.codec.check(ctx)
        if reason := self.codec.unsupported(ctx):
            raise Unsupported(reason)
        learns = bool(self.codec.learns(ctx))
        if learns and state is None and self.codec.needs_calibration:
            raise InputError(f"{spec} learns from another text: give a capture of one, --calibration (Python: states)")
        self._calibrated = learns and state is not None
        self._state: dict[str, mx.array] | None = {} if not learns else None if state is None else dict(state)
        self._shared: dict[str, mx.array] | None = None
        self._first: mx.array | None = None
        """The sinks."""
        self._buffers = TokenBuffers()
        self._dropped = 0
        """Coded tokens that have left the sliding window and are no longer held."""
        self._tail: mx.array | None = None
        self._step: Step | None = None

    @property
    def step(self) -> Step:
        """The update that is not yet attended to. Raises `RuntimeError` if there is none."""
        if self._step is None:
            raise RuntimeError("each update of a compressed cache is followed by one call of attend")
        return self._step

    @property
    def pending(self) -> bool:
        """Whether an update has not been attended to."""
        return self._step is not None

    @property
    def sinks_held(self) -> int:
        """Tokens held as sinks."""
        return 0 if self._first is None else self._first.shape[1]

    @property
    def tokens(self) -> int:
        """Tokens seen, those that are no longer held included."""
        return self._coded_stop + (0 if self._tail is None else self._tail.shape[1])

    @property
    def coded_tokens(self) -> int:
        """Tokens that have been coded, those that have left a sliding window since included."""
        return self._dropped + self._buffers.count

    @property
    def trimmable(self) -> bool:
        """Whether the last tokens can be taken back: not after tokens have left the sliding window."""
        return not self._dropped

    @property
    def lossless(self) -> bool:
        """Whether the codec keeps each token as it comes."""
        return self.codec.name == Identity.name and not self.codec.learns(self.ctx)

    @property
    def nbytes(self) -> int:
        """Bytes of the live buffers, as allocated, and of what was learned from the cache itself."""
        raw = sum(array.nbytes for array in (self._first, self._tail) if array is not None)
        learned = 0 if self._calibrated or not self._state else sum(a.nbytes for a in self._state.values())
        return raw + learned + self._buffers.nbytes

    @property
    def shared(self) -> dict[str, mx.array]:
        """What other caches have in common with this one, by name: rotations, codebooks, calibrated states."""
        state = self._state or {}
        calibrated = {self.codec.shared_name(name, self.ctx): state[name] for name in state if self._calibrated}
        return (self._shared or {}) | calibrated

    def append(self, new: mx.array) -> None:
        """Takes up tokens [vectors, tokens, head_dim] and codes those that are no longer recent."""
        if self._step is not None:
            raise RuntimeError(
                "attention did not go through the compressed cache: run the model inside "
                "`with compressed_attention(model)`, or call install(model) before"
            )
        first, count = self.tokens, new.shape[1]
        x = keep_uncompressed(new, self.ctx)
        sinks = min(max(0, self.sinks - self.sinks_held), count)
        if sinks:
            taken = own(x, 0, sinks)
            self._first = taken if self._first is None else mx.concatenate([self._first, taken], axis=1)
            x = x[:, sinks:]
        raw = x if self._tail is None else mx.concatenate([self._tail, x], axis=1)
        coded, ready = self._coded_stop, self._state is not None
        stop = first + count - self.recent
        if self._calibrated:
            self._tile_state(new.shape[0])
        elif not ready and stop - self.sinks >= WARM_UP_TOKENS:
            self._state = dict(self.codec.calibrate(raw[:, :WARM_UP_TOKENS], self._at(coded, coded + WARM_UP_TOKENS)))
        leaving = max(0, stop - coded) if self._state is not None else 0
        self._step = Step(first, coded, raw, ready)
        if leaving:
            self._code(raw[:, :leaving], coded, first)
        self._tail = own(raw, leaving, raw.shape[1]) if raw.shape[1] > leaving else None

    def finish(self) -> None:
        """Lets go of the step, and of coded tokens that have left the sliding window, `STEP` or more at a time."""
        self._step = None
        if self.ctx.window is None or not self._buffers.count:
            return
        left = min(self.tokens - self.ctx.window + 1 - self.sinks_held - self._dropped, self._buffers.count)
        if left >= STEP or left == self._buffers.count:
            self._buffers.drop(left)
            self._dropped += left

    def trim(self, tokens: int) -> None:
        """Takes back the last tokens; those before that were coded stay coded. To nothing coded, it begins anew."""
        if not self.trimmable:
            raise ValueError("a sliding-window cache that has dropped tokens can't be trimmed")
        keep, self._step = max(0, self.tokens - tokens), None
        coded = self._coded_stop
        if self._tail is not None:
            self._tail = own(self._tail, 0, keep - coded) if keep > coded else None
        self._buffers.truncate(keep - self.sinks_held)
        if keep < self.sinks_held and self._first is not None:
            self._first = own(self._first, 0, keep) if keep else None
        if not self._buffers.count and not self._calibrated and self._state:
            self._state = None

    def coded_before(self, position: int) -> int:
        """Where the tokens end that the query at a position of this step sees coded; they begin after the sinks."""
        stop = position + 1 - self.recent
        if self._state is None or (not self.step.ready and stop - self.sinks < WARM_UP_TOKENS):
            return self.step.coded
        return max(self.step.coded, stop)

    def raw(self, start: int, stop: int) -> mx.array:
        """Tokens start to stop [vectors, tokens, head_dim] as they came: sinks, or tokens of this step."""
        if self._first is not None and stop <= self.sinks_held:
            return self._first[:, start:stop]
        return self.step.raw[:, start - self.step.coded : stop - self.step.coded]

    def whole(self, start: int) -> mx.array:
        """All tokens from `start` on, where none has been coded or the codec is lossless."""
        base, parts = self.sinks_held, []
        if self._first is not None and start < base:
            parts.append(self._first[:, start:])
        if self.step.coded > max(start, base):
            parts.extend(self.coded(max(start, base), self.step.coded).arrays.values())
        parts.append(self.step.raw[:, max(0, start - self.step.coded) :])
        return mx.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]

    def coded(self, start: int, stop: int, after: Sequence[mx.array] = ()) -> Encoded:
        """Tokens start to stop in coded form. What is computed of them waits until `after` is there."""
        base = self.sinks_held + self._dropped
        arrays = self._buffers.read(start - base, stop - base)
        if after:
            waiting = mx.depends(list(arrays.values()), list(after))
            arrays = dict(zip(arrays, cast(list[mx.array], waiting), strict=True))
        return Encoded(arrays, stop - start, self._shared or {}, self._state or {})

    def scores(self, q: mx.array, start: int, stop: int, after: Sequence[mx.array] = ()) -> mx.array:
        """The codec's estimates of <q, key> for coded keys: q [vectors, queries, head_dim], one group a vector."""
        ctx, coded = replace(self._at(start, stop), n_q_heads=self.ctx.n_kv_heads), self.coded(start, stop, after)
        if self.codec.quicker_decoded(q.shape[1], stop - start, ctx):
            if operation := self.codec.scores_operation:
                chosen(operation, q.size, unsupported=_DECODED)
            return Codec.scores(self.codec, q, coded, ctx)
        return self.codec.scores(q, coded, ctx)

    def decoded(self, start: int, stop: int, after: Sequence[mx.array] = ()) -> mx.array:
        """Coded tokens, float32 [vectors, tokens, head_dim]."""
        return self.codec.decode(self.coded(start, stop, after), self._at(start, stop))

    def packed(self) -> Tokens | str:
        """What fused attention reads in this step, or why it can't."""
        if not self._buffers.count:
            return f"{self.ctx.tensor} of which none is coded yet"
        # All that is allocated: a part of it would have to be copied.
        held = Encoded(self._buffers.arrays, self._buffers.count, self._shared or {}, self._state or {})
        reader = self.codec.attend_reader(held, self.ctx)
        if reader is None:
            return f"{self.spec} has no reader for the kernel"
        raw = self.step.raw if self._first is None else mx.concatenate([self._first, self.step.raw], axis=1)
        return Tokens(reader, self.sinks_held + self._dropped, Raw(raw, self.sinks_held, self.step.coded))

    def save(self) -> tuple[dict[str, Any], list[mx.array]]:
        """What `load` takes: a description made of JSON's types, and arrays."""
        own_arrays = {"sinks": self._first, "tail": self._tail}
        held = {name: array for name, array in own_arrays.items() if array is not None}
        coded = self._buffers.arrays
        state = self._state or {}
        described = {
            "spec": [self.spec.name, self.spec.bits, self.spec.options],
            "context": asdict(self.ctx),
            "sinks": self.sinks,
            "recent": self.recent,
            "calibrated": self._calibrated,
            "dropped": self._dropped,
            "coded_tokens": self._buffers.count,
            "held": list(held),
            "coded": list(coded),
            "state": None if self._state is None else list(state),
        }
        return described, [*held.values(), *coded.values(), *state.values()]

    @classmethod
    def load(cls, described: Mapping[str, Any], arrays: Sequence[mx.array]) -> TensorCache:
        """A cache from what `save` gave."""
        name, bits, options = described["spec"]
        context = dict(described["context"])
        if context["rotary"] is not None:
            rotary = context["rotary"]
            context["rotary"] = RotaryParameters(tuple(rotary["frequencies"]), rotary["interleaved"])
        spec = CodecSpec(name, bits, tuple((key, value) for key, value in options))
        left = iter(arrays)
        held = {name: next(left) for name in described["held"]}
        coded = {name: next(left) for name in described["coded"]}
        state = None if described["state"] is None else {name: next(left) for name in described["state"]}
        calibrated = state if described["calibrated"] else None
        made = cls(spec, LayerContext(**context), described["sinks"], described["recent"], calibrated)
        made._state, made._dropped = state, described["dropped"]
        made._first, made._tail = held.get("sinks"), held.get("tail")
        made._buffers.arrays, made._buffers.count = coded, described["coded_tokens"]
        if coded:
            made._shared = made._encode(mx.zeros((next(iter(coded.values())).shape[0], 0, made.ctx.head_dim)), 0).shared
        return made

    @property
    def _coded_stop(self) -> int:
        return self.sinks_held + self.coded_tokens

    def _at(self, start: int, stop: int) -> LayerContext:
        return replace(self.ctx, positions=np.arange(start, stop), sinks=self.sinks)

    def _code(self, x: mx.array, start: int, first: int) -> None:
        """Codes x, its first token at `start`, but for what no query from position `first` on sees any more."""
        left = 0 if self.ctx.window is None else min(first - self.ctx.window + 1 - start, x.shape[1])
        if left > 0:
            self._dropped += self._buffers.count + left
            self._buffers.drop(self._buffers.count)
            x, start = x[:, left:], start + left
        if x.shape[1]:
            encoded = self._encode(x, start)
            self._shared = encoded.shared
            self._buffers.append(encoded.arrays, x.shape[1])

    def _encode(self, x: mx.array, start: int) -> Encoded:
        try:
            return self.codec.inner.encode(x, self._at(start, start + x.shape[1]), self._state or None)
        except Unsupported as e:
            raise Unsupported(f"{self.spec} can't code the {self.ctx.tensor} of layer {self.ctx.layer}: {e}") from e

    def _tile_state(self, vectors: int) -> None:
        """Repeats what was calibrated a head for each sequence of the batch."""
        for name, array in (self._state or {}).items():
            if array.ndim > 2 and array.shape[0] != vectors and self._state is not None:
                self._state[name] = mx.concatenate([array] * (vectors // array.shape[0]))
