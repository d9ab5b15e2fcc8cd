"""Compiles the runner and bodies with the machine's C++ compiler; what was compiled before is kept.

Compiled files lie in `kernels-check` in tq's cache folder, named by a hash of their text and the compiler.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp

from tqcli.kernels.checker.diagnosis import diagnosis
from tqcli.kernels.checker.finding import Finding
from tqcli.kernels.checker.processes import call, workers
from tqcli.paths import cache_folder

_CPP = Path(__file__).resolve().parent / "cpp"
_UNFINISHED = "tmp"
"""How the names of files begin that are gone once their process ends."""
_ABANDONED_SECONDS = 3600
_COMPILERS = ("g++", "c++", "clang++")
_COMMON = ("-std=c++17", "-fPIC", "-w")
_BODY = (
    *("-O1", "-fvisibility=hidden", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-stack-protector"),
    *("-fno-strict-aliasing", "-fsanitize=thread", "-fsanitize=bounds,shift-exponent,integer-divide-by-zero,alignment"),
    "-fno-finite-loops",  # C++ lets a compiler take a loop without end for one that ends
)
_LIBRARIES = ("-nodefaultlibs", "-lm", "-lc")  # not the sanitizers': the runner takes their place
_WRAPPED = ("-Wl,--wrap=memcpy", "-Wl,--wrap=memmove", "-Wl,--wrap=memset")
_GNU = ("-fno-tree-loop-distribute-patterns", "-fno-thread-jumps")  # the latter would give one call two addresses
_EXCESS = "-fexcess-precision=16"
"""Operations of _Float16 are rounded one by one; g++ knows it since it has the type in C++. Others' halves are ours."""
_CLANG = (
    "-fno-optimize-sibling-calls",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
    "-mllvm",
    "-tsan-instrument-read-before-write=1",
)


class CompilerError(ValueError):
    """There is no compiler, or a body doesn't compile: one line that says what to do or where the mistake is."""


class BodyError(CompilerError):
    """A body doesn't compile."""

    def __init__(self, finding: Finding) -> None:
        """finding: where, and why."""
        super().__init__(str(finding))
        self.finding = finding


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler of this machine."""

    command: tuple[str, ...]
    """Its path, after that of a program such as ccache if `$CXX` names one."""
    version: str
    clang: int
    """Its major version; 0 for GNU's."""
    has_half: bool
    """Whether it knows _Float16; where it doesn't, `msl_half.h` stands for it."""

    @property
    def body_flags(self) -> tuple[str, ...]:
        own = _CLANG if self.clang else (*_GNU, _EXCESS) if self.has_half else _GNU
        return (*_COMMON, *_BODY, *own)

    @property
    def libraries(self) -> tuple[str, ...]:
        return (*_LIBRARIES, *(_WRAPPED if 0 < self.clang < 15 else ()))


@cache
def compiler() -> Compiler:
    """What `$CXX` names, else the first of g++, c++ and clang++.

    Raises `CompilerError` if there is none, or if `$CXX` names something else.
    """
    wanted = os.environ.get("CXX", "")
    here, remedy = f"CXX is {wanted!r}", "name g++ or clang++, or unset CXX"
    try:
        named = shlex.split(wanted)
    except ValueError as e:
        raise CompilerError(f"{here}, which is no command ({e}): {remedy}") from e
    if named:
        if shutil.which(named[0]) is None:
            raise CompilerError(f"{here}, and there is no program {named[0]}: {remedy}")
        if found := _compiler(named):
            return found
        raise CompilerError(f"{here}, which is no C++ compiler of GNU's or clang's kind: {remedy}")
    for name in _COMPILERS:
        if shutil.which(name) and (found := _compiler([name])):
            return found
    raise CompilerError("checking kernels needs a C++ compiler and none is on PATH; install one: apt install g++")


def _compiler(named: Sequence[str]) -> Compiler | None:
    """What a command says of itself; None if it isn't a compiler that the checker can use."""
    command = (str(shutil.which(named[0])), *named[1:])
    asked = [*command, "-dM", "-E", "-x", "c++", "/dev/null"]
    try:
        macros = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return None
    known = dict(re.findall(r"#define (\w+) ?(.*)", macros))
    if not {"__GNUC__", "__cplusplus"} <= set(known):
        return None
    return Compiler(command, version.partition("\n")[0], int(known.get("__clang_major__", 0)), "__FLT16_MAX__" in known)


@cache
def runner() -> Path:
    """The program that runs a compiled body, built at the first use."""
    _remove_abandoned(_folder())
    sources = sorted(_CPP.glob("*.cpp"))
    flags = (*_COMMON, "-O2", "-rdynamic")
    text = "".join(path.read_text() for path in sorted(_CPP.iterdir()) if path.suffix in (".cpp", ".h"))
    target = _folder() / f"runner-{_key(text, *flags)}"
    if not _is_whole(target):
        with _own_folder() as own:
            objects = [own / f"{path.stem}.o" for path in sources]
            commands = [
                [*_COMMON, "-O2", "-c", str(path), "-o", str(made)] for path, made in zip(sources, objects, strict=True)
            ]
            with workers(os.cpu_count() or 1) as pool:
                list(pool.map(lambda command: _call(command, own), commands))
            _make(target, ["-rdynamic", *map(str, objects), "-ldl"])
    return target


@contextmanager
def _own_folder() -> Iterator[Path]:
    """For what is being compiled; gone afterwards."""
    with TemporaryDirectory(prefix=_UNFINISHED, dir=_folder(), ignore_cleanup_errors=True) as own:
        yield Path(own)


def _remove_abandoned(folder: Path) -> None:
    """Unfinished files of a process that was killed: those of the last hour may be another's at work."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        with suppress(FileNotFoundError):  # another process removes them too
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_whole(path: Path) -> bool:
    """Whether it is a compiled file to its end, which the table of its sections makes."""
    with suppress(FileNotFoundError, struct.error), path.open("rb") as file:
        head = file.read(64)
        start, size, count = *struct.unpack_from("<Q", head, 40), *struct.unpack_from("<2H", head, 58)
        return head.startswith(b"\x7fELF") and path.stat().st_size >= start + size * count
    return False


def build(text: str, files: Mapping[Path, str], once: bool = False) -> Path:
    """Compiles the text of bodies (`source.translation_unit`) to a library that the runner loads.

    `once`: into a file of its own, which the caller removes; that is quicker, and nobody can tell which line an address
    belongs to. Raises `CompilerError` with the first mistake and its line in one of the `files` that the text was made
    of: headers, then the body.
    """
    flags = (*compiler().body_flags, *([] if once else ["-g"]))
    if once:
        handle, name = mkstemp(prefix=_UNFINISHED, suffix=".so", dir=_folder())
        os.close(handle)
        target = Path(name)
    else:
        target = _folder() / f"body-{_key(text, _vocabulary(), *flags, *compiler().libraries)}.so"
    if once or not _is_whole(target):
        try:
            _make(target, [*flags, "-I", str(_CPP), "-shared", "-x", "c++", "-", *compiler().libraries], text, files)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
    return target


@cache
def _vocabulary() -> str:
    return "".join(path.read_text() for path in sorted(_CPP.glob("*.h")))


def _make(target: Path, arguments: list[str], text: str = "", files: Mapping[Path, str] | None = None) -> None:
    """Written in a folder of its own and renamed: several processes may build the same."""
    with _own_folder() as own:
        made = own / "made"
        _call([*arguments, "-o", str(made)], own, text, files)
        made.chmod(0o755)
        made.replace(target)


def _call(arguments: list[str], own: Path, text: str = "", files: Mapping[Path, str] | None = None) -> None:
    """`own`: the folder for the compiler's own files."""
    environment = os.environ | {"LC_ALL": "C", "TMPDIR": str(own)}
    done = call([*compiler().command, *arguments], text.encode(), environment)
    if done.returncode:
        said = done.stderr.decode(errors="replace")
        if finding := diagnosis(said, files or {}):
            raise BodyError(finding)
        raise CompilerError(f"the C++ compiler failed: {' '.join(said.split())[:400]}")


def _folder() -> Path:
    folder = cache_folder() / "kernels-check"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _key(*parts: str) -> str:
    used = compiler()
    return hashlib.sha256("\0".join([*used.command, used.version, *parts]).encode()).hexdigest()[:20]
