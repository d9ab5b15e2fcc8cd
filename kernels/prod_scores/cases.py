"""Small launches of turboquant-prod's scores, with what they must give."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np

from tqcli.kernels.hadamard_quant.reference import rotate_quantise, unrotate_dequantise
from tqcli.kernels.prod_scores import reference
from tqcli.kernels.prod_scores.coded import Residuals, Rotated
from tqcli.kernels.prod_scores.launch import scores_launch
from tqcli.kernels.qjl.reference import sketch_signs
from tqcli.kernels.runtime.case import Case, close


def cases() -> Iterator[Case]:
    """Scales in the codes' slack and beside them, codes across words, signs that fill no word."""
    for d, bits, m, heads, queries, tokens in (
        (32, 1, 32, 1, 1, 1),
        (64, 2, 64, 2, 3, 63),
        (80, 1, 80, 1, 7, 7),
        (80, 3, 100, 2, 2, 5),
        (96, 3, 96, 1, 9, 31),
        (128, 7, 128, 1, 4, 300),
        (192, 5, 48, 1, 2, 7),
        (256, 4, 160, 1, 8, 3),
        (72, 6, 72, 1, 14, 2),
    ):
        first, left = coded(_normal(heads, tokens, d), bits, m)
        yield _scores(_normal(heads, queries, d), first, left)


def coded(x: mx.array, bits: int, m: int) -> tuple[Rotated, Residuals]:
    """Vectors x [..., tokens, d] as turboquant-prod stores them, by a random rotation and sketch."""
    d = x.shape[-1]
    rotation = mx.array(np.linalg.qr(np.array(_normal(d, d)))[0])
    codebook = mx.array(np.linspace(-2, 2, 2**bits).astype(np.float32))
    thresholds = (codebook[1:] + codebook[:-1]) / 2
    (codes,), scales = rotate_quantise(x, rotation, codebook, thresholds, (bits,), unbiased=False)
    residual = x - unrotate_dequantise((codes,), scales, rotation, codebook, (bits,))
    sketch = _normal(m, d)
    return Rotated(codes, scales, rotation, codebook, bits), Residuals(*sketch_signs(residual, sketch), sketch, 0.37)


def _scores(q: mx.array, first: Rotated, left: Residuals) -> Case:
    d, m = q.shape[-1], left.sketch.shape[0]
    return Case(
        "prod_scores",
        scores_launch(q, first, left),
        lambda: [reference.prod_scores(q, first, left)],
        close(rtol=1e-5, atol=1e-5 * (d + m)),
    )


def _normal(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(shape).standard_normal(shape).astype(np.float32))
