"""Runs a launch on a GPU's back-end."""

from __future__ import annotations

import mlx.core as mx

from tqcli.kernels.runtime import cuda, metal
from tqcli.kernels.runtime.kernel import Launch

_RUNNERS = {"metal": metal.run, "cuda": cuda.run}


def run(launch: Launch, backend: str) -> list[mx.array]:
    """The outputs of a launch, in the order of `kernel.outputs`, computed on `metal` or `cuda`.

    A kernel that can't be built raises, here or when the outputs are evaluated; nothing else is tried. Raises
    `ValueError` for another back-end: `mlx` means an operation's reference, which isn't a launch.
    """
    if backend not in _RUNNERS:
        raise ValueError(f"a launch of {launch.kernel.name} runs on {' or '.join(_RUNNERS)}, not on {backend!r}")
    launch.check()
    return _RUNNERS[backend](launch)
