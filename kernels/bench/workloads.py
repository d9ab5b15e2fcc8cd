"""What is timed of each operation: 4 bits, vectors of 128 elements, 8 KV heads that 4 query heads each share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from statistics import NormalDist
from typing import Any

import mlx.core as mx
import numpy as np

from tqcli.kernels.bench import in_numpy
from tqcli.kernels.bench.workload import BUFFERS, Arrays, Builtin, Workload
from tqcli.kernels.bit_pack import launch as bit_pack
from tqcli.kernels.hadamard_quant import launch as hadamard
from tqcli.kernels.hadamard_quant.matrix import hadamard_matrix
from tqcli.kernels.qjl import launch as qjl
from tqcli.kernels.scalar_quant import launch as scalar
from tqcli.kernels.vector_quant import launch as vector

D, BITS, HEADS, QUERIES = 128, 4, 8, 4
SUB_DIM, CODE_BITS = 4, 8
GAIN = 0.01
GROUP = 64
"""Elements a scale, of `mx.quantize`."""


@cache
def codebook(bits: int = BITS) -> mx.array:
    """Levels of about a normal distribution, float32 [2**bits]."""
    count = 1 << bits
    return mx.array([NormalDist().inv_cdf((n + 0.5) / count) for n in range(count)])


@cache
def thresholds(bits: int = BITS) -> mx.array:
    """The midpoints between the levels."""
    return (codebook(bits)[1:] + codebook(bits)[:-1]) / 2


@cache
def signs() -> mx.array:
    """Random signs of one round, int8 [1, d]."""
    return mx.array(np.random.default_rng(0).integers(0, 2, (1, D)).astype(np.int8) * 2 - 1)


def normal(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.float16) -> mx.array:
    """Random elements, of the GPU's own making where there is one."""
    return mx.random.normal(shape, dtype=mx.float32, key=mx.random.key(seed)).astype(dtype)


def sets(make: Callable[[int], Arrays]) -> list[Arrays]:
    """Inputs by seed, computed."""
    made = [make(seed) for seed in range(BUFFERS)]
    mx.eval(made)
    return made


def coded(x: mx.array, bits: int, backend: str) -> tuple[mx.array, mx.array]:
    """Words and scales of rotated vectors x [..., d]."""
    (words,), scales = hadamard.hadamard_quantise(
        x, signs(), codebook(bits), thresholds(bits), (bits,), False, backend=backend
    )
    assert scales is not None
    return words, scales


def quantised(shape: Sequence[int], bits: int = BITS, dtype: mx.Dtype = mx.float16) -> list[Arrays]:
    """Vectors as `mx.quantize` packs them."""
    return sets(lambda seed: tuple(mx.quantize(normal(*shape, seed=seed, dtype=dtype), group_size=GROUP, bits=bits)))


def packing(size: int, backend: str) -> Workload:
    """`bit_pack`."""
    x = sets(lambda seed: (normal(size // D, D, seed=seed),))
    return Workload(
        elements=size,
        counted=size,
        inputs=_codes(size),
        call=lambda codes, backend: bit_pack.pack_bits(codes, BITS, backend),
        launches=lambda codes: [bit_pack.pack_launch(codes, BITS)],
        in_numpy=partial(in_numpy.pack, bits=BITS),
        builtins={"mx.quantize (finds scales too)": Builtin(_quantize, x)},
    )


def unpacking(size: int, backend: str) -> Workload:
    """`bit_unpack`."""
    words = sets(lambda seed: (_words(size // D, D * BITS // 32, seed=seed),))
    return Workload(
        elements=size,
        counted=size * BITS // 32,
        inputs=words,
        call=lambda words, backend: bit_pack.unpack_bits(words, BITS, D, backend),
        launches=lambda words: [bit_pack.unpack_launch(words, BITS, D)],
        in_numpy=partial(in_numpy.unpack, bits=BITS),
        builtins={"mx.dequantize": _dequantize(size)},
    )


def scalar_quantising(size: int, backend: str) -> Workload:
    """`scalar_quantise`."""
    y = sets(lambda seed: (normal(size // D, D, seed=seed),))
    return Workload(
        elements=size,
        counted=size,
        inputs=y,
        call=lambda y, backend: scalar.scalar_quantise(y, thresholds(), backend),
        launches=lambda y: [scalar.quantise_launch(y, thresholds())],
        in_numpy=partial(in_numpy.quantise, thresholds=np.array(thresholds())),
        builtins={"mx.quantize (finds scales, packs)": Builtin(_quantize, y)},
    )


def scalar_dequantising(size: int, backend: str) -> Workload:
    """`scalar_dequantise`."""
    levels = np.array(codebook())
    return Workload(
        elements=size,
        counted=size,
        inputs=_codes(size),
        call=lambda codes, backend: scalar.scalar_dequantise(codes, codebook(), backend=backend),
        launches=lambda codes: [scalar.dequantise_launch(codes, codebook(), mx.float32)],
        in_numpy=lambda codes: levels[codes],
        builtins={"mx.dequantize (unpacks too)": _dequantize(size)},
    )


def rotating(size: int, backend: str) -> Workload:
    """`hadamard_quantise`."""
    x = sets(lambda seed: (normal(size // D, D, seed=seed),))
    rotation = np.array(hadamard_matrix(signs()))
    arguments = (signs(), codebook(), thresholds(), (BITS,), False)
    return Workload(
        elements=size,
        counted=size,
        inputs=x,
        call=lambda x, backend: hadamard.hadamard_quantise(x, *arguments, backend=backend),
        launches=lambda x: [hadamard.quantise_launch(x, *arguments, None)],
        in_numpy=partial(in_numpy.rotate_quantise, rotation=rotation, thresholds=np.array(thresholds()), bits=BITS),
        builtins={
            "mx.quantize (no rotation)": Builtin(_quantize, x),
            "mx.hadamard_transform, then mx.quantize": Builtin(lambda x: _quantize(mx.hadamard_transform(x)), x),
        },
    )


def unrotating(size: int, backend: str) -> Workload:
    """`hadamard_dequantise`."""
    rotation, levels = np.array(hadamard_matrix(signs())), np.array(codebook())
    rest = (signs(), codebook(), (BITS,), mx.float16)
    return Workload(
        elements=size,
        counted=size,
        inputs=sets(lambda seed: coded(normal(size // D, D, seed=seed), BITS, backend)),
        call=lambda words, scales, backend: hadamard.hadamard_dequantise((words,), scales, *rest, backend),
        launches=lambda words, scales: [hadamard.dequantise_launch((words,), scales, *rest)],
        in_numpy=lambda words, scales: in_numpy.levels(words, scales, levels, BITS) @ rotation,
        builtins={"mx.dequantize (no rotation)": _dequantize(size)},
    )


def sketching(size: int, backend: str) -> Workload:
    """`qjl_encode`."""
    x, sketch = sets(lambda seed: (normal(size // D, D, seed=seed),)), _sketch()
    return Workload(
        elements=size,
        counted=size,
        inputs=x,
        call=lambda x, backend: qjl.sketch_signs(x, sketch, backend),
        launches=lambda x: [qjl.encode_launch(x, sketch)],
        in_numpy=partial(in_numpy.signs, sketch=np.array(sketch)),
        builtins={"mx.matmul (projects alone, float16)": Builtin(lambda x: x @ sketch.T.astype(mx.float16), x)},
    )


def vector_quantising(size: int, backend: str) -> Workload:
    """`vector_quantise`: 256 entries of 4 elements."""
    book = normal(1 << CODE_BITS, SUB_DIM, dtype=mx.bfloat16)
    return Workload(
        elements=size,
        counted=size,
        inputs=sets(lambda seed: (normal(size // SUB_DIM, SUB_DIM, seed=seed),)),
        call=lambda x, backend: vector.vector_quantise(x, book, backend),
        launches=lambda x: [vector.quantise_launch(x[None], book)],
        in_numpy=partial(in_numpy.nearest, codebook=np.array(book.astype(mx.float32))),
    )


def vector_dequantising(size: int, backend: str) -> Workload:
    """`vector_dequantise`."""
    book = normal(1 << CODE_BITS, SUB_DIM, dtype=mx.bfloat16)
    entries = np.array(book.astype(mx.float32))
    return Workload(
        elements=size,
        counted=size,
        inputs=[(codes.reshape(-1),) for (codes,) in _codes(size // SUB_DIM, 1 << CODE_BITS)],
        call=lambda codes, backend: vector.vector_dequantise(codes, book, backend),
        launches=lambda codes: [vector.dequantise_launch(codes[None], book)],
        in_numpy=lambda codes: entries[codes],
    )


def _sketch() -> mx.array:
    return normal(D, D, seed=9, dtype=mx.float32)


def _codes(size: int, count: int = 1 << BITS) -> list[Arrays]:
    """Random codes uint8 [vectors, up to d]."""
    shape = (max(1, size // D), min(D, size))

    def make(seed: int) -> Arrays:
        return (mx.random.randint(0, count, shape, key=mx.random.key(seed)).astype(mx.uint8),)

    return sets(make)


def _words(*shape: int, seed: int) -> mx.array:
    return mx.random.randint(0, 1 << 31, shape, dtype=mx.uint32, key=mx.random.key(seed))


def _quantize(x: mx.array) -> Any:
    return mx.quantize(x, group_size=GROUP, bits=BITS)


def _dequantize(size: int) -> Builtin:
    def call(words: mx.array, scales: mx.array, biases: mx.array) -> mx.array:
        return mx.dequantize(words, scales, biases, group_size=GROUP, bits=BITS)

    return Builtin(call, quantised((size // D, D)))
