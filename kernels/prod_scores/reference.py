"""Scores of turboquant-prod in plain MLX operations: the specification."""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.hadamard_quant.reference import unrotate_dequantise
from tqcli.kernels.prod_scores.coded import Residuals, Rotated
from tqcli.kernels.qjl.reference import sketch_scores


def prod_scores(q: mx.array, first: Rotated, left: Residuals) -> mx.array:
    """See `launch.prod_scores`."""
    *lead, heads, queries, d = q.shape
    kv_heads, tokens = left.signs.shape[-3:-1]
    keys = unrotate_dequantise((first.codes,), first.scales, first.rotation, first.codebook, (first.bits,))
    scores = q.astype(first.rotation.dtype) @ mx.repeat(keys, heads // kv_heads, axis=-3).swapaxes(-1, -2)
    grouped = q.reshape(*lead, kv_heads, heads // kv_heads * queries, d)
    estimates = sketch_scores(grouped, left.signs, left.scales, left.sketch, left.gain)
    return scores + estimates.reshape(*lead, heads, queries, tokens)
