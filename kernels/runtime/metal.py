"""Kernels on Apple GPUs: `mx.fast.metal_kernel`."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx

from tqcli.kernels.runtime.kernel import Kernel, Launch, arguments


def built(kernel: Kernel) -> Any:
    """The kernel as MLX calls it, built anew after an edit of its body.

    MLX compiles it once for each text and each set of template parameters, and keeps that.
    """
    return _built(kernel, kernel.version())


@cache
def _built(kernel: Kernel, version: tuple[int, int]) -> Any:
    return mx.fast.metal_kernel(
        name=kernel.name,
        input_names=list(kernel.inputs),
        output_names=list(kernel.outputs),
        source=kernel.source,
        header=kernel.header,
        atomic_outputs=kernel.atomic_outputs,
    )


def run(launch: Launch, verbose: bool = False) -> list[mx.array]:
    """The launch's outputs, not yet evaluated. `verbose` makes MLX print the text that it compiles."""
    outputs: list[mx.array] = built(launch.kernel)(**arguments(launch), verbose=verbose)
    return outputs
