"""Kernels on Apple GPUs: `mx.fast.metal_kernel`."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx

from tqcli.kernels.runtime.kernel import Kernel, Launch, arguments


@cache
def built(kernel: Kernel) -> Any:
    """The kernel as MLX calls it. MLX compiles it once for each set of template parameters, and keeps that."""
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
