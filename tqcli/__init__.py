"""tq tells what compressing a language model's KV cache costs and what it saves."""

from tqcli import blas
from tqcli.version import __version__

# Here, since it must come before anything imports mlx.core: see blas.py.
blas.preload()

__all__ = ["__version__"]
