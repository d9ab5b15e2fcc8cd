"""Times operations at several sizes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from tqcli.kernels.bench import scoring, workloads
from tqcli.kernels.bench.timing import Contender, race
from tqcli.kernels.bench.workload import Workload
from tqcli.kernels.runtime.case import to_numpy
from tqcli.kernels.runtime.kernel import launch_bytes

OPERATIONS: Mapping[str, Callable[[int, str], Workload]] = {
    "bit_pack": workloads.packing,
    "bit_unpack": workloads.unpacking,
    "scalar_quantise": workloads.scalar_quantising,
    "scalar_dequantise": workloads.scalar_dequantising,
    "hadamard_quantise": workloads.rotating,
    "hadamard_dequantise": workloads.unrotating,
    "qjl_encode": workloads.sketching,
    "qjl_scores": scoring.sketch_scoring,
    "vector_quantise": workloads.vector_quantising,
    "vector_dequantise": workloads.vector_dequantising,
    "vector_scores": scoring.vector_scoring,
    "prod_scores": scoring.prod_scoring,
    "attend": scoring.attending,
}
"""What is timed, by the names that `chosen` knows operations by."""

KERNEL, PLAIN, COMPILED, NUMPY, COPY = "kernel", "plain MLX", "mx.compile", "NumPy", "copy"
_NUMPY_AT_MOST = 1 << 22
_BYTES_AN_ELEMENT = 80
"""Of memory that a size may take, all implementations' inputs and intermediate arrays together, roughly."""


@dataclass(frozen=True)
class Timed:
    """One implementation of an operation at one size."""

    implementation: str
    """`kernel`, `plain MLX`, `mx.compile`, `NumPy`, `copy`, or what of MLX's own it is."""
    microseconds: tuple[float, float, float] | None
    """Of a call: the first quartile, the median and the third; None if it failed."""
    gb_per_second: float | None
    """The kernel's inputs and outputs, or the copy's, by the median; None for MLX's own, which move other bytes."""
    of_copy: float | None
    """That, as a part of a copy's."""
    error: str | None


@dataclass(frozen=True)
class Measured:
    """An operation at one size."""

    operation: str
    elements: int
    counted: int
    """The size that the crossover is compared with."""
    bytes_moved: int
    """Of the inputs and outputs of the launches."""
    timed: list[Timed]

    def median(self, implementation: str) -> float | None:
        """Microseconds."""
        found = [t.microseconds[1] for t in self.timed if t.implementation == implementation and t.microseconds]
        return found[0] if found else None


def sizes(backend: str, quick: bool) -> list[int]:
    """Elements: 1 k to 64 M, to 1 M on a CPU, as far as the memory allows."""
    last = 26 if backend != "mlx" else 20
    powers = range(10, last + 1, 2) if not quick else [round(10 + (last - 10) * n / 4) for n in range(5)]
    memory = mx.device_info().get("memory_size", 0)
    most = int(memory) // _BYTES_AN_ELEMENT if isinstance(memory, int) and memory else math.inf
    return [1 << power for power in powers if 1 << power <= most]


def measure(operation: str, backend: str, of_sizes: Sequence[int], rounds: int, budget: float) -> Iterator[Measured]:
    """Times an operation at each size, at most about `budget` seconds for each; one of no kernel if backend is `mlx`.

    What mx.compile refuses at the first size isn't asked again.
    """
    compiles = True
    for size in of_sizes:
        work = OPERATIONS[operation](size, backend)
        contenders = _contenders(work, backend, compiles)
        race(contenders, rounds, budget)
        compiles = compiles and contenders[COMPILED].error is None
        yield _measured(operation, work, contenders)
        del work, contenders
        mx.clear_cache()


def crossover(measured: Sequence[Measured]) -> int | None:
    """The size, as `chosen` counts it, from which the kernel is faster than plain operations; None if at none.

    0 if at all. Between two sizes it is read off the straight line through the ratios, both on logarithmic axes.
    """
    points = []
    for of in measured:
        kernel, plain = of.median(KERNEL), of.median(PLAIN)
        if kernel is not None and plain is not None:
            points.append((math.log2(of.counted), math.log2(kernel / plain)))
    slower = [n for n, (_, ratio) in enumerate(points) if ratio > 0]
    if not slower:
        return 0 if points else None
    if slower[-1] == len(points) - 1:
        return None
    (x1, y1), (x2, y2) = points[slower[-1]], points[slower[-1] + 1]
    return round(2 ** (x1 + (x2 - x1) * y1 / (y1 - y2)))


def _contenders(work: Workload, backend: str, compiles: bool) -> dict[str, Contender]:
    def plain(*arrays: mx.array) -> Any:
        return work.call(*arrays, backend="mlx") if work.plain is None else work.plain(*arrays)

    def kernel(*arrays: mx.array) -> Any:
        return work.call(*arrays, backend=backend)

    found = {} if backend == "mlx" else {KERNEL: Contender(kernel, work.inputs)}
    found[PLAIN] = Contender(plain, work.inputs)
    if compiles:
        found[COMPILED] = Contender(mx.compile(plain), work.inputs)
    for note, builtin in work.builtins.items():
        found[note] = Contender(builtin.call, builtin.inputs)
    x = workloads.sets(lambda seed: (workloads.normal(work.elements, seed=seed, dtype=mx.float32),))
    found[COPY] = Contender(lambda x: x + 0.0, x)
    return found


def _measured(operation: str, work: Workload, contenders: Mapping[str, Contender]) -> Measured:
    moved = sum(launch_bytes(launch) for launch in work.launches(*work.inputs[0]))
    moved_by = {KERNEL: moved, PLAIN: moved, COMPILED: moved, COPY: 8 * work.elements}
    copy = contenders[COPY].quartiles()[1] if contenders[COPY].seconds else None
    copied = None if copy is None else 8 * work.elements / copy / 1e9
    timed = []
    for name, contender in contenders.items():
        if not contender.seconds:
            timed.append(Timed(name, None, None, None, contender.error))
            continue
        first, half, third = contender.quartiles()
        speed = moved_by[name] / half / 1e9 if name in moved_by else None
        of_copy = None if speed is None or copied is None else speed / copied
        timed.append(Timed(name, (first * 1e6, half * 1e6, third * 1e6), speed, of_copy, None))
    if work.in_numpy is not None and work.elements <= _NUMPY_AT_MOST:
        seconds = _numpy_seconds(work)
        timed.append(Timed(NUMPY, (seconds * 1e6,) * 3, moved / seconds / 1e9, None, None))
    return Measured(operation, work.elements, work.counted, moved, timed)


def _numpy_seconds(work: Workload) -> float:
    """Of one call, the second."""
    assert work.in_numpy is not None
    arrays = [_plain_numpy(array) for array in work.inputs[0]]
    work.in_numpy(*[array[:1] for array in arrays] if work.elements > 1 << 16 else arrays)
    began = time.perf_counter()
    work.in_numpy(*arrays)
    return time.perf_counter() - began


def _plain_numpy(array: mx.array) -> np.ndarray[Any, np.dtype[Any]]:
    """NumPy computes in float16 element by element: as float32 then."""
    return to_numpy(array.astype(mx.float32) if array.dtype == mx.float16 else array)
