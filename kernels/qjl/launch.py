"""Checks shapes and ranges of one-bit sketches and calls an implementation."""

from __future__ import annotations

import math
from pathlib import Path

import mlx.core as mx

from tqcli.kernels.bit_pack import words_per_row
from tqcli.kernels.qjl import reference
from tqcli.kernels.queries import queries_at_once, scores_grid
from tqcli.kernels.runtime import Kernel, Launch, chosen, run, too_large

_FOLDER = Path(__file__).parent
ENCODE = Kernel(
    name="qjl_encode",
    body=_FOLDER / "qjl_encode.metal",
    inputs=("x", "sketch", "sizes"),
    outputs=("signs", "scales"),
    template=("D", "M"),
    headers=("scales.h",),
)
SCORES = Kernel(
    name="qjl_scores",
    body=_FOLDER / "qjl_scores.metal",
    inputs=("projected", "signs", "scales", "sizes"),
    outputs=("scores",),
    template=("M", "QUERIES", "HELD"),
    headers=("sketch.h",),
)
_ENCODE_THREADS, _ENCODE_VECTORS = 128, 32
_SCORES_THREADS = 512
_HELD = 4
"""Words of signs that the tables of their sums stand for at a time, at most: 2 kB a query."""
_UNSKETCHED = "there is no kernel for this product of matrices"


def sketch_signs(x: mx.array, sketch: mx.array, backend: str | None = None) -> tuple[mx.array, mx.array]:
    """sign(S x), packed, and one scale a vector (QJL, arXiv 2406.03482, definition 3.1).

    x: float [..., tokens, d]; sketch S: float32 [m, d]. Returns uint32 signs [..., tokens, words], row i of S in bit i
    (`pack_bits` of one bit), 1 for +, so that sign(0) = +1; and bfloat16 scales [..., tokens], the root mean square
    ||x|| / sqrt(d), which no finite vector overflows. A zero vector has scale 0. NaN and inf give a non-finite scale.
    A float64 S makes all arithmetic float64. Raises `ValueError` for wrong shapes or dtypes.
    """
    d = x.shape[-1] if x.ndim >= 2 else 0
    if d < 1 or not mx.issubdtype(x.dtype, mx.floating):
        raise ValueError(f"x must be a float array [..., tokens, d], not {x.dtype} of shape {x.shape}")
    _check_sketch(sketch, d)
    taken = chosen(ENCODE.name, x.size, backend, _encode_unsupported(x, sketch))
    if taken == "mlx":
        return reference.sketch_signs(x, sketch)
    signs, scales = run(encode_launch(x.reshape(-1, d), sketch), taken)
    return signs.reshape(*x.shape[:-1], -1), scales.view(mx.bfloat16).reshape(x.shape[:-1])


def sketch_scores(
    q: mx.array, signs: mx.array, scales: mx.array, sketch: mx.array, gain: float, backend: str | None = None
) -> mx.array:
    """The estimate scale * gain * <S q, sign(S x)> for every query and token, float32 [..., queries, tokens].

    q: float [..., queries, d], with the same leading dimensions as signs and scales, which are those of
    `sketch_signs`; S: float32 [m, d]. With gain = sqrt(d) / (E|u_1| sum_i ||s_i||), u a random unit vector, this
    estimates <q, x>. Raises `ValueError` for wrong shapes or dtypes, and for a gain that isn't finite.
    """
    if q.ndim != signs.ndim or q.shape[:-2] != signs.shape[:-2] or not mx.issubdtype(q.dtype, mx.floating):
        raise ValueError(f"q {q.dtype} {q.shape} doesn't fit signs {signs.shape}")
    _check_sketch(sketch, q.shape[-1])
    _check_coded(signs, scales, sketch, gain)
    taken = chosen(SCORES.name, signs.size * 32, backend, _scores_unsupported(q, signs, scales, sketch))
    if taken == "mlx":
        return reference.sketch_scores(q, signs, scales, sketch, gain)
    *lead, tokens, words = signs.shape
    projected = reference.project(q, sketch, gain).reshape(-1, q.shape[-2], sketch.shape[0])
    launch = scores_launch(projected, signs.reshape(-1, tokens, words), scales.reshape(-1, tokens))
    return run(launch, taken)[0].reshape(*lead, q.shape[-2], tokens)


def encode_launch(x: mx.array, sketch: mx.array) -> Launch:
    """Signs of vectors x [n, d]: uint32 [n, words], and their scales' bits, uint16 [n]."""
    (n, d), m = x.shape, sketch.shape[0]
    words = words_per_row(m, 1)
    return Launch(
        kernel=ENCODE,
        inputs=(x, sketch, mx.array([n], dtype=mx.int32)),
        template={"D": d, "M": m},
        grid=_encode_grid(n, words),
        threadgroup=(_ENCODE_THREADS, 1, 1),
        output_shapes=((n, words), (n,)),
        output_dtypes=(mx.uint32, mx.uint16),
        note=f"{x.dtype} [{n}, {d}], {m} rows",
    )


def scores_launch(projected: mx.array, signs: mx.array, scales: mx.array) -> Launch:
    """Scores float32 [heads, queries, tokens] of queries that `reference.project` gave, float32 [heads, queries, m].

    signs: uint32 [heads, tokens, words]; scales: float [heads, tokens].
    """
    (heads, queries, m), tokens = projected.shape, signs.shape[1]
    at_once = queries_at_once(queries)
    return Launch(
        kernel=SCORES,
        inputs=(projected, signs, scales, mx.array([queries, tokens], dtype=mx.int32)),
        template={"M": m, "QUERIES": at_once, "HELD": min(_HELD, signs.shape[2])},
        grid=scores_grid(heads, queries, tokens, _SCORES_THREADS),
        threadgroup=(_SCORES_THREADS, 1, 1),
        output_shapes=((heads, queries, tokens),),
        output_dtypes=(mx.float32,),
        note=f"{heads} heads, {queries} queries, {tokens} tokens, {m} rows, scales {scales.dtype}",
    )


def unsketch(signs: mx.array, scales: mx.array, sketch: mx.array, gain: float) -> mx.array:
    """The vector scale * gain * S.T sign(S x), float32 [..., tokens, d].

    Its inner products are those of `sketch_scores`; arguments and errors as there. Plain MLX operations on every
    back-end.
    """
    _check_sketch(sketch, sketch.shape[-1])
    _check_coded(signs, scales, sketch, gain)
    chosen("unsketch", signs.size * 32, unsupported=_UNSKETCHED)
    return reference.unsketch(signs, scales, sketch, gain)


def _encode_grid(n: int, words: int) -> tuple[int, int, int]:
    return -(-n // _ENCODE_VECTORS) * _ENCODE_THREADS, words, 1


def _encode_unsupported(x: mx.array, sketch: mx.array) -> str | None:
    if x.size == 0:
        return "there is nothing to do"
    if mx.float64 in (x.dtype, sketch.dtype):
        return "float64"
    return too_large(_encode_grid(x.size // x.shape[-1], words_per_row(sketch.shape[0], 1)), (_ENCODE_THREADS, 1, 1))


def _scores_unsupported(q: mx.array, signs: mx.array, scales: mx.array, sketch: mx.array) -> str | None:
    if q.size == 0 or signs.size == 0:
        return "there is nothing to do"
    if mx.float64 in (q.dtype, scales.dtype, sketch.dtype):
        return "float64"
    grid = scores_grid(math.prod(signs.shape[:-2]), q.shape[-2], signs.shape[-2], _SCORES_THREADS)
    return too_large(grid, (_SCORES_THREADS, 1, 1))


def _check_sketch(sketch: mx.array, d: int) -> None:
    if sketch.ndim != 2 or sketch.shape[0] < 1 or sketch.shape[1] != d or sketch.dtype not in (mx.float32, mx.float64):
        raise ValueError(f"sketch must be float32 [m, {d}], not {sketch.dtype} of shape {sketch.shape}")


def _check_coded(signs: mx.array, scales: mx.array, sketch: mx.array, gain: float) -> None:
    m = sketch.shape[0]
    if signs.dtype != mx.uint32 or signs.ndim < 2 or signs.shape[-1] != words_per_row(m, 1):
        raise ValueError(f"signs {signs.dtype} {signs.shape} are not rows of {m} bits")
    if scales.shape != signs.shape[:-1] or not mx.issubdtype(scales.dtype, mx.floating):
        raise ValueError(f"scales {scales.dtype} {scales.shape} don't fit signs {signs.shape}")
    if not math.isfinite(gain):
        raise ValueError(f"gain must be finite, not {gain}")
