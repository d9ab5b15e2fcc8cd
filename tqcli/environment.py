"""What the numbers of a run were made with."""

from __future__ import annotations

import platform
from importlib.metadata import version

import mlx.core as mx

from tqcli import blas
from tqcli.version import __version__


def device_name() -> str:
    """The device that MLX runs on by default, with its BLAS where that matters, for example "cpu (OpenBLAS 0.3.31)"."""
    if mx.default_device() == mx.Device(mx.cpu):
        return f"cpu ({blas.status().name})"
    return str(mx.device_info().get("device_name", "gpu"))


def versions() -> dict[str, str]:
    """tq, mlx, python and platform."""
    return {
        "tq": __version__,
        "mlx": version("mlx"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
