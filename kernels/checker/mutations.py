"""Small mistakes put into a body's text: a barrier taken away, a bound or an index one off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqcli.kernels.runtime.shared_memory import without_comments

_BARRIER = re.compile(r"\b(?:threadgroup|simdgroup)_barrier\s*\([^;]*\)\s*;")
# House style has blanks around comparisons and none around the brackets of templates.
_COMPARISON = re.compile(r" (<=|>=|<|>) ")
_LESSER = re.compile(r"(\w+) (?:<=|>=|<|>) (\w+) \? (?:\1 : \2|\2 : \1)\b")
"""The lesser or the greater of two: one off is the same."""
_ONE_OFF = {"<": ("<=", "+ 1 <"), "<=": ("<", "<= 1 +"), ">": (">=", "> 1 +"), ">=": (">", "+ 1 >=")}
_INDEXED = re.compile(r"\b([A-Za-z_]\w*)\[")
_FLOATS = re.compile(r"\b(?:float|half|bfloat)[234]?\s+(?:const\s+)?([A-Za-z_]\w*)")
_STATEMENTS = ("return", "case", "else")


@dataclass(frozen=True)
class Mutation:
    """One change of one file."""

    file: Path
    line: int
    change: str
    """What was done, or the new bound."""
    code: str
    """The line as it was, without blanks at its ends."""
    text: str
    """The whole file with the change."""


def mutations(file: Path, text: str) -> list[Mutation]:
    """Every barrier removed, every bound of integers and every index shifted by one, each by itself."""
    plain = without_comments(text)
    spots = [*_barriers(plain), *_bounds(plain), *_indices(plain)]
    return [_mutation(file, text, *spot) for spot in sorted(spots)]


_Spot = tuple[int, int, str, str]
"""Start, end, what comes there, and how it is called."""


def _mutation(file: Path, text: str, start: int, end: int, new: str, change: str) -> Mutation:
    line = text.count("\n", 0, start) + 1
    kept = new + "\n" * text.count("\n", start, end)
    return Mutation(file, line, change, text.splitlines()[line - 1].strip(), text[:start] + kept + text[end:])


def _barriers(text: str) -> Iterator[_Spot]:
    for match in _BARRIER.finditer(text):
        yield match.start(), match.end(), ";", "barrier removed"


def _bounds(text: str) -> Iterator[_Spot]:
    floats = set(_FLOATS.findall(text))
    lesser = [range(*match.span()) for match in _LESSER.finditer(text)]
    for match in _COMPARISON.finditer(text):
        if _in_preprocessor(text, match.start()) or any(match.start() in span for span in lesser):
            continue
        left, right = _operand_before(text[: match.start()]), _operand_after(text[match.end() :])
        if _is_float(left, floats) or _is_float(right, floats):
            continue
        for new in _ONE_OFF[match.group(1)]:
            yield match.start(), match.end(), f" {new} ", f"{left} {new} {right}"


def _operand_before(text: str) -> str:
    """What is compared, back to the start of its expression or the bracket that it stands in."""
    part = re.split(r"[;{}?:,&|=!]", text)[-1]
    depth = 0
    for at in range(len(part) - 1, -1, -1):
        depth += (part[at] in ")]") - (part[at] in "([")
        if depth < 0:
            return part[at + 1 :].strip()
    return part.strip()


def _operand_after(text: str) -> str:
    part = re.split(r"[;{}?:,&|]", text, maxsplit=1)[0]
    depth = 0
    for at, sign in enumerate(part):
        depth += (sign in "([") - (sign in ")]")
        if depth < 0:
            return part[:at].strip()
    return part.strip()


def _is_float(operand: str, floats: set[str]) -> bool:
    outside = re.sub(r"\[[^\]]*\]", "", operand)
    return bool(re.search(r"\d\.\d*f?\b|\bfloat\(", outside)) or bool(
        floats & set(re.findall(r"[A-Za-z_]\w*", outside))
    )


def _in_preprocessor(text: str, at: int) -> bool:
    return text[text.rfind("\n", 0, at) + 1 :].lstrip().startswith("#")


def _indices(text: str) -> Iterator[_Spot]:
    for match in _INDEXED.finditer(text):
        if _is_declared(text[: match.start()]):
            continue
        end = _closing(text, match.end())
        yield match.end(), end, f"({text[match.end() : end]}) + 1", f"index of {match.group(1)} + 1"


def _is_declared(before: str) -> bool:
    """Whether a type comes before the name: `float a[4]`, `float a[4], b[4]`."""
    statement = re.split(r"[;{}(]", before)[-1].strip()
    word = re.search(r"([A-Za-z_]\w*|[>*])$", statement)
    if word and word.group() not in _STATEMENTS and not statement.endswith("*"):
        return True
    return bool(re.match(r"(?:threadgroup|constexpr|const|thread)?\s*\w+\s+\w+\s*\[[^=]*\],$", statement))


def _closing(text: str, start: int) -> int:
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "[") - (text[at] == "]")
        if depth == 0:
            return at
    return len(text)
