"""Checks shapes and ranges of one-bit sketches and calls an implementation."""

from __future__ import annotations

import math

import mlx.core as mx

from tqcli.kernels.bit_pack import words_per_row
from tqcli.kernels.qjl import reference


def sketch_signs(x: mx.array, sketch: mx.array) -> tuple[mx.array, mx.array]:
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
    return reference.sketch_signs(x, sketch)


def sketch_scores(q: mx.array, signs: mx.array, scales: mx.array, sketch: mx.array, gain: float) -> mx.array:
    """The estimate scale * gain * <S q, sign(S x)> for every query and token, float32 [..., queries, tokens].

    q: float [..., queries, d], with the same leading dimensions as signs and scales, which are those of
    `sketch_signs`; S: float32 [m, d]. With gain = sqrt(d) / (E|u_1| sum_i ||s_i||), u a random unit vector, this
    estimates <q, x>. Raises `ValueError` for wrong shapes or dtypes, and for a gain that isn't finite.
    """
    if q.ndim != signs.ndim or q.shape[:-2] != signs.shape[:-2] or not mx.issubdtype(q.dtype, mx.floating):
        raise ValueError(f"q {q.dtype} {q.shape} doesn't fit signs {signs.shape}")
    _check_sketch(sketch, q.shape[-1])
    _check_coded(signs, scales, sketch, gain)
    return reference.sketch_scores(q, signs, scales, sketch, gain)


def unsketch(signs: mx.array, scales: mx.array, sketch: mx.array, gain: float) -> mx.array:
    """The vector scale * gain * S.T sign(S x), float32 [..., tokens, d].

    Its inner products are those of `sketch_scores`; arguments and errors as there.
    """
    _check_sketch(sketch, sketch.shape[-1])
    _check_coded(signs, scales, sketch, gain)
    return reference.unsketch(signs, scales, sketch, gain)


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
