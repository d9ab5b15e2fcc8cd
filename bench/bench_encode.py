"""Encoding of turboquant-mse@4 against the same steps in vectorised NumPy, all from float32 vectors to packed bytes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from bench.timing import compare, show
from tqcli.codecs.context import LayerContext
from tqcli.codecs.lloyd_max import codebook
from tqcli.codecs.rotation import rotation_arrays, rotation_matrix
from tqcli.codecs.turboquant_mse import TurboQuantMSE

VECTORS, HEAD_DIM, BITS = 65536, 128, 4
Array = np.ndarray[Any, Any]


def main() -> None:
    """Prints times and ratios: faster than searchsorted, and at least 0.8x of compare-and-sum, are asked for."""
    x = np.random.default_rng(0).standard_normal((VECTORS, HEAD_DIM)).astype(np.float32)
    rotation = np.array(rotation_matrix(rotation_arrays("hadamard", HEAD_DIM, 0), HEAD_DIM))
    levels = np.array(codebook(HEAD_DIM, BITS), dtype=np.float32)
    thresholds = (levels[1:] + levels[:-1]) / 2
    codec, on_device = TurboQuantMSE(BITS), mx.array(x)[None]
    ctx = LayerContext(0, "values", HEAD_DIM, 1, 1, 1.0)

    def normalised() -> tuple[Array, Array]:
        rms = np.sqrt(np.einsum("td,td->t", x, x) / HEAD_DIM)
        return (x / rms[:, None]) @ rotation.T, rms

    def packed(codes: Array) -> Array:
        pairs: Array = codes[:, 0::2] | (codes[:, 1::2] << 4)
        return pairs

    def with_searchsorted() -> None:
        y, rms = normalised()
        packed(np.searchsorted(thresholds, y.ravel()).astype(np.uint8).reshape(y.shape))
        rms.astype(np.float16)

    def with_compare_and_sum() -> None:
        y, rms = normalised()
        codes = np.zeros(y.shape, dtype=np.uint8)
        for threshold in thresholds:
            codes += y > threshold
        packed(codes)
        rms.astype(np.float16)

    ways = {
        "tq": lambda: codec.encode(on_device, ctx).arrays,
        "NumPy, searchsorted": with_searchsorted,
        "NumPy, compare and sum": with_compare_and_sum,
    }
    print(f"turboquant-mse@{BITS} encode, {VECTORS} vectors of {HEAD_DIM}, float32 in, packed out")
    moved = x.nbytes + VECTORS * (HEAD_DIM * BITS // 8 + 2)
    show(compare(ways), "NumPy, compare and sum", moved)


if __name__ == "__main__":
    main()
