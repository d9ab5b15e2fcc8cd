"""Looks at the machine that tq runs on: versions, devices, back-ends, the BLAS and the cache folder."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING

from tqcli import blas
from tqcli.errors import InputError
from tqcli.paths import cache_folder
from tqcli.version import __version__

if TYPE_CHECKING:
    import mlx.core as mx

DISTRIBUTION = "tq-mlx"
_PACKAGES = ("mlx", "mlx-lm", "numpy", "transformers")


@dataclass(frozen=True)
class Backend:
    """One way to run the operations that codecs call."""

    name: str
    """`metal`, `cuda` or `mlx`."""
    available: bool
    reason: str


@dataclass(frozen=True)
class Tool:
    """A program that `tq kernels check` calls."""

    name: str
    path: str | None
    """None if there is none."""
    reason: str
    """What it is for, or what to install."""


@dataclass(frozen=True)
class BlasReport:
    """The BLAS of MLX's CPU device, and how fast it is."""

    name: str
    path: str | None
    fast: bool
    reason: str
    gflops: float | None
    """Float32 product of two 768 x 768 matrices on the CPU, best of about 0.2 s, 10**9 operations a second."""


@dataclass(frozen=True)
class Diagnosis:
    """What `examine` finds. Versions are None where a package is missing."""

    versions: dict[str, str | None]
    platform: str
    devices: list[str]
    default_device: str | None
    backends: list[Backend]
    backend: str | None
    """The back-end that will be used; the reason is in its `Backend`."""
    tools: list[Tool]
    blas: BlasReport
    cache_folder: str
    cache_writable: bool
    models: dict[str, str | None]
    """Packaged models by name: the folder of the converted model, None if it isn't pulled yet."""
    warnings: list[str]


def examine() -> Diagnosis:
    """Gathers all of it, in about half a second. Raises nothing: what is broken is among the warnings."""
    warnings: list[str] = []
    devices: list[str] = []
    tools: list[Tool] = []
    default = backend = None
    try:
        import mlx.core as mx
    except ImportError as e:
        warnings.append(f"MLX can't be imported ({e}): {_mlx_remedy()}")
        backends = [Backend("mlx", False, "MLX can't be imported")]
        speed = None
    else:
        devices = [f"{kind}: {_device_name(kind)}" for kind in ("cpu", "gpu") if mx.is_available(_device(kind))]
        default = "cpu" if mx.default_device() == _device("cpu") else "gpu"
        backends = _backends()
        backend = _preferred(warnings)
        tools = _tools()
        speed = _gflops()
    now = blas.status()
    folder = cache_folder()
    writable = _is_writable(folder)
    if not writable:
        warnings.append(f"the cache folder {folder} can't be written: set TQ_CACHE to one that can")
    if (slow := blas.warning()) and "cpu" in (default or ""):
        warnings.append(slow)
    warnings += _script_warnings()
    return Diagnosis(
        versions=_versions(),
        platform=platform.platform(),
        devices=devices,
        default_device=default,
        backends=backends,
        backend=backend,
        tools=tools,
        blas=BlasReport(now.name, now.path, now.active, now.reason, speed),
        cache_folder=str(folder),
        cache_writable=writable,
        models=_models(),
        warnings=warnings,
    )


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version(), "tq": __version__}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _mlx_remedy() -> str:
    if platform.system() == "Linux":
        return f"pip install '{DISTRIBUTION}[cpu]', or '{DISTRIBUTION}[cuda]' with an NVIDIA GPU"
    return "MLX needs a Mac with Apple silicon and an arm64 Python"


def _device(kind: str) -> mx.Device:
    import mlx.core as mx

    return mx.Device(mx.cpu if kind == "cpu" else mx.gpu)


def _device_name(kind: str) -> str:
    import mlx.core as mx

    return str(mx.device_info(_device(kind)).get("device_name", "unknown"))


def _preferred(warnings: list[str]) -> str | None:
    """The back-end that is taken unless a call names one; None, and a warning, where TQ_BACKEND names none."""
    from tqcli.kernels.runtime.backend import preferred

    try:
        return preferred()[0]
    except InputError as e:
        warnings.append(str(e))
        return None


def _backends() -> list[Backend]:
    """The back-ends in order of preference."""
    import mlx.core as mx

    found = {"metal": mx.metal.is_available(), "cuda": mx.cuda.is_available()}
    kernels = sorted(path.name for path in _kernel_folder().glob("*/*.metal"))
    backends = []
    for name, there in found.items():
        backends.append(Backend(name, there, f"{len(kernels)} kernels" if there else "MLX finds no such device"))
    backends.append(Backend("mlx", True, f"plain MLX operations, on the {mx.default_device().type.name}"))
    return backends


def _tools() -> list[Tool]:
    from tqcli.kernels.checker.compiler import CompilerError, compiler
    from tqcli.kernels.checker.lint import MISSING, find_clang

    try:
        found = compiler()
        cpp = Tool("C++ compiler", " ".join(found.command), f"tq kernels check runs kernels with {found.version}")
    except CompilerError as e:
        cpp = Tool("C++ compiler", None, str(e))
    clang = find_clang()
    return [cpp, Tool("clang", clang, "tq kernels check lints kernels with it" if clang else MISSING)]


def _kernel_folder() -> Path:
    return Path(str(resources.files("tqcli"))) / "kernels"


def _gflops(size: int = 768, seconds: float = 0.2) -> float:
    import mlx.core as mx

    with mx.stream(_device("cpu")):
        a = mx.random.normal((size, size))
        mx.eval(a @ a)
        best, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            mx.eval(a @ a)
            best = min(best, time.perf_counter() - start)
    return float(2 * size**3 / best / 1e9)


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, or the folder itself where it isn't there yet."""
    nearest = next((f for f in (folder, *folder.parents) if f.exists()), folder)
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _models() -> dict[str, str | None]:
    from tqcli.models.packaged import PACKAGED, is_pulled, pulled_folder

    return {name: str(pulled_folder(name)) if is_pulled(name) else None for name in PACKAGED}


def _script_warnings() -> list[str]:
    """Other packages install a script called `tq` too: the one that was installed last wins."""
    others = {
        distribution.name
        for entry in metadata.entry_points(group="console_scripts", name="tq")
        if (distribution := entry.dist) is not None and distribution.name != DISTRIBUTION
    }
    found = [
        f"the package {name} installs a script called tq too: uninstall it, or run python -m tqcli" for name in others
    ]
    script = shutil.which("tq")
    own = Path(sys.executable).with_name("tq")
    if script is not None and own.exists() and not own.samefile(script):
        found.append(f"the tq found on PATH is {script}, not {own}")
    return found
