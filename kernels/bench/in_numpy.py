"""The operations in vectorised NumPy: what they cost without MLX. Speed is all that is asked of them."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
_BLOCK = 1 << 14


def pack(codes: Array, bits: int) -> Array:
    """uint8 [..., n] to uint32 words; bits 1, 2, 4 or 8, and n * bits a multiple of 32."""
    if bits == 1:
        return np.packbits(codes, axis=-1, bitorder="little").view(np.uint32)
    a_byte = 8 // bits
    packed = codes[..., ::a_byte].copy()
    for n in range(1, a_byte):
        packed |= codes[..., n::a_byte] << np.uint8(n * bits)
    return packed.view(np.uint32)


def unpack(words: Array, bits: int) -> Array:
    """The inverse, of any number of bits that fill the words."""
    packed = words.view(np.uint8)
    if bits == 1:
        return np.unpackbits(packed, axis=-1, bitorder="little")
    if 8 % bits:
        of_bits = np.unpackbits(packed, axis=-1, bitorder="little").reshape(*words.shape[:-1], -1, bits)
        return np.asarray(of_bits @ (1 << np.arange(bits)).astype(np.uint8))
    a_byte, mask = 8 // bits, np.uint8((1 << bits) - 1)
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] * a_byte), dtype=np.uint8)
    for n in range(a_byte):
        np.bitwise_and(packed >> np.uint8(n * bits), mask, out=codes[..., n::a_byte])
    return codes


def quantise(y: Array, thresholds: Array) -> Array:
    """The number of thresholds below each element: for a few of them faster than `np.searchsorted`."""
    codes = np.zeros(y.shape, dtype=np.uint8)
    for threshold in thresholds.astype(y.dtype):
        codes += y > threshold
    return codes


def rotate_quantise(x: Array, rotation: Array, thresholds: Array, bits: int) -> tuple[Array, Array]:
    """Rotated, in units of the root mean square, quantised and packed; and the scales."""
    y = x @ rotation.T
    rms = np.sqrt(np.mean(y * y, axis=-1, keepdims=True))
    return pack(quantise(y / rms, thresholds), bits), rms[..., 0]


def levels(words: Array, scales: Array, codebook: Array, bits: int) -> Array:
    """What codes stand for, not rotated back: float32 [..., d]."""
    return np.asarray(codebook[unpack(words, bits)] * scales[..., None])


def signs(x: Array, sketch: Array) -> Array:
    """Packed signs of the projections."""
    return np.packbits(x @ sketch.T >= 0, axis=-1, bitorder="little").view(np.uint32)


def sketch_scores(q: Array, words: Array, scales: Array, sketch: Array, gain: float) -> Array:
    """Estimates [heads, queries, tokens] from packed signs."""
    plus_minus = unpack(words, 1).astype(np.float32) * 2 - 1
    return np.asarray(q @ sketch.T * gain @ plus_minus.swapaxes(-1, -2) * scales[:, None])


def nearest(x: Array, codebook: Array) -> Array:
    """Index of the entry nearest to each row."""
    norms = (codebook * codebook).sum(axis=-1) / 2
    parts = [np.argmax(x[i : i + _BLOCK] @ codebook.T - norms, axis=-1) for i in range(0, len(x), _BLOCK)]
    return np.concatenate(parts).astype(np.uint8)


def vector_scores(q: Array, words: Array, codebook: Array) -> Array:
    """Scores [heads, queries, tokens] of codes of 8 bits."""
    keys = codebook[words.view(np.uint8)].reshape(*words.shape[:-1], -1)
    return np.asarray(q @ keys.swapaxes(-1, -2))


def attention(q: Array, keys: Array, values: Array) -> Array:
    """softmax(q @ keys.T) @ values."""
    logits = q @ keys.swapaxes(-1, -2)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True) @ values)
