"""Kernels on NVIDIA GPUs: `mx.fast.cuda_kernel` with the Metal body behind headers that give CUDA Metal's names.

MLX takes a grid in threads on both back-ends, but on CUDA whole threadgroups run: threads past a ragged grid too. A
`Launch` has no ragged grid, so that all is the same.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx

from tqcli.kernels.runtime.attributes import CUDA_VALUES, METAL_ATTRIBUTES, attributes_in
from tqcli.kernels.runtime.kernel import INCLUDES, Kernel, Launch, arguments
from tqcli.kernels.runtime.shared_memory import declarations

HEADERS = ("cuda/types.h", "cuda/math.h", "cuda/threads.h", "names.h", "cuda/spaces.h")


def built(kernel: Kernel) -> Any:
    """The kernel as MLX calls it, built anew after an edit of its body.

    MLX compiles it once for each text and each set of template parameters, and keeps that.
    """
    return _built(kernel, kernel.version())


@cache
def _built(kernel: Kernel, version: tuple[int, int]) -> Any:
    return mx.fast.cuda_kernel(
        name=kernel.name,
        input_names=list(kernel.inputs),
        output_names=list(kernel.outputs),
        source=cuda_source(kernel),
        header=cuda_header(kernel),
    )


def run(launch: Launch, verbose: bool = False) -> list[mx.array]:
    """The launch's outputs, not yet evaluated. `verbose` makes MLX print the text that it compiles."""
    outputs: list[mx.array] = built(launch.kernel)(**arguments(launch), verbose=verbose)
    return outputs


def cuda_header(kernel: Kernel) -> str:
    """Metal's vocabulary, then the kernel's own headers in a namespace where it is in use."""
    text = "".join((INCLUDES / name).read_text(encoding="ascii") for name in HEADERS)
    own = "".join(shared_declarations((INCLUDES / name).read_text(encoding="ascii"), name) for name in kernel.headers)
    return f"{text}\nnamespace tq {{\nTQ_METAL_NAMES\n{own}\n}}  // namespace tq\n\n"


def cuda_source(kernel: Kernel) -> str:
    """The body in a block of its own, after the thread attributes that it mentions. Its lines keep their numbers.

    So the body's names may hide Metal's, as in Metal. Raises `ValueError` for atomic outputs, which MLX hasn't on CUDA.
    """
    if kernel.atomic_outputs:
        raise ValueError(f"{kernel.name} has atomic outputs, which MLX gives kernels on Metal alone")
    body = kernel.source
    attributes = "".join(
        f"  const {METAL_ATTRIBUTES[name]} {name}{_initialiser(CUDA_VALUES[name])};\n" for name in attributes_in(body)
    )
    return (
        f"  TQ_METAL_NAMES\n  using namespace ::tq;\n{attributes}  {{\n"
        f'#line 1 "{kernel.body.name}"\n{shared_declarations(body, kernel.body.name)}\n  }}'
    )


def shared_declarations(text: str, name: str) -> str:
    """Makes declarations of threadgroup memory `__shared__`; pointers to it, also parameters, stay as they are.

    Raises `ValueError` with a line of `name`, the file, for a declaration that `shared_memory` doesn't know.
    """
    out, end = [], 0
    for declaration in declarations(text, name):
        out += [text[end : declaration.start], "__shared__"]
        end = declaration.start + len("threadgroup")
    return "".join([*out, text[end:]])


def _initialiser(value: str) -> str:
    return value if value.startswith("(") and "," in value else f" = {value}"
