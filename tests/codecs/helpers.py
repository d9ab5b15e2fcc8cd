"""What tests of codecs share."""

import mlx.core as mx
import numpy as np

from tqcli.codecs.base import Codec
from tqcli.codecs.context import LayerContext, RotaryParameters, Tensor


def context(head_dim: int = 64, tensor: Tensor = "keys", tokens: int | None = None, kv_heads: int = 1) -> LayerContext:
    """A layer of three query heads a KV head, with llama's rotary embedding."""
    return LayerContext(
        layer=0,
        tensor=tensor,
        head_dim=head_dim,
        n_q_heads=3 * kv_heads,
        n_kv_heads=kv_heads,
        scale=head_dim**-0.5,
        rotary=rotary(head_dim),
        positions=None if tokens is None else np.arange(tokens),
    )


def rotary(head_dim: int, interleaved: bool = False) -> RotaryParameters:
    pairs = head_dim // 2
    return RotaryParameters(tuple(10000.0 ** (-i / pairs) for i in range(pairs)), interleaved)


def relative_mse(codec: Codec, x: np.ndarray, ctx: LayerContext) -> float:
    """Of x [tokens, head_dim], through encode and decode."""
    decoded = np.array(codec.decode(codec.encode(mx.array(x)[None], ctx), ctx)[0], dtype=np.float64)
    return float(np.sum((decoded - x) ** 2) / np.sum(x.astype(np.float64) ** 2))


def unit_vectors(head_dim: int, count: int, seed: int) -> np.ndarray:
    x = np.random.default_rng([seed, head_dim, 77]).standard_normal((count, head_dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
