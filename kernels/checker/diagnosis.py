"""What a C++ compiler said of a body, as one line that names the user's file and line, never the text around it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tqcli.kernels.checker.finding import NOT_COMPILED, Finding, file_name
from tqcli.kernels.checker.source import stand_in
from tqcli.kernels.runtime.shared_memory import without_comments

_PLACE = re.compile(r"(?P<file>[^\n]*?):(?P<line>\d+):(?:\d+:)? *(?P<rest>.*)")
_ERROR = re.compile(r"(?:fatal )?error: (?P<what>.*)")
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'')
_HINTS = (
    (
        re.compile(r"no matching function for call to 'atomic_"),
        "an output is atomic by atomic_outputs: true in the spec, or by a cast: (device atomic_float*)&y[0]",
    ),
    (
        re.compile(r"no member named '[xyzwrgba]{2,4}'"),
        "the CPU checker has no swizzles of several members: name them one by one",
    ),
    (
        re.compile(r"function[- ]definition is not allowed here"),
        "functions of your own go into a header, which the spec names under headers",
    ),
)
_CLOSES = {")": "(", "]": "[", "}": "{"}


def diagnosis(said: str, files: Mapping[Path, str]) -> Finding | None:
    """Where a text doesn't compile and why, from the compiler's messages and the texts of headers and body, body last.

    None where the compiler named no mistake.

    A bracket that is never closed is told where it stands: the compiler only misses it where the file ends. What the
    compiler found elsewhere is told at the line of the body that asked for it, or of the body as a whole.
    """
    for path, text in files.items():
        if mistake := _unbalanced(text):
            return _finding(path, *mistake)
    paths = {stand_in(number): path for number, path in enumerate(files)}
    lines = said.splitlines()
    errors = [(n, place, error) for n, place in _places(lines) if (error := _ERROR.match(place["rest"]))]
    if not errors:
        return None
    edges = [number for number, _, _ in errors[1:]] + [len(lines)]
    start = 0
    for (_, place, error), end in zip(errors, edges, strict=True):
        around = [place, *(other for _, other in _places(lines[start:end]))]
        for near in around:
            if near["file"] in paths:
                return _finding(paths[near["file"]], int(near["line"]), _with_hint(error["what"]))
        start = end
    return _finding(list(paths.values())[-1] if paths else "", 0, errors[0][2]["what"])


def _finding(path: Path | str, line: int, why: str) -> Finding:
    return Finding(file_name(path) if path else "", line, NOT_COMPILED, "", why)


def _with_hint(what: str) -> str:
    return what + "".join(f"; {hint}" for pattern, hint in _HINTS if pattern.search(what))


def _places(lines: list[str]) -> Iterator[tuple[int, re.Match[str]]]:
    for number, line in enumerate(lines):
        if match := _PLACE.match(line):
            yield number, match


def _unbalanced(text: str) -> tuple[int, str] | None:
    """The line of the first bracket without its partner, and what is wrong with it."""
    plain = _LITERAL.sub(lambda m: " " * len(m.group()), without_comments(text))
    if (start := plain.find("/*")) >= 0:
        return plain.count("\n", 0, start) + 1, "the comment is never closed"
    opened: list[tuple[str, int]] = []
    for number, line in _compiled(plain):
        for sign in re.findall(r"[][(){}]", line):
            if sign not in _CLOSES:
                opened.append((sign, number))
            elif not opened:
                return number, f"'{sign}' closes nothing"
            elif opened[-1][0] != _CLOSES[sign]:
                return opened[-1][1], f"'{opened[-1][0]}' isn't closed before the '{sign}' in line {number}"
            else:
                opened.pop()
    return (opened[-1][1], f"'{opened[-1][0]}' is never closed") if opened else None


def _compiled(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without the preprocessor's and what is not in the first branch of an #if."""
    skipped: list[bool] = []
    for number, line in enumerate(text.splitlines(), 1):
        directive = re.match(r"\s*#\s*(\w+)", line)
        if directive is None:
            if not any(skipped):
                yield number, line
        elif directive[1].startswith("if"):
            skipped.append(False)
        elif directive[1].startswith("el") and skipped:
            skipped[-1] = True
        elif directive[1] == "endif" and skipped:
            skipped.pop()
