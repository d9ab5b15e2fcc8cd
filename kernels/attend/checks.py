"""What fused attention can't take."""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.attend.packed import codes_of
from tqcli.kernels.attend.packed_checks import check_reader
from tqcli.kernels.attend.parts import Seen
from tqcli.kernels.attend.readers import Reader, Tokens

QUERIES_AT_MOST = 16
HEAD_DIM_AT_MOST = 256
WIDTH_AT_MOST = 6144
"""Floats of queries in threadgroup memory: 24 of the 32 KiB that every device has."""
_POSITIONS_AT_MOST = 1 << 30
"""Positions and what is added to them are int32."""


def check(q: mx.array, keys: Tokens, values: Tokens, seen: Seen, sink_logits: mx.array | None) -> None:
    """Raises `ValueError`; see `launch.attend`."""
    if q.ndim != 3 or q.dtype != mx.float32 or 0 in q.shape:
        raise ValueError(f"q must be float32 [vectors, rows, head_dim], not {q.dtype} of shape {q.shape}")
    vectors, rows, d = q.shape
    positions = len(seen.begins)
    if not 1 <= positions <= QUERIES_AT_MOST or rows % positions:
        raise ValueError(
            f"1 to {QUERIES_AT_MOST} query positions, a divisor of {rows} rows, are needed, not {positions}"
        )
    if sink_logits is not None and sink_logits.shape != (vectors, rows):
        raise ValueError(f"sink logits must be {(vectors, rows)}, not {sink_logits.shape}")
    if sink_logits is not None and not mx.issubdtype(sink_logits.dtype, mx.floating):
        raise ValueError(f"sink logits must be float, not {sink_logits.dtype}")
    _check_tokens("keys", keys, vectors, d)
    _check_tokens("values", values, vectors, values.raw.x.shape[-1] if values.raw.x.ndim else 0)
    if reason := refused(keys.reader, values.reader, d, values.raw.x.shape[-1]):
        raise ValueError(reason)
    _check_seen(keys, values, seen)


def refused(keys: Reader, values: Reader, head_dim: int, value_head_dim: int) -> str | None:
    """Why attention over such keys and values can't be fused; None where it can."""
    if max(head_dim, value_head_dim) > HEAD_DIM_AT_MOST:
        return f"heads of {max(head_dim, value_head_dim)} channels, more than {HEAD_DIM_AT_MOST}"
    if values.sketch is not None or values.packed.dims != value_head_dim:
        return "values that are sketches"
    if values.offset is not None and values.offset.frequencies:
        return "values with an offset that turns"
    if keys.dims + head_dim + 1 > WIDTH_AT_MOST:
        return f"keys of {keys.dims} coded elements, more than {WIDTH_AT_MOST - head_dim - 1}"
    return None


def _check_tokens(name: str, tokens: Tokens, vectors: int, d: int) -> None:
    raw = tokens.raw
    if (
        raw.x.ndim != 3
        or raw.x.shape[0] != vectors
        or raw.x.shape[2] != d
        or not mx.issubdtype(raw.x.dtype, mx.floating)
    ):
        raise ValueError(f"raw {name} must be float [{vectors}, n, {d}], not {raw.x.dtype} of shape {raw.x.shape}")
    if not 0 <= raw.sinks <= min(raw.first, raw.x.shape[1]):
        raise ValueError(
            f"raw {name} are {raw.x.shape[1]} tokens, of which {raw.sinks} can't be sinks and the rest from {raw.first}"
        )
    check_reader(name, tokens.reader, vectors, d)


def _check_seen(keys: Tokens, values: Tokens, seen: Seen) -> None:
    """Every token that some query sees, coded or raw, must be there."""
    if not len(seen.begins) == len(seen.ends) == len(seen.key_stops) == len(seen.value_stops):
        raise ValueError("a begin, an end and two stops are needed for each query position")
    if min(seen.begins) < 0 or max(seen.ends) > _POSITIONS_AT_MOST:
        raise ValueError(f"tokens 0 to {_POSITIONS_AT_MOST} can be seen, not {min(seen.begins)} to {max(seen.ends)}")
    segments = seen.segments()
    for name, of, stops, coded in (
        ("keys", keys, seen.key_stops, segments[:, [0, 2]]),
        ("values", values, seen.value_stops, segments[:, [0, 1]]),
    ):
        held = coded[coded[..., 1] > coded[..., 0]]
        capacity = codes_of(of.reader.packed).shape[1]
        if held.size and (held[:, 0].min() < of.first or held[:, 1].max() > of.first + capacity):
            raise ValueError(f"{name} are coded from {of.first} to {of.first + capacity} but seen so beyond")
        behind = [max(seen.sinks, begin, stop) for begin, stop in zip(seen.begins, stops, strict=True)]
        last = of.raw.first + of.raw.x.shape[1] - of.raw.sinks
        needed = [(low, end) for low, end in zip(behind, seen.ends, strict=True) if low < end]
        if needed and (min(low for low, _ in needed) < of.raw.first or max(end for _, end in needed) > last):
            raise ValueError(f"{name} are raw from {of.raw.first} to {last} but seen so beyond")
        if of.raw.sinks != seen.sinks:
            raise ValueError(f"{of.raw.sinks} sinks of {name}, not {seen.sinks}")
