"""What is timed of scores and attention: one query position, every KV head shared by 4 query heads."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from tqcli.kernels.attend import Levels, Raw, Reader, Seen, Tokens, attend
from tqcli.kernels.attend.launch import attend_launch, reduce_launch
from tqcli.kernels.attend.parts import SIMDGROUPS
from tqcli.kernels.bench import in_numpy
from tqcli.kernels.bench.workload import BUFFERS, Arrays, Builtin, Workload
from tqcli.kernels.bench.workloads import (
    BITS,
    CODE_BITS,
    GAIN,
    GROUP,
    HEADS,
    QUERIES,
    SUB_DIM,
    D,
    codebook,
    coded,
    normal,
    quantised,
    sets,
    signs,
)
from tqcli.kernels.bit_pack.reference import unpack_bits
from tqcli.kernels.hadamard_quant.matrix import hadamard_matrix
from tqcli.kernels.prod_scores import Residuals, Rotated, prod_scores
from tqcli.kernels.prod_scores.launch import scores_launch as prod_launch
from tqcli.kernels.qjl import launch as qjl
from tqcli.kernels.qjl.reference import project
from tqcli.kernels.runtime import Launch
from tqcli.kernels.vector_quant import launch as vector


def sketch_scoring(size: int, backend: str) -> Workload:
    """`qjl_scores`."""
    tokens, sketch = size // (HEADS * D), normal(D, D, seed=9, dtype=mx.float32)
    q = normal(HEADS, QUERIES, D, dtype=mx.float32)
    keys = [qjl.sketch_signs(normal(HEADS, tokens, D, seed=seed), sketch, backend) for seed in range(BUFFERS)]
    mx.eval(keys)
    in_np = np.array(q), np.array(sketch)
    return Workload(
        elements=size,
        counted=keys[0][0].size * 32,
        inputs=keys,
        call=lambda words, scales, backend: qjl.sketch_scores(q, words, scales, sketch, GAIN, backend),
        launches=lambda words, scales: [qjl.scores_launch(project(q, sketch, GAIN), words, scales)],
        in_numpy=lambda words, scales: in_numpy.sketch_scores(in_np[0], words, scales, in_np[1], GAIN),
        builtins={"mx.quantized_matmul, 2 bits": _quantized_matmul(tokens, 2)},
    )


def vector_scoring(size: int, backend: str) -> Workload:
    """`vector_scores`: 256 entries of 4 elements."""
    tokens, book = size // (HEADS * D), normal(1 << CODE_BITS, SUB_DIM, dtype=mx.bfloat16)
    q = normal(HEADS, QUERIES, D, dtype=mx.float32)
    width = D // SUB_DIM * CODE_BITS // 32

    def words(seed: int) -> Arrays:
        key = mx.random.key(seed)
        return (mx.random.randint(0, 1 << 31, (HEADS, tokens, width), dtype=mx.uint32, key=key),)

    def launches(words: mx.array) -> list[Launch]:
        first = vector.tables_launch(q, book)
        tables = mx.zeros(first.output_shapes[0])
        return [first, vector.scores_launch(tables, words, QUERIES, CODE_BITS)]

    inputs, in_np = sets(words), (np.array(q), np.array(book.astype(mx.float32)))
    return Workload(
        elements=size,
        counted=inputs[0][0].size * 32,
        inputs=inputs,
        call=lambda words, backend: vector.vector_scores(q, words, book, CODE_BITS, backend),
        launches=launches,
        in_numpy=lambda words: in_numpy.vector_scores(in_np[0], words, in_np[1]),
        builtins={"mx.quantized_matmul, 2 bits": _quantized_matmul(tokens, 2)},
    )


def prod_scoring(size: int, backend: str) -> Workload:
    """`prod_scores`: 3 bits, and signs of 128 projections."""
    tokens, sketch = size // (HEADS * D), normal(D, D, seed=9, dtype=mx.float32)
    q, levels, rotation = normal(HEADS, QUERIES, D, dtype=mx.float32), codebook(BITS - 1), hadamard_matrix(signs())

    def keys(seed: int) -> Arrays:
        x = normal(HEADS, tokens, D, seed=seed)
        return *coded(x, BITS - 1, backend), *qjl.sketch_signs(x, sketch, backend)

    def halves(words: mx.array, scales: mx.array, residuals: mx.array, sizes: mx.array) -> tuple[Rotated, Residuals]:
        return Rotated(words, scales, rotation, levels, BITS - 1), Residuals(residuals, sizes, sketch, GAIN)

    in_np = [np.array(x) for x in (q, levels, rotation, sketch)]

    def by_numpy(words: np.ndarray, scales: np.ndarray, residuals: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        decoded = in_numpy.levels(words, scales, in_np[1], BITS - 1)
        scores = in_np[0] @ in_np[2].T @ decoded.swapaxes(-1, -2)
        return np.asarray(scores + in_numpy.sketch_scores(in_np[0], residuals, sizes, in_np[3], GAIN))

    inputs = sets(keys)
    return Workload(
        elements=size,
        counted=inputs[0][0].size * 32,
        inputs=inputs,
        call=lambda *arrays, backend: prod_scores(q, *halves(*arrays), backend),
        launches=lambda *arrays: [prod_launch(q, *halves(*arrays))],
        in_numpy=by_numpy,
        builtins={"mx.quantized_matmul, 4 bits": _quantized_matmul(tokens, BITS)},
    )


def attending(size: int, backend: str) -> Workload:
    """`attend`: keys and values of 4 bits, both rotated."""
    tokens, levels, rotation = size // (HEADS * D), codebook(), hadamard_matrix(signs())
    q = normal(HEADS, QUERIES, D, dtype=mx.float32) / D**0.5
    seen, nothing = Seen([0], [tokens], [tokens], [tokens], 0), mx.zeros((HEADS, 0, D), dtype=mx.float16)

    def cache(seed: int) -> Arrays:
        return *_coded(seed), *_coded(seed + 100)

    def _coded(seed: int) -> Arrays:
        return coded(normal(HEADS, tokens, D, seed=seed), BITS, backend)

    def reads(words: mx.array, scales: mx.array) -> Tokens:
        packed = Levels(D, (BITS,), (words,), scales, levels)
        return Tokens(Reader(packed, matrix=rotation), 0, Raw(nothing, 0, tokens))

    def launches(*arrays: mx.array) -> list[Launch]:
        first, parts = attend_launch(q, reads(*arrays[:2]), reads(*arrays[2:]), seen)
        partial = [mx.zeros(shape) for shape in first.output_shapes]
        return [first, reduce_launch(partial, parts.of_coded_values * SIMDGROUPS, None)]

    def raw(seed: int) -> Arrays:
        rows = normal(1, HEADS * QUERIES, 1, D, seed=seed)
        return rows, *(normal(1, HEADS, tokens, D, seed=seed + n) for n in (1, 2))

    def plain_attention(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=D**-0.5)

    def decoded(words: mx.array, scales: mx.array) -> mx.array:
        return levels[unpack_bits(words, BITS, D)] * scales.astype(mx.float32)[..., None]

    def plain(k: mx.array, k_scales: mx.array, v: mx.array, v_scales: mx.array) -> mx.array:
        logits = q @ rotation.T @ decoded(k, k_scales).swapaxes(-1, -2)
        return mx.softmax(logits, axis=-1) @ decoded(v, v_scales) @ rotation

    in_np = [np.array(x) for x in (q, levels, rotation)]

    def by_numpy(k: np.ndarray, k_scales: np.ndarray, v: np.ndarray, v_scales: np.ndarray) -> np.ndarray:
        keys, values = (in_numpy.levels(*of, in_np[1], BITS) for of in ((k, k_scales), (v, v_scales)))
        return np.asarray(in_numpy.attention(in_np[0] @ in_np[2].T, keys, values) @ in_np[2])

    return Workload(
        elements=size,
        counted=2 * size,
        inputs=sets(cache),
        call=lambda *arrays, backend: attend(q, reads(*arrays[:2]), reads(*arrays[2:]), seen, backend=backend),
        launches=launches,
        plain=plain,
        in_numpy=by_numpy,
        builtins={"mx.fast.scaled_dot_product_attention, float16": Builtin(plain_attention, sets(raw))},
    )


def _quantized_matmul(tokens: int, bits: int) -> Builtin:
    q = normal(HEADS, QUERIES, D)

    def call(words: mx.array, scales: mx.array, biases: mx.array) -> mx.array:
        return mx.quantized_matmul(q, words, scales, biases, transpose=True, group_size=GROUP, bits=bits)

    return Builtin(call, quantised((HEADS, tokens, D), bits))
