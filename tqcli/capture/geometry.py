"""Describes each layer from what was seen of it at work, not from a configuration: shapes, scale, mask, rotation."""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
import numpy as np

from tqcli.capture.attention import architecture, leaves
from tqcli.capture.manifest import LayerRecord, SkippedLayer
from tqcli.capture.rotary import probe_rotary
from tqcli.capture.window import LayerCapture, WindowCapture
from tqcli.codecs.context import RotaryParameters
from tqcli.errors import InputError
from tqcli.manifests import Dtype


def describe_layers(
    model: Any, cache: list[Any], window: WindowCapture, asked: list[int]
) -> tuple[list[LayerRecord], list[SkippedLayer]]:
    """The layers of `asked` that were captured, and those that can't be, with the reason.

    `cache` is the prompt cache after the window. Raises `InputError` if nothing was captured.
    """
    records, skipped = [], []
    for layer in asked:
        reason = _why_not(model, cache, window, layer)
        if reason is None:
            records.append(_record(layer, window.layers[layer]))
        else:
            skipped.append(SkippedLayer(layer=layer, reason=reason))
    if not records:
        reasons = "; ".join(sorted({s.reason for s in skipped})) or "no layer was asked for"
        raise InputError(f"nothing can be captured from the architecture {architecture(model)}: {reasons}")
    return records, skipped


def _why_not(model: Any, cache: list[Any], window: WindowCapture, layer: int) -> str | None:
    if layer in window.readers:
        return f"it reads the keys and values of layer {window.readers[layer]}"
    if layer in window.doubled:
        return "it attends over more than one cache"
    if layer not in window.layers:
        if len(cache) != len(model.layers):
            return "no attention over a cache of its own was seen"
        kinds = ", ".join(type(leaf).__name__ for leaf in leaves(cache[layer]) if leaf is not None)
        return f"no attention over keys and values was seen (its cache: {kinds or 'none'})"
    seen = window.layers[layer]
    tokens, chunk = seen.keys.shape[1], getattr(seen.cache, "chunk_size", None)
    if chunk is not None and tokens > chunk:
        return f"it attends within chunks of {chunk} tokens; capture windows of --tokens {chunk} or fewer"
    return _not_as_cached(seen)


def _not_as_cached(seen: LayerCapture) -> str | None:
    """Why attention's keys and values are not what the cache holds, as in latent attention; None if they are."""
    cached = seen.cache.keys_and_values()
    for name, ours, theirs in zip(("keys", "values"), (seen.keys, seen.values), cached, strict=True):
        if theirs.ndim != 4 or (theirs.shape[1], theirs.shape[3]) != (ours.shape[0], ours.shape[2]):
            return (
                f"its cache doesn't hold the {name} that attention reads but something of shape "
                f"{theirs.shape[1]} x {theirs.shape[-1]} a token, as multi-head latent attention does"
            )
        length = min(theirs.shape[2], ours.shape[1])
        if not mx.array_equal(theirs[0, :, -length:], ours[:, -length:], equal_nan=True).item():
            return f"the {name} that its attention reads are not those in its cache"
    return None


def _record(layer: int, seen: LayerCapture) -> LayerRecord:
    window, notes = _mask(seen)
    rotary, note = _rotary(seen)
    notes += [note] if note else []
    if seen.sinks is not None:
        notes.append("its softmax counts a learned sink logit a head")
    return LayerRecord(
        layer=layer,
        kind="full" if window is None else "sliding",
        n_q_heads=seen.queries.shape[0],
        n_kv_heads=seen.keys.shape[0],
        head_dim=seen.keys.shape[-1],
        value_head_dim=seen.values.shape[-1],
        scale=seen.scale,
        window=window,
        rotary=rotary,
        dtype=cast(Dtype, str(seen.keys.dtype).rpartition(".")[2]),
        notes=tuple(notes),
    )


def _mask(seen: LayerCapture) -> tuple[int | None, list[str]]:
    """The sliding window in tokens, None if there is none, and what else the mask does."""
    window = getattr(seen.cache, "max_size", None)
    if not isinstance(seen.mask, mx.array):
        return window, []
    if seen.mask.dtype != mx.bool_:
        return window, ["its attention adds a bias to the logits"]
    # The last query: it sees everything before it, or the last `window` of that.
    rows = np.array(seen.mask[..., -1, :]).reshape(-1, seen.mask.shape[-1])
    visible = int(rows[0].sum())
    if np.any(rows != rows[0]) or not rows[0, len(rows[0]) - visible :].all():
        return window, ["its mask is neither causal nor a sliding window"]
    return (visible if visible < seen.keys.shape[1] else window), []


def _rotary(seen: LayerCapture) -> tuple[RotaryParameters | None, str | None]:
    """The rotary embedding that the cached keys went through last, and why it isn't known where there was one."""
    steps = seen.ropes
    if not any(steps):
        return None, None
    used = [next((rope for rope, is_keys in step if is_keys.item()), None) for step in steps]
    if any(rope is None for rope in used):
        return None, "its cached keys are not the output of its rotary embedding"
    parameters = {rope.parameters() for rope in used if rope is not None}
    if len(parameters) > 1:
        return None, "its rotary embedding changes its frequencies with the length of the text"
    if not any(parameters.pop().frequencies):
        return None, None
    last = used[-1]
    head_dim, tokens = seen.keys.shape[-1], seen.keys.shape[1]
    rotary = None if last is None else probe_rotary(last.turn, head_dim, max(tokens, 2))
    return rotary, None if rotary else "its rotary embedding is not a rotation by angles linear in the position"
