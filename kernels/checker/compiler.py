"""Compiles the runner and bodies with the machine's C++ compiler; what was compiled before is kept.

Compiled files lie in `kernels-check` in tq's cache folder, named by a hash of their text and the compiler.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkstemp

from tqcli.paths import cache_folder

_CPP = Path(__file__).resolve().parent / "cpp"
_COMPILERS = ("g++", "c++", "clang++")
_COMMON = ("-std=c++17", "-fPIC", "-w")
_BODY = (
    *("-O1", "-fvisibility=hidden", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-stack-protector"),
    *("-fno-strict-aliasing", "-fsanitize=thread", "-fsanitize=bounds,shift-exponent,integer-divide-by-zero,alignment"),
)
_LIBRARIES = ("-nodefaultlibs", "-lm", "-lc")  # not the sanitizers': the runner takes their place
_GNU = ("-fexcess-precision=16", "--param=tsan-instrument-func-entry-exit=0", "-fno-tree-loop-distribute-patterns")
_CLANG = ("-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-instrument-read-before-write=1")


class CompilerError(ValueError):
    """There is no compiler, or a body doesn't compile: one line that says what to do or where the mistake is."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler of this machine."""

    path: str
    version: str

    @property
    def body_flags(self) -> tuple[str, ...]:
        return (*_COMMON, *_BODY, *(_CLANG if "clang" in self.version else _GNU))


@cache
def compiler() -> Compiler:
    """What `$CXX` names, else the first of g++, c++ and clang++. Raises `CompilerError` if there is none."""
    for name in filter(None, (os.environ.get("CXX"), *_COMPILERS)):
        if path := shutil.which(name):
            done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return Compiler(path, done.stdout.splitlines()[0])
    raise CompilerError("checking kernels needs a C++ compiler and none is on PATH; install one: apt install g++")


@cache
def runner() -> Path:
    """The program that runs a compiled body, built at the first use."""
    sources = sorted(_CPP.glob("*.cpp"))
    flags = (*_COMMON, "-O2", "-rdynamic")
    text = "".join(path.read_text() for path in sorted(_CPP.iterdir()) if path.suffix in (".cpp", ".h"))
    target = _folder() / f"runner-{_key(text, *flags)}"
    if not target.exists():
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(_compile_runner_part, sources))
        try:
            _make(target, ["-rdynamic", *map(str, objects), "-ldl"])
        finally:
            for path in objects:
                path.unlink()
    return target


def _compile_runner_part(source: Path) -> Path:
    handle, name = mkstemp(suffix=".o", dir=_folder())
    os.close(handle)
    _call([compiler().path, *_COMMON, "-O2", "-c", str(source), "-o", name])
    return Path(name)


def build(text: str, lines: bool = True) -> Path:
    """Compiles the text of bodies (`source.translation_unit`) to a library that the runner loads.

    Without `lines` it is quicker, and nobody can tell which line an address belongs to. Raises `CompilerError` with the
    first mistake and its line.
    """
    flags = (*compiler().body_flags, *(["-g"] if lines else []))
    target = _folder() / f"body-{_key(text, _vocabulary(), *flags)}.so"
    if not target.exists():
        _make(target, [*flags, "-I", str(_CPP), "-shared", "-x", "c++", "-", *_LIBRARIES], text)
    return target


@cache
def _vocabulary() -> str:
    return "".join(path.read_text() for path in sorted(_CPP.glob("*.h")))


def _make(target: Path, arguments: list[str], text: str = "") -> None:
    """Written under a name of its own and renamed: several processes may build the same."""
    handle, name = mkstemp(suffix=".part", dir=target.parent)
    os.close(handle)
    try:
        _call([compiler().path, *arguments, "-o", name], text)
        Path(name).chmod(0o755)
        Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)


def _call(command: list[str], text: str = "") -> None:
    environment = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise CompilerError(_first_mistake(done.stderr))


def _first_mistake(messages: str) -> str:
    """`file:line: what` of the first error, and in which file of the body it was asked for."""
    for line in messages.splitlines():
        if match := re.match(r"(.*?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)", line):
            return f"{Path(match.group(1)).name}:{match.group(2)}: doesn't compile: {match.group(3)}"
    return f"the C++ compiler failed: {' '.join(messages.split())[:400]}"


def _folder() -> Path:
    folder = cache_folder() / "kernels-check"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _key(*parts: str) -> str:
    version = compiler().version
    return hashlib.sha256("\0".join([version, *parts]).encode()).hexdigest()[:20]
