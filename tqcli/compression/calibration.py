"""What codecs learn from a calibration capture: another text, run through the same model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.capture.manifest import CaptureManifest, ShardRecord
from tqcli.capture.store import Capture
from tqcli.codecs.base import State
from tqcli.codecs.context import LayerContext, Tensor
from tqcli.codecs.warm_up import WarmUp
from tqcli.compression.plan import CompressionPlan
from tqcli.compression.tensor import Segments, coded_context
from tqcli.errors import InputError
from tqcli.progress import progress

_SHARED_TOKENS = 32
_REMEMBERED = 16
_learned: dict[Hashable, Mapping[int, State]] = {}
"""What this process learned last: several measures of one codec ask for the same."""
States = dict[tuple[int, Tensor], State]
"""What was learned, by layer and tensor; a tensor whose codec learns nothing isn't in it."""


def calibrate(plan: CompressionPlan, evaluated: Capture, calibration: Capture | None) -> States:
    """Lets every codec of the plan learn from `calibration`, over all its windows but for their sinks.

    Without a calibration capture nothing is learned beforehand. Raises `InputError` where a codec needs one, and for
    one that is of another model, lacks a layer, or shares text with what is evaluated.
    """
    if calibration is not None:
        check_calibration(evaluated, calibration)
    return learn(plan, evaluated, calibration)


def learn(plan: CompressionPlan, evaluated: Capture, calibration: Capture | None) -> States:
    """As `calibrate`, without a look at whether the captures go together."""
    wanted: dict[tuple[WarmUp, Tensor], list[int]] = {}
    tensors: tuple[Tensor, ...] = ("keys", "values")
    for layer in evaluated.layers:
        for tensor in tensors:
            codec, ctx = plan.codec_of(layer, tensor), evaluated.context(layer, tensor)
            if codec.learns(ctx) and codec.unsupported(ctx) is None:
                if calibration is None and codec.needs_calibration:
                    raise InputError(
                        f"{codec.name} learns from another text: capture one (tq capture --seed 1 --out ...) and name "
                        "it with --calibration"
                    )
                wanted.setdefault((codec, tensor), []).append(layer)
    states: States = {}
    if calibration is not None:
        tokens = calibration.manifest.dataset.tokens
        if wanted and tokens <= plan.sinks:
            raise InputError(
                f"calibration windows of {tokens} tokens leave none to learn from beside {plan.sinks} sinks; "
                "capture longer ones"
            )
        text = [shard.sha256 for shard in calibration.manifest.shards]
        with progress(sum(map(len, wanted.values())), "calibrate", "tensor") as bar:
            for (codec, tensor), layers in wanted.items():
                key = (codec, tensor, tuple(layers), plan.sinks, *text)
                if key not in _learned:
                    seen = _tensors(calibration, tensor, layers, plan.sinks, bar.update)
                    _remember(key, codec.calibrate_layers(seen))
                states |= {(layer, tensor): state for layer, state in _learned[key].items()}
    return states


def _remember(key: Hashable, states: Mapping[int, State]) -> None:
    while len(_learned) >= _REMEMBERED:
        del _learned[next(iter(_learned))]
    _learned[key] = states


def check_calibration(evaluated: Capture, calibration: Capture) -> None:
    """Raises `InputError` unless the captures are of one model and the same layers, and share no text.

    They share text where `_SHARED_TOKENS` tokens in a row are in windows of both, whatever files they come from.
    """
    here, there = evaluated.manifest, calibration.manifest
    where = f"the calibration capture {calibration.folder}"
    if (here.model.weights_sha256, here.model.config_sha256) != (there.model.weights_sha256, there.model.config_sha256):
        raise InputError(
            f"{where} is of {there.model.name}, not of the {here.model.name} that is measured; capture that one"
        )
    if missing := sorted(set(evaluated.layers) - set(calibration.layers)):
        raise InputError(f"{where} lacks layer {missing[0]}; capture the same layers")
    if there.decoded_from:
        raise InputError(f"{where} was decoded from {there.decoded_from}; calibrate with a capture of the model itself")
    shared = _shared_text(here, there) if not here.decoded_from else _shared_place(here, there)
    if shared is not None:
        raise InputError(
            f"{where} shares text with what is measured (window {shared[1].window} with window {shared[0].window}, in "
            f"{shared[1].document}); capture other windows with another --seed, or another text"
        )


def _shared_text(here: CaptureManifest, there: CaptureManifest) -> tuple[ShardRecord, ShardRecord] | None:
    """Two windows that have `_SHARED_TOKENS` tokens in a row in common; or fewer, where the windows are shorter."""
    length = min(_SHARED_TOKENS, here.dataset.tokens, there.dataset.tokens)
    measured = {run: shard for shard in here.shards for run in _runs(shard.token_ids, length)}
    for shard in there.shards:
        for run in _runs(shard.token_ids, length):
            if run in measured:
                return measured[run], shard
    return None


def _shared_place(here: CaptureManifest, there: CaptureManifest) -> tuple[ShardRecord, ShardRecord] | None:
    """Two windows of the same text that overlap, told by their places: a decoded capture has no token ids."""
    if here.dataset.text_sha256 != there.dataset.text_sha256:
        return None
    lengths = [manifest.dataset.tokens - manifest.dataset.bos for manifest in (here, there)]
    for a in here.shards:
        for b in there.shards:
            if a.document == b.document and a.start < b.start + lengths[1] and b.start < a.start + lengths[0]:
                return a, b
    return None


def check_apart(windows: NDArray[np.int32], calibration: Capture) -> None:
    """Raises `InputError` if token windows [windows, tokens] share text with a calibration capture."""
    length = min(_SHARED_TOKENS, windows.shape[1], calibration.manifest.dataset.tokens)
    learned = {run: shard for shard in calibration.manifest.shards for run in _runs(shard.token_ids, length)}
    for number, ids in enumerate(windows):
        if shared := _runs(ids.tolist(), length) & learned.keys():
            window = learned[min(shared)].window
            raise InputError(
                f"the calibration capture {calibration.folder} shares text with what is measured (window {window} with "
                f"window {number}); capture other windows with another --seed, or another text"
            )


def _runs(token_ids: list[int], length: int) -> set[bytes]:
    """Every `length` tokens in a row."""
    ids = np.array(token_ids, dtype=np.int32)
    return {ids[i : i + length].tobytes() for i in range(len(ids) - length + 1)}


def _tensors(
    calibration: Capture, tensor: Tensor, layers: list[int], sinks: int, on_done: Callable[[], object]
) -> Iterator[tuple[LayerContext, mx.array]]:
    """Each layer's tensor with the windows one after the other, [n_kv_heads, windows * tokens, head_dim].

    `on_done` is called when the next one is asked for.
    """
    segments = Segments.split(calibration.manifest.dataset.tokens, sinks, 0)
    for layer in layers:
        ctx = coded_context(calibration.context(layer, tensor), segments)
        parts = [window.tensor(layer, tensor)[..., segments.sinks :, :] for window in calibration.windows()]
        positions = np.tile(np.arange(segments.sinks, segments.sinks + segments.coded), len(parts))
        yield replace(ctx, positions=positions), mx.concatenate(parts, axis=-2)
        on_done()
