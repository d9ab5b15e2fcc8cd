"""A GPU kernel: one Metal body, and what a launch of it needs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

ATOMIC_DTYPES = ("float32", "int32", "uint32")
"""Of arrays whose elements Metal takes as `atomic<T>`."""
Parameter = int | bool | mx.Dtype
Size = tuple[int, int, int]
_ONE_OF_MANY = re.compile(r"\b1 ([a-z]+)s\b")
_SIMD_WIDTH, _MOST_THREADS = 32, 1024
_THREADS_A_SIDE = 2**31 - 1
GROUPS_A_SIDE = 65535
"""Threadgroups along the second and the third side of a grid, at most: CUDA has no more."""
INCLUDES = Path(__file__).resolve().parent.parent / "include"
"""Where header files lie that several bodies share."""


@dataclass(frozen=True)
class Kernel:
    """One Metal body, as `mx.fast.metal_kernel` takes it: no signature, its inputs and outputs by name.

    The same body runs on CUDA behind a compatibility header. Nothing is compiled until a launch.
    """

    name: str
    """As users call it; letters, digits and underscores."""
    body: Path
    """The .metal file."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    template: tuple[str, ...] = ()
    """Names of the template parameters, in order: types (written T, U, ...), integers and booleans."""
    headers: tuple[str, ...] = ()
    """Files under `INCLUDES` that come before the body, in order."""
    atomic_outputs: bool = False
    """Whether outputs, of `ATOMIC_DTYPES`, are `device atomic<T>*`. On Metal and in the checker, not on CUDA."""

    @property
    def source(self) -> str:
        """The body's text."""
        return self.body.read_text(encoding="ascii")

    @property
    def header(self) -> str:
        """The headers' text, one after the other; empty if there is none."""
        return "".join((INCLUDES / name).read_text(encoding="ascii") for name in self.headers)

    def version(self) -> tuple[int, int]:
        """Another one after the body was edited, asked at each launch: far quicker than reading the text.

        An edited header is seen by the next process alone.
        """
        found = self.body.stat()
        return found.st_mtime_ns, found.st_size


@dataclass(frozen=True)
class Launch:
    """One call of a kernel with everything in place: what a back-end runs, and what the checker checks."""

    kernel: Kernel
    inputs: Sequence[mx.array]
    """Row-contiguous, none 0-dimensional, in the order of `kernel.inputs`."""
    template: Mapping[str, Parameter]
    grid: Size
    """Threads in all, on every back-end; each side a multiple of the threadgroup's."""
    threadgroup: Size
    output_shapes: Sequence[tuple[int, ...]]
    output_dtypes: Sequence[mx.Dtype]
    init_value: float | None = None
    """What outputs hold before the kernel runs; left alone if None."""
    note: str = field(default="", compare=False)
    """What it is a case of, for tables; users are shown `title`."""

    @property
    def title(self) -> str:
        """The note, dtypes and counts of one as people write them."""
        return _ONE_OF_MANY.sub(r"1 \1", self.note.replace("mlx.core.", "").replace(" 1 queries", " 1 query"))

    def check(self) -> None:
        """Raises `ValueError` where the launch doesn't fit its kernel or some back-end would take it otherwise."""
        kernel, grid, group = self.kernel, self.grid, self.threadgroup
        here = f"launch of {kernel.name}: "
        if len(self.inputs) != len(kernel.inputs) or any(x.ndim == 0 for x in self.inputs):
            raise ValueError(f"{here}inputs {[x.shape for x in self.inputs]} for {kernel.inputs}, none 0-dimensional")
        if set(self.template) != set(kernel.template):
            raise ValueError(f"{here}template parameters {sorted(self.template)}, not {sorted(kernel.template)}")
        if any(value < 0 for value in self.template.values() if isinstance(value, int)):
            raise ValueError(f"{here}a negative template parameter in {dict(self.template)}: CUDA can't name it")
        if not len(self.output_shapes) == len(self.output_dtypes) == len(kernel.outputs):
            raise ValueError(f"{here}{len(self.output_shapes)} output shapes for {kernel.outputs}")
        if min(grid) < 1 or any(threads % side for threads, side in zip(grid, group, strict=True)):
            raise ValueError(f"{here}grid {grid} is not a multiple of the threadgroup {group}")
        if reason := too_large(grid, group):
            raise ValueError(f"{here}{reason}")
        threads = group[0] * group[1] * group[2]
        if threads % _SIMD_WIDTH or threads > _MOST_THREADS:
            raise ValueError(f"{here}a threadgroup has a multiple of 32 threads up to 1024, not {threads}")


def too_large(grid: Size, threadgroup: Size) -> str | None:
    """Why some back-end can't run a grid of so many threads; None where all can.

    Operations ask before they choose. MLX takes the sides as int32.
    """
    for axis, threads, side in zip("xyz", grid, threadgroup, strict=True):
        if threads > _THREADS_A_SIDE:
            return f"a launch of {threads} threads along {axis}, more than {_THREADS_A_SIDE}"
        if axis != "x" and (groups := -(-threads // side)) > GROUPS_A_SIDE:
            return f"a launch of {groups} threadgroups along {axis}, more than {GROUPS_A_SIDE}"
    return None


@cache
def unused(dtype: mx.Dtype = mx.float32, elements: int = 8) -> mx.array:
    """Zeros in the place of an input that a launch doesn't read; kept, for making some costs a launch of its own."""
    return mx.array([0] * elements, dtype=dtype)


def launch_bytes(launch: Launch) -> int:
    """Bytes of a launch's inputs and outputs: what it must move at least, if it reads all of every input."""
    outputs = zip(launch.output_shapes, launch.output_dtypes, strict=True)
    return sum(x.nbytes for x in launch.inputs) + sum(math.prod(shape) * dtype.size for shape, dtype in outputs)


def arguments(launch: Launch) -> dict[str, Any]:
    """A launch as keyword arguments of a kernel that MLX built, alike on Metal and CUDA."""
    return {
        "inputs": list(launch.inputs),
        "template": [(name, launch.template[name]) for name in launch.kernel.template],
        "grid": launch.grid,
        "threadgroup": launch.threadgroup,
        "output_shapes": list(launch.output_shapes),
        "output_dtypes": list(launch.output_dtypes),
        "init_value": launch.init_value,
    }
