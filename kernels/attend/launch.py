"""Checks shapes and ranges of fused attention and launches its two kernels, or calls the reference."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np

from tqcli.kernels.attend import reference
from tqcli.kernels.attend.checks import WIDTH_AT_MOST, check
from tqcli.kernels.attend.packed import (
    codes_of,
    floats_of,
    key_inputs,
    key_template,
    present,
    value_inputs,
    value_template,
)
from tqcli.kernels.attend.parts import PARTS_AT_MOST, SIMDGROUPS, Parts, Seen, divide
from tqcli.kernels.attend.prepare import restored, turn_tables
from tqcli.kernels.attend.readers import Reader, Tokens, Vectors
from tqcli.kernels.runtime import Kernel, Launch, chosen, run, too_large
from tqcli.kernels.runtime.kernel import Parameter, Size, unused

_ROWS_AT_MOST = 8
_THREADGROUP = (32 * SIMDGROUPS, 1, 1)
_LANES = (32, 1, 1)
_HERE = Path(__file__).parent

PARTIAL = Kernel(
    name="attend",
    body=_HERE / "attend.metal",
    inputs=(
        *("queries", "raw_queries"),
        *("k_codes", "k_codes2", "k_scales", "k_scales2", "k_levels", "k_raw"),
        *("v_codes", "v_codes2", "v_scales", "v_scales2", "v_levels", "v_raw"),
        *("coarse", "fine", "parts", "seen", "sizes"),
    ),
    outputs=("tops", "totals", "outputs"),
    template=(
        *("ROWS", "SIMDGROUPS", "D", "V_D", "PAIRS", "KEY_KIND", "VALUE_KIND"),
        *("K_DIMS", "K_BITS", "K_BITS2", "K_SIGNS", "K_GROUP", "K_LEVELS", "K_INLINE", "K_T"),
        *("V_BITS", "V_BITS2", "V_GROUP", "V_LEVELS", "V_INLINE", "V_T"),
    ),
    headers=(
        *("bits.h", "scales.h"),
        *("attend/read_raw.h", "attend/read_levels.h", "attend/read_affine.h", "attend/read_vectors.h"),
        "attend/turned_offset.h",
    ),
)
REDUCE = Kernel(
    name="attend_reduce",
    body=_HERE / "attend_reduce.metal",
    inputs=("tops", "totals", "outputs", "logits", "sizes"),
    outputs=("coded", "raw", "shares"),
    template=("D", "SINKS"),
)


def attend(
    q: mx.array,
    keys: Tokens,
    values: Tokens,
    seen: Seen,
    sink_logits: mx.array | None = None,
    backend: str | None = None,
) -> mx.array:
    """softmax(<q, key>) @ values, over packed and raw tokens alike; nothing packed is decoded to memory.

    q: float32 [vectors, rows, head_dim], already scaled; vectors is batch * KV heads, and a vector's rows are those of
    its query heads, `len(seen.begins)` consecutive positions each. sink_logits: float [vectors, rows], counted by the
    softmax with no value. Returns float32 [vectors, rows, value_head_dim], 0 for a query that sees nothing.
    Raises `ValueError` for shapes or dtypes that don't fit, more than 16 positions, or heads of more than 256 channels.
    """
    check(q, keys, values, seen, sink_logits)
    size = q.shape[0] * max(seen.ends) * (q.shape[-1] + values.raw.x.shape[-1])
    reason = "float64" if sink_logits is not None and sink_logits.dtype == mx.float64 else None
    taken = chosen("attend", size, backend, reason or unlaunchable(q.shape, keys, values))
    return _attend_by(taken, q, keys, values, seen, sink_logits)


def attend_by(
    backend: str, q: mx.array, keys: Tokens, values: Tokens, seen: Seen, sink_logits: mx.array | None = None
) -> mx.array:
    """`attend` by a back-end that has been chosen; a GPU's only where `unlaunchable` has no reason."""
    check(q, keys, values, seen, sink_logits)
    return _attend_by(backend, q, keys, values, seen, sink_logits)


def unlaunchable(q_shape: tuple[int, ...], keys: Tokens, values: Tokens) -> str | None:
    """Why no GPU can answer float32 queries [vectors, rows, head_dim] over such tokens, which `check` takes.

    None where it can.
    """
    if any(x.dtype == mx.float64 for of in (keys, values) for x in floats_of(of)):
        return "float64"
    vectors, rows, d = q_shape
    blocks = -(-rows // rows_at_once(rows, _width(keys.reader, d)))
    return too_large(_partial_grid(PARTS_AT_MOST, blocks, vectors), _THREADGROUP) or too_large(
        _reduce_grid(vectors, rows, values.raw.x.shape[2]), _LANES
    )


def _attend_by(
    backend: str, q: mx.array, keys: Tokens, values: Tokens, seen: Seen, sink_logits: mx.array | None
) -> mx.array:
    if backend == "mlx":
        return reference.attend(q, keys, values, seen, sink_logits)
    partial, parts = attend_launch(q, keys, values, seen)
    of_coded = parts.of_coded_values * SIMDGROUPS
    coded, raw, shares = run(reduce_launch(run(partial, backend), of_coded, sink_logits), backend)
    return restored(coded, shares, values.reader) + raw


def attend_launch(
    q: mx.array, keys: Tokens, values: Tokens, seen: Seen, size: int | None = None
) -> tuple[Launch, Parts]:
    """The first of two launches: a softmax of each simdgroup of each part, and the parts, of `size` tokens if given.

    Outputs: largest logits and sums of weights [vectors, rows, parts * 4], and sums of coded or raw values
    [vectors, rows, parts * 4, value_head_dim].
    """
    (vectors, rows, d), v_dims = q.shape, values.raw.x.shape[2]
    queries, *k_arrays = key_inputs(q, keys.reader)
    v_arrays, book = value_inputs(values.reader)
    at_once = rows_at_once(rows, _width(keys.reader, d))
    blocks = -(-rows // at_once)
    segments = seen.segments()
    parts = divide(segments, vectors * blocks, size)
    count = len(parts.table)
    frequencies = () if keys.reader.offset is None else keys.reader.offset.frequencies
    sizes = [rows, len(seen.begins), count, seen.sinks]
    for of in (keys, values):
        capacity = codes_of(of.reader.packed).shape[1]
        sizes += [capacity, of.first, of.raw.x.shape[1], of.raw.first - of.raw.sinks]
    sizes.append(book)
    inputs = [
        *(queries, q, *k_arrays, keys.raw.x, *v_arrays, values.raw.x),
        *turn_tables(frequencies, max(seen.ends, default=0)),
        *(mx.array(parts.table), mx.array(segments), mx.array(np.array(sizes, dtype=np.int32))),
    ]
    template: dict[str, Parameter] = {
        "ROWS": at_once,
        "SIMDGROUPS": SIMDGROUPS,
        "D": d,
        "V_D": v_dims,
        **key_template(keys.reader),
        **value_template(values.reader.packed),
    }
    leading = (vectors, rows, count * SIMDGROUPS)
    return Launch(
        kernel=PARTIAL,
        inputs=[present(x) for x in inputs],
        template=template,
        grid=_partial_grid(count, blocks, vectors),
        threadgroup=_THREADGROUP,
        output_shapes=[leading, leading, (*leading, v_dims)],
        output_dtypes=[mx.float32] * 3,
    ), parts


def reduce_launch(partial: list[mx.array], of_coded: int, sink_logits: mx.array | None) -> Launch:
    """The second launch: joins the first's softmaxes, of which the first `of_coded` are over coded values.

    Outputs, float32 [vectors, rows, value_head_dim] twice and [vectors, rows, 1]: the mean of coded values' y and of
    raw values, both over the sum of all weights, and the share of the weights that is of coded values.
    """
    tops, totals, outputs = partial
    vectors, rows, count, d = outputs.shape
    logits = unused() if sink_logits is None else mx.contiguous(sink_logits.astype(mx.float32))
    sizes = np.array([count, of_coded], dtype=np.int32)
    return Launch(
        kernel=REDUCE,
        inputs=[tops, totals, outputs, logits, mx.array(sizes)],
        template={"D": d, "SINKS": sink_logits is not None},
        grid=_reduce_grid(vectors, rows, d),
        threadgroup=_LANES,
        output_shapes=[(vectors, rows, d), (vectors, rows, d), (vectors, rows, 1)],
        output_dtypes=[mx.float32] * 3,
    )


def _partial_grid(parts: int, blocks: int, vectors: int) -> Size:
    return 32 * SIMDGROUPS * parts, blocks, vectors


def _reduce_grid(vectors: int, rows: int, d: int) -> Size:
    return 32 * vectors * rows, -(-d // 32), 1


def _width(keys: Reader, d: int) -> int:
    """Floats that a threadgroup holds of each query: as it came, or turned, with the terms of an offset."""
    pairs = 0 if keys.offset is None else len(keys.offset.frequencies)
    return max(d, (0 if isinstance(keys.packed, Vectors) else keys.dims) + 2 * pairs + 1)


def rows_at_once(rows: int, width: int) -> int:
    """Queries of one KV head that a threadgroup answers: a power of two up to 8, as their memory allows.

    `width` is the number of floats that it holds of each, at most `WIDTH_AT_MOST`.
    """
    at_once = min(_ROWS_AT_MOST, 1 << max(0, rows - 1).bit_length())
    while at_once * width > WIDTH_AT_MOST:
        at_once //= 2
    return at_once
