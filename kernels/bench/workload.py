"""One operation at one size, ready to be called: inputs, and who else can do the same work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from tqcli.kernels.runtime import Launch

Arrays = tuple[mx.array, ...]
BUFFERS = 3
"""Sets of inputs that calls take in turn, so that caches don't flatter the smaller sizes more than need be."""


@dataclass(frozen=True)
class Builtin:
    """What of MLX's own comes nearest to an operation."""

    call: Callable[..., Any]
    inputs: Sequence[Arrays]


@dataclass(frozen=True)
class Workload:
    """One operation at one size."""

    elements: int
    """Of the vectors that a call codes, decodes or compares with."""
    counted: int
    """The same by which `chosen` compares a call with the crossover size."""
    inputs: Sequence[Arrays]
    """Sets of what varies between calls."""
    call: Callable[..., Any]
    """The operation's public function: `call(*arrays, backend=...)`."""
    launches: Callable[..., Sequence[Launch]]
    """What `call` launches for these arrays on a GPU."""
    plain: Callable[..., Any] | None = None
    """The same in plain MLX operations, where the reference isn't meant for many elements."""
    in_numpy: Callable[..., Any] | None = None
    """Of the arrays as NumPy's, 16-bit floats as float32."""
    builtins: Mapping[str, Builtin] = field(default_factory=dict)
    """By a short note of what they do."""
