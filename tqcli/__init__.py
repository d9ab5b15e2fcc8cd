"""tq tells what compressing a language model's KV cache costs and what it saves."""

import os

from tqcli import blas
from tqcli.version import __version__

# Here, since it must come before anything imports mlx.core: see blas.py.
blas.preload()
# A codec's arithmetic is float32. On NVIDIA GPUs MLX would multiply matrices in TF32, which is off by 3e-4 and flips
# codes; without it GPU and CPU agree but for a few codes on a boundary. MLX reads this at its first product.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

__all__ = ["__version__"]
