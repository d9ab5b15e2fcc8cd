"""Compiles a kernel's text with clang as C++ for OpenCL, whose address spaces and types are nearly Metal's.

It finds what only Metal's own compiler would: a device pointer given to a function that takes a threadgroup one, a
write to an input, a float put into a bfloat, names and overloads that Metal hasn't. Nothing is run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import mlx.core as mx

from tqcli.kernels.checker.finding import Finding, unique
from tqcli.kernels.runtime.attributes import METAL_ATTRIBUTES, attributes_in
from tqcli.kernels.runtime.kernel import INCLUDES, Launch
from tqcli.kernels.runtime.text import metal_buffers, metal_type

OLDEST = 14
"""The first major version of clang that knows enough."""
NEWEST = 30
MISSING = f"no clang {OLDEST} or newer on PATH: apt install clang (Debian), brew install llvm (Mac)"
_HEADER = Path(__file__).with_name("lint.h")
_OPTIONS = (
    *("-target", "spir64", "-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc", "-fsyntax-only"),
    # Metal has no double and is C++14. Neither has it a generic address space: bfloat's methods need that here, and
    # `textual_findings` finds what would use it in a kernel.
    *("-Xclang", "-cl-ext=-all,+cl_khr_fp16,+__opencl_c_generic_address_space"),
    *("-Wall", "-Wc++98-c++11-c++14-compat", "-Wno-unused", "-Wno-undefined-internal", "-Wno-unknown-pragmas"),
    *("-fno-caret-diagnostics", "-fno-color-diagnostics", "-ferror-limit=50"),
)
_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?:fatal )?(?P<kind>error|warning): (?P<text>.*)"
    r"(?:\n[^:\n]+:\d+:\d+: note: [^\n]*not viable: (?P<reason>.*))?$",
    re.MULTILINE,
)
_METAL_WORDS = (
    (r" ?(?<=[*&])__private\b", ""),
    (r"\b__generic ", ""),
    (r"\b__(private)\b", "thread"),
    (r"\b__global\b", "device"),
    (r"\b__local\b", "threadgroup"),
    (r"\b__constant\b", "constant"),
    (r"\bthe local address space\b", "the threadgroup address space"),
)
_SAID_BETTER = "double precision constant requires"
"""`textual_findings` names the literal."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DOUBLE = re.compile(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?(?![\w.])")
_SPACES = "device|constant|threadgroup|thread"
_TYPES = r"float|half|bfloat|bool|u?(?:char|short|int|long)|size_t|u?int(?:8|16|32|64)_t|b?float16_t"


class LintError(Exception):
    """clang itself failed."""


Run = Callable[[Sequence[str], str], str]
"""Runs a command on a text and returns what it said on stderr."""


@cache
def find_clang() -> str | None:
    """The path of the newest clang that serves, or None."""
    for name in (*(f"clang-{major}" for major in range(NEWEST, OLDEST - 1, -1)), "clang"):
        if (path := shutil.which(name)) and _major(path) >= OLDEST:
            return path
    return None


def lint(launch: Launch, clang: str, run: Run | None = None) -> list[Finding]:
    """What is wrong with the text of a launch, by file and line; empty if nothing is.

    Raises `LintError` where clang fails without a diagnostic.
    """
    said = (run or _run)([clang, *_OPTIONS, "-"], lint_text(launch))
    found = findings_of(said)
    if said.strip() and not found:
        raise LintError(f"clang said: {said.strip()[:500]}")
    return unique(found + textual_findings(launch))


def findings_of(said: str) -> list[Finding]:
    """Errors and warnings in what clang said, each with the reason that its first note gives, in Metal's words."""
    found = []
    for match in _DIAGNOSTIC.finditer(said):
        if match["text"].startswith(_SAID_BETTER):
            continue
        text = match["text"] + (f": {match['reason']}" if match["reason"] else "")
        for pattern, word in _METAL_WORDS:
            text = re.sub(pattern, word, text)
        found.append(Finding(match["file"], int(match["line"]), match["kind"], "", text))
    return found


def lint_text(launch: Launch) -> str:
    """The text that clang gets: Metal's vocabulary, the kernel's headers, its signature and its body."""
    kernel = launch.kernel
    headers = "".join(f'# 1 "{Path(name).name}"\n{_text(INCLUDES / name)}\n' for name in kernel.headers)
    parameters = [
        f"using {name} = {metal_type(value)};"
        if isinstance(value, mx.Dtype)
        else f"constexpr {type(value).__name__} {name} = {str(value).lower()};"
        for name, value in ((name, launch.template[name]) for name in kernel.template)
    ]
    arguments = metal_buffers(launch) + [f"{METAL_ATTRIBUTES[name]} {name}" for name in attributes_in(kernel.source)]
    # The body's own names may hide Metal's: these belong to the namespace around it.
    return (
        f'# 1 "lint.h" 3\n{_text(_HEADER)}\n{_text(INCLUDES / "names.h")}'
        f"namespace tq {{\nTQ_METAL_NAMES TQ_OTHER_NAMES TQ_ALL_MAKERS\n{headers}"
        f'# 1 "signature of {kernel.name}"\n'
        f"__kernel void {kernel.name}({', '.join(arguments)}) {{\n{' '.join(parameters)}\n"
        f'# 1 "{kernel.body.name}"\n{kernel.source}\n}}\n}}\n'
    )


def textual_findings(launch: Launch) -> list[Finding]:
    """What clang lets pass, and Metal or the other back-ends don't.

    Pointers and references that name no address space, which OpenCL takes for generic ones; floating-point literals
    without an f, which are doubles elsewhere; doubles.
    """
    kernel = launch.kernel
    types = "|".join([_TYPES, *(name for name in kernel.template if isinstance(launch.template[name], mx.Dtype))])
    words = rf"(?:\s+(?:const|volatile|{_SPACES}))*"
    pointer = re.compile(rf"(?:\b(?:const|volatile|{_SPACES})\s+)*\b(?:{types}){words}\s*[*&](?!&)")
    found = []
    for path in (*(INCLUDES / name for name in kernel.headers), kernel.body):
        text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), _text(path))
        said = [
            (match, f"{' '.join(match.group().split())} names no address space: {_SPACES.replace('|', ', ')}")
            for match in pointer.finditer(text)
            if not re.search(rf"\b(?:{_SPACES})\b", match.group())
        ]
        said += [(match, f"{match.group()} is a double: write {match.group()}f") for match in _DOUBLE.finditer(text)]
        said += [(match, "Metal has no double") for match in re.finditer(r"\bdouble\b", text)]
        found += [
            Finding(path.name, text.count("\n", 0, match.end()) + 1, "error", "", message) for match, message in said
        ]
    return found


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii")


def _run(command: Sequence[str], text: str) -> str:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stderr


def _major(clang: str) -> int:
    """0 for what doesn't say that it is a clang."""
    try:
        said = subprocess.run([clang, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    match = re.search(r"clang version (\d+)", said)
    return int(match[1]) if match else 0
