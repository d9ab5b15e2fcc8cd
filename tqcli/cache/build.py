"""Makes a model's prompt cache, with compressed entries where a plan and the model's layers allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import mlx.core as mx
import numpy as np

from tqcli.cache.compressed import CompressedKVCache
from tqcli.cache.tensor import TensorCache
from tqcli.capture.attention import Attention, leaves, replaced_attention
from tqcli.capture.geometry import describe_layers
from tqcli.capture.manifest import LayerRecord
from tqcli.capture.window import capture_window
from tqcli.codecs.base import State, Unsupported
from tqcli.codecs.context import LayerContext, Tensor
from tqcli.codecs.spec import CodecSpec
from tqcli.compression.plan import CompressionPlan
from tqcli.errors import InputError
from tqcli.manifests import Dtype

_PROBE_TOKENS = 16
_PROBE_IDS = 64
"""Token ids of the probe are below this, so that every vocabulary has them."""
_TENSORS: tuple[Tensor, Tensor] = ("keys", "values")
_UNCODED = CodecSpec("identity")


@dataclass(frozen=True)
class Uncompressed:
    """Something that stays as it was, and why."""

    layer: int
    tensor: Tensor | None
    """None for the whole layer, whose cache is mlx-lm's own."""
    reason: str


class CompressedCaches(list[Any]):
    """A prompt cache as mlx-lm takes it: an entry a layer, compressed or mlx-lm's own."""

    def __init__(self, entries: Sequence[Any], skipped: Sequence[Uncompressed]) -> None:
        super().__init__(entries)
        self.skipped = list(skipped)
        """Layers and tensors that aren't compressed, with the reason."""

    @property
    def compressed(self) -> dict[int, CompressedKVCache]:
        """The compressed caches by layer."""
        found = [leaf for entry in self for leaf in leaves(entry) if isinstance(leaf, CompressedKVCache)]
        return {cache.keys.ctx.layer: cache for cache in found}

    @property
    def shared_bytes(self) -> int:
        """Bytes of what the compressed caches share, counted once: rotations, codebooks, calibrated states."""
        shared: dict[str, mx.array] = {}
        for cache in self.compressed.values():
            shared |= cache.shared
        return sum(array.nbytes for array in shared.values())


def compress_cache(
    model: Any,
    plan: CompressionPlan,
    *,
    layers: Sequence[LayerRecord] | None = None,
    states: Mapping[tuple[int, Tensor], State] | None = None,
    only: Sequence[int] | None = None,
    cache_dtype: str | None = None,
) -> CompressedCaches:
    """`make_prompt_cache(model)` with a `CompressedKVCache` for each layer that attends over keys and values.

    layers: how the layers attend, as a capture of the model knows it; by default that is found by running a few
    tokens, which tells in any case which caches can't be replaced. states: what codecs learned from a calibration
    capture. only: the layers to compress, all if None. cache_dtype: of what stays uncompressed, `float16`, `bfloat16`
    or `float32`; by default what the model computes keys in.

    Layers that can't be compressed keep their own cache and are named in `skipped`. Raises `InputError` if none can,
    for a plan that doesn't fit the layers, and for a codec that lacks the calibration it needs.
    """
    from mlx_lm.models.cache import make_prompt_cache

    if cache_dtype not in (None, "float64", *get_args(Dtype)):
        raise InputError(f"cache_dtype must be one of {', '.join(get_args(Dtype))}, not {cache_dtype!r}")
    entries = list(make_prompt_cache(model))
    probe = _probe(model)
    known = {record.layer: record for record in (probe.records if layers is None else layers)}
    plan.check_layers(sorted(known))
    asked = range(len(model.layers)) if only is None else sorted(set(only))
    left: list[Uncompressed] = []
    done = 0
    for layer in asked:
        reason = probe.skipped.get(layer)
        if reason is None and layer not in known:
            reason = "nothing is known of how it attends"
        if reason is None:
            reason = _replace(entries, probe.places[layer], _Maker(plan, known[layer], states or {}, cache_dtype), left)
        if reason is None:
            done += 1
        else:
            left.append(Uncompressed(layer, None, reason))
    if not done:
        reasons = "; ".join(sorted({of.reason for of in left})) or "no layer was asked for"
        raise InputError(f"{plan.codec} compresses nothing of this model's cache: {reasons}")
    return CompressedCaches(entries, left)


@dataclass(frozen=True)
class _Maker:
    """Makes one layer's compressed cache."""

    plan: CompressionPlan
    record: LayerRecord
    states: Mapping[tuple[int, Tensor], State]
    cache_dtype: str | None

    def context(self, tensor: Tensor, window: int | None) -> LayerContext:
        record, dtype = self.record, self.cache_dtype or self.record.dtype
        return LayerContext(
            layer=record.layer,
            tensor=tensor,
            head_dim=record.head_dim if tensor == "keys" else record.value_head_dim,
            n_q_heads=record.n_q_heads,
            n_kv_heads=record.n_kv_heads,
            scale=record.scale,
            window=window,
            cache_dtype=dtype,
            capture_dtype=dtype,
            rotary=record.rotary,
        )

    def make(self, window: int | None, rotating: bool, left: list[Uncompressed]) -> CompressedKVCache | str:
        """The cache, or why the layer keeps its own; a tensor alone that can't be coded is added to `left`."""
        layer, plan, made = self.record.layer, self.plan, []
        refused: list[Uncompressed] = []
        for tensor in _TENSORS:
            ctx = self.context(tensor, window)
            try:
                spec, state = plan.spec(layer, tensor), self.states.get((layer, tensor))
                made.append(TensorCache(spec, ctx, plan.sinks, plan.recent, state))
            except Unsupported as e:
                refused.append(Uncompressed(layer, tensor, str(e)))
                made.append(TensorCache(_UNCODED, ctx, plan.sinks, plan.recent))
        if len(refused) == len(_TENSORS):
            return "; ".join(dict.fromkeys(of.reason for of in refused))
        left += refused
        return CompressedKVCache(made[0], made[1], rotating)


def _replace(entries: list[Any], index: int, maker: _Maker, left: list[Uncompressed]) -> str | None:
    """Puts a compressed cache in the place of the entry's KV cache; or says why not."""
    from mlx_lm.models.cache import KVCache, RotatingKVCache

    found = [leaf for leaf in leaves(entries[index]) if type(leaf) in (KVCache, RotatingKVCache)]
    if len(found) != 1:
        kinds = ", ".join(type(leaf).__name__ for leaf in leaves(entries[index]))
        return f"its cache is not one KVCache or RotatingKVCache but {kinds}"
    rotating = type(found[0]) is RotatingKVCache
    if rotating and found[0].keep:
        return f"its rotating cache keeps the first {found[0].keep} tokens"
    window = found[0].max_size if rotating else maker.record.window
    made = maker.make(window, rotating, left)
    if isinstance(made, str):
        return made
    if entries[index] is found[0]:
        entries[index] = made
    else:
        entries[index].caches = type(entries[index].caches)(
            made if leaf is found[0] else leaf for leaf in entries[index].caches
        )
    return None


@dataclass
class _Probe:
    """What running a few tokens tells of a model's layers."""

    records: list[LayerRecord]
    skipped: dict[int, str]
    """Why the others can't be compressed."""
    places: dict[int, int]
    """Each layer's index in the prompt cache."""


def _probe(model: Any) -> _Probe:
    from mlx_lm.models.cache import make_prompt_cache

    cache = list(make_prompt_cache(model))
    ids = np.random.default_rng(0).integers(0, _PROBE_IDS, _PROBE_TOKENS, dtype=np.int32)
    own = {id(leaf) for entry in cache for leaf in leaves(entry)}
    fetched: dict[int, tuple[mx.array, Any]] = {}
    read_again: set[int] = set()

    def wrap(original: Attention) -> Attention:
        def watched(queries: mx.array, keys: Any, values: Any, owner: Any, *args: Any, **kwargs: Any) -> mx.array:
            if id(keys) in fetched:
                read_again.add(id(fetched[id(keys)][1]))
            elif id(owner) in own:
                fetched[id(keys)] = (keys, owner)  # held, so that no other array gets its id
            return original(queries, keys, values, owner, *args, **kwargs)

        return watched

    with replaced_attention(model, wrap):
        window = capture_window(model, cache, ids, np.arange(_PROBE_TOKENS, dtype=np.int32), _PROBE_TOKENS)
    records, refused = describe_layers(model, cache, window, list(range(len(model.layers))))
    skipped = {of.layer: of.reason for of in refused}
    # Such a cache must give out the tokens that it holds.
    shared = "another layer reads its keys and values too"
    skipped |= dict.fromkeys(window.readers.values(), shared)
    skipped |= {layer: shared for layer, seen in window.layers.items() if id(seen.cache) in read_again}
    places = {
        layer: index
        for layer, seen in window.layers.items()
        for index, entry in enumerate(cache)
        if any(leaf is seen.cache for leaf in leaves(entry))
    }
    return _Probe(records, skipped, places)
