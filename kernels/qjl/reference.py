"""One-bit sketches in plain MLX operations: the specification."""

from __future__ import annotations

import math

import mlx.core as mx

from tqcli.kernels.bit_pack import words_per_row
from tqcli.kernels.bit_pack.reference import pack_bits, unpack_bits
from tqcli.kernels.blocks import BLOCK_ELEMENTS, on_cpu
from tqcli.kernels.scales import must_take_care, root_mean_square, stored_scale, take_out_largest


def sketch_signs(x: mx.array, sketch: mx.array) -> tuple[mx.array, mx.array]:
    """See `launch.sketch_signs`."""
    *lead, d = x.shape
    m = sketch.shape[0]
    words = words_per_row(m, 1)
    if x.size == 0:
        return mx.zeros((*lead, words), dtype=mx.uint32), mx.zeros(tuple(lead), dtype=mx.bfloat16)
    rows = x.reshape(-1, d)
    parts = []
    for part in _blocks(rows.shape[0], m):
        signs, scales = _sketch_rows(rows[part].astype(sketch.dtype), sketch)
        if on_cpu():
            mx.eval(signs, scales)
        parts.append((signs, scales))
    signs, scales = (mx.concatenate(list(arrays)) for arrays in zip(*parts, strict=True))
    return signs.reshape(*lead, words), scales.reshape(lead)


def sketch_scores(q: mx.array, signs: mx.array, scales: mx.array, sketch: mx.array, gain: float) -> mx.array:
    """See `launch.sketch_scores`."""
    m, tokens = sketch.shape[0], signs.shape[-2]
    if q.size == 0 or signs.size == 0:
        return mx.zeros((*q.shape[:-1], tokens), dtype=sketch.dtype)
    projected = project(q, sketch, gain)
    parts = []
    for part in _blocks(tokens, m * math.prod(signs.shape[:-2])):
        scores = projected @ _plus_minus(signs[..., part, :], m).swapaxes(-1, -2)
        if on_cpu():
            mx.eval(scores)
        parts.append(scores)
    return mx.concatenate(parts, axis=-1) * scales.astype(mx.float32)[..., None, :]


def project(q: mx.array, sketch: mx.array, gain: float) -> mx.array:
    """S q * gain: queries [..., d] to [..., m], of the sketch's dtype."""
    return (q.astype(sketch.dtype) @ sketch.T) * gain


def unsketch(signs: mx.array, scales: mx.array, sketch: mx.array, gain: float) -> mx.array:
    """See `launch.unsketch`."""
    (m, d), lead = sketch.shape, signs.shape[:-1]
    if signs.size == 0:
        return mx.zeros((*lead, d), dtype=sketch.dtype)
    rows = signs.reshape(-1, signs.shape[-1])
    scaled = sketch * gain
    parts = []
    for part in _blocks(rows.shape[0], m):
        decoded = _plus_minus(rows[part], m) @ scaled
        if on_cpu():
            mx.eval(decoded)
        parts.append(decoded)
    return mx.concatenate(parts).reshape(*lead, d) * scales.astype(mx.float32)[..., None]


def _sketch_rows(x: mx.array, sketch: mx.array) -> tuple[mx.array, mx.array]:
    """Rows [n, d] of the sketch's dtype to packed signs [n, words] and scales [n]."""
    rms, largest = root_mean_square(x), None
    if must_take_care(rms):
        x, largest = take_out_largest(x)
        rms = root_mean_square(x)
    signs = pack_bits((x @ sketch.T >= 0).astype(mx.uint8), 1)
    return signs, stored_scale(rms, rms, largest)


def _plus_minus(signs: mx.array, m: int) -> mx.array:
    """Packed signs to float32 [..., m] of +1 and -1."""
    return unpack_bits(signs, 1, m).astype(mx.float32) * 2 - 1


def _blocks(rows: int, elements_a_row: int) -> list[slice]:
    step = max(1, BLOCK_ELEMENTS // elements_a_row) if on_cpu() else rows
    return [slice(start, start + step) for start in range(0, rows, step)]
