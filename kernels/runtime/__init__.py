"""Builds kernels for the GPU at hand, chooses between them and plain MLX operations, and counts what was chosen."""

from tqcli.kernels.runtime.backend import Use, added, chosen, preferred, reset_used, set_backend, used
from tqcli.kernels.runtime.dispatch import run
from tqcli.kernels.runtime.kernel import Kernel, Launch, too_large

__all__ = [
    "Kernel",
    "Launch",
    "Use",
    "added",
    "chosen",
    "preferred",
    "reset_used",
    "run",
    "set_backend",
    "too_large",
    "used",
]
