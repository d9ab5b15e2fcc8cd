"""Checks shapes and ranges of fused attention and launches its two kernels, or calls the reference."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np

from tqcli.kernels.attend import reference
from tqcli.kernels.attend.checks import WIDTH_AT_MOST, check
from tqcli.kernels.attend.packed import codes_of, key_inputs, key_template, present, value_inputs, value_template
from tqcli.kernels.attend.parts import SIMDGROUPS, Parts, Seen, divide
from tqcli.kernels.attend.prepare import restored, turn_tables
from tqcli.kernels.attend.readers import Tokens
from tqcli.kernels.runtime import Kernel, Launch, chosen, run
from tqcli.kernels.runtime.kernel import Parameter, unused

_ROWS_AT_MOST = 8
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
    size = q.shape[0] * max(seen.ends, default=0) * (q.shape[-1] + values.raw.x.shape[-1])
    return attend_by(chosen("attend", size, backend), q, keys, values, seen, sink_logits)


def attend_by(
    backend: str, q: mx.array, keys: Tokens, values: Tokens, seen: Seen, sink_logits: mx.array | None = None
) -> mx.array:
    """`attend` by a back-end that has been chosen."""
    check(q, keys, values, seen, sink_logits)
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
    at_once = rows_at_once(rows, max(queries.shape[2], d))
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
        grid=(32 * SIMDGROUPS * count, blocks, vectors),
        threadgroup=(32 * SIMDGROUPS, 1, 1),
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
        grid=(32 * vectors * rows, -(-d // 32), 1),
        threadgroup=(32, 1, 1),
        output_shapes=[(vectors, rows, d), (vectors, rows, d), (vectors, rows, 1)],
        output_dtypes=[mx.float32] * 3,
    )


def rows_at_once(rows: int, width: int) -> int:
    """Queries of one KV head that a threadgroup answers: a power of two up to 8, as their memory allows.

    `width` is the number of floats that it holds of each, at most `WIDTH_AT_MOST`.
    """
    at_once = min(_ROWS_AT_MOST, 1 << max(0, rows - 1).bit_length())
    while at_once * width > WIDTH_AT_MOST:
        at_once //= 2
    return at_once
