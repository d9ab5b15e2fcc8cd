"""Checks shapes and ranges of turboquant-prod's scores and calls an implementation."""

from __future__ import annotations

import math
from pathlib import Path

import mlx.core as mx

from tqcli.kernels.bit_pack import words_per_row
from tqcli.kernels.prod_scores import reference
from tqcli.kernels.prod_scores.coded import Residuals, Rotated
from tqcli.kernels.qjl.reference import project
from tqcli.kernels.queries import queries_at_once, scores_grid
from tqcli.kernels.runtime import Kernel, Launch, chosen, run, too_large
from tqcli.kernels.runtime.kernel import unused
from tqcli.kernels.scales import has_embedded_scale

SCORES = Kernel(
    name="prod_scores",
    body=Path(__file__).with_name("prod_scores.metal"),
    inputs=("rotated", "codes", "scales", "codebook", "projected", "signs", "sign_scales", "sizes"),
    outputs=("scores",),
    template=("D", "BITS", "EMBEDDED", "M", "QUERIES", "HELD"),
    headers=("bits.h", "scales.h", "sketch.h"),
)
_THREADS = 256
_HELD = 4
"""Words of signs that the tables of their sums stand for at a time, at most: 2 kB a query."""
_D_AT_MOST = 256
"""Queries lie in the threadgroup's memory."""


def prod_scores(q: mx.array, first: Rotated, left: Residuals, backend: str | None = None) -> mx.array:
    """<q, x'> + an estimate of <q, r>, of vectors coded as x' and residuals r (TurboQuant, arXiv 2504.19874).

    q: float [..., n_q_heads, queries, d], whose head h reads KV head h // (n_q_heads / n_kv_heads); what is coded has
    leading dimensions [..., n_kv_heads, tokens]. Returns float32 [..., n_q_heads, queries, tokens]; float64 if the
    rotation is. Raises `ValueError` for shapes or dtypes that don't fit.
    """
    _check(q, first, left)
    taken = chosen(SCORES.name, first.codes.size * 32, backend, _unsupported(q, first, left))
    if taken == "mlx":
        return reference.prod_scores(q, first, left)
    d, (kv_heads, tokens) = q.shape[-1], left.signs.shape[-3:-1]
    heads = math.prod(q.shape[:-3]) * kv_heads
    launch = scores_launch(q.astype(mx.float32).reshape(heads, -1, d), first, left)
    return run(launch, taken)[0].reshape(*q.shape[:-1], tokens)


def scores_launch(q: mx.array, first: Rotated, left: Residuals) -> Launch:
    """Scores float32 [heads, queries, tokens] of q float32 [heads, queries, d]; heads are those of what is coded."""
    (heads, queries, d), (tokens, width) = q.shape, first.codes.shape[-2:]
    m, sign_width = left.sketch.shape[0], left.signs.shape[-1]
    at_once = queries_at_once(queries)
    scales = unused(mx.bfloat16, 1) if first.scales is None else first.scales.reshape(heads, tokens)
    return Launch(
        kernel=SCORES,
        inputs=(
            q @ first.rotation.T,
            first.codes.reshape(heads, tokens, width),
            scales,
            first.codebook,
            project(q, left.sketch, left.gain),
            left.signs.reshape(heads, tokens, sign_width),
            left.scales.reshape(heads, tokens),
            mx.array([queries, tokens], dtype=mx.int32),
        ),
        template={
            "D": d,
            "BITS": first.bits,
            "EMBEDDED": first.scales is None,
            "M": m,
            "QUERIES": at_once,
            "HELD": min(_HELD, sign_width),
        },
        grid=scores_grid(heads, queries, tokens, _THREADS),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=((heads, queries, tokens),),
        output_dtypes=(mx.float32,),
        note=f"{heads} heads, {queries} queries, {tokens} tokens, d {d} of {first.bits} bits, {m} rows",
    )


def _unsupported(q: mx.array, first: Rotated, left: Residuals) -> str | None:
    if q.size == 0 or left.signs.size == 0:
        return "there is nothing to do"
    scales = (left.scales,) if first.scales is None else (first.scales, left.scales)
    if any(x.dtype == mx.float64 for x in (q, first.rotation, first.codebook, left.sketch, *scales)):
        return "float64"
    if q.shape[-1] > _D_AT_MOST:
        return f"vectors of more than {_D_AT_MOST} elements"
    heads = math.prod(left.signs.shape[:-2])
    queries, tokens = q.size // q.shape[-1] // heads, left.signs.shape[-2]
    return too_large(scores_grid(heads, queries, tokens, _THREADS), (_THREADS, 1, 1))


def _check(q: mx.array, first: Rotated, left: Residuals) -> None:
    d = q.shape[-1] if q.ndim >= 3 else 0
    coded = left.signs.shape[:-1]
    fits = len(coded) == q.ndim - 1 and coded[:-2] == q.shape[:-3] and coded[-2] > 0
    if d < 1 or not mx.issubdtype(q.dtype, mx.floating) or not fits or q.shape[-3] % coded[-2]:
        raise ValueError(f"q {q.dtype} {q.shape} doesn't fit signs {left.signs.shape}")
    if not 1 <= first.bits <= 8 or first.codebook.shape != (2**first.bits,):
        raise ValueError(f"{first.bits} bits don't fit a codebook of shape {first.codebook.shape}")
    if first.rotation.shape != (d, d) or left.sketch.ndim != 2 or left.sketch.shape[1] != d:
        raise ValueError(f"rotation {first.rotation.shape} and sketch {left.sketch.shape} don't fit d = {d}")
    if first.codes.dtype != mx.uint32 or first.codes.shape != (*coded, words_per_row(d, first.bits)):
        raise ValueError(
            f"codes {first.codes.dtype} {first.codes.shape} are not rows of {d} codes of {first.bits} bits"
        )
    if (first.scales is None) != has_embedded_scale(d, first.bits):
        missing = "given" if first.scales is None else "absent"
        raise ValueError(f"d = {d}, bits = {first.bits}: scales must be {missing}")
    if left.signs.dtype != mx.uint32 or left.signs.shape[-1] != words_per_row(left.sketch.shape[0], 1):
        raise ValueError(f"signs {left.signs.dtype} {left.signs.shape} are not rows of {left.sketch.shape[0]} bits")
    for scales in (first.scales, left.scales):
        if scales is not None and (scales.shape != coded or not mx.issubdtype(scales.dtype, mx.floating)):
            raise ValueError(f"scales {scales.dtype} {scales.shape} don't fit signs {left.signs.shape}")
    if not math.isfinite(left.gain):
        raise ValueError(f"gain must be finite, not {left.gain}")
