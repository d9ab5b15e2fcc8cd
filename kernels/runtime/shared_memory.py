"""Declarations in threadgroup memory, as they stand in a Metal text: what other compilers need to be told of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_WORD = re.compile(r"\bthreadgroup\b")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ARGUMENTS = r"<(?:[^<>;{}]|<[^<>;{}]*>)*>"
_TYPE = (
    r"(?:(?:const|volatile)\s+)*(?:(?:struct|class|typename|unsigned|signed)\s+)?"
    rf"[A-Za-z_][\w:]*(?:\s*{_ARGUMENTS}(?:::\w+)*)?"
    r"(?:\s+(?:char|short|int|long|const|volatile)\b)*"
)
_DECLARATOR = r"[A-Za-z_]\w*\s*(?:\[[^;\]]*\]\s*)*"
_DECLARATION = re.compile(
    rf"\bthreadgroup(?:\s+alignas\s*\([^();]*\))?\s+(?P<kind>{_TYPE})\s+(?P<names>{_DECLARATOR}(?:,\s*{_DECLARATOR})*);"
)
_POINTER = re.compile(rf"\bthreadgroup\s*(?:\s{_TYPE})?\s*\(?\s*(?:(?:const|volatile)\s+)*[*&]")
_PARAMETER = re.compile(r"[(,]\s*(?:(?:const|volatile)\s+)*$")


@dataclass(frozen=True)
class Declaration:
    """`threadgroup float a[8], b;`, from the word to the semicolon."""

    start: int
    end: int
    kind: str
    """The type, without an `alignas`."""
    names: list[tuple[str, str]]
    """Each name and its extents, such as ("a", "[8]") and ("b", "")."""


def without_comments(text: str) -> str:
    """Comments as blanks, so that columns and lines stay."""
    return _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def declarations(text: str, name: str) -> list[Declaration]:
    """Declarations in threadgroup memory; pointers and references to it, also parameters, are left out.

    Raises `ValueError` with a line of `name`, the file, where the word stands in another way: memory of the threadgroup
    that wasn't known for it would become each thread's own.
    """
    plain = without_comments(text)
    return [declaration for at in _WORD.finditer(plain) for declaration in _declared(plain, at.start(), name)]


def _declared(plain: str, at: int, name: str) -> Iterator[Declaration]:
    directive = _directive_end(plain, at)
    end = len(plain) if directive is None else directive
    match = _DECLARATION.match(plain, at, end)
    if match and directive is None:  # of a macro each use would have to be an array of its own
        names = re.findall(_DECLARATOR, match["names"])
        parts = [each.partition("[") for each in names]
        extents = [(word.strip(), f"{bracket}{rest}".strip()) for word, bracket, rest in parts]
        yield Declaration(match.start(), match.end(), match["kind"], extents)
    elif not (_POINTER.match(plain, at, end) or (_PARAMETER.search(plain[max(0, at - 80) : at]) and directive is None)):
        line = plain.count("\n", 0, at) + 1
        code = " ".join(plain[at:].partition("\n")[0].split())
        raise ValueError(
            f"{name}:{line}: '{code}' is no plain declaration in threadgroup memory; write it as "
            "threadgroup TYPE NAME[SIZE]; outside a macro, without an initial value"
        )


def _directive_end(plain: str, at: int) -> int | None:
    """Where the preprocessor's directive ends that this stands in; None outside of one."""
    start = at
    while True:
        start = plain.rfind("\n", 0, start) + 1
        if start < 2 or plain[start - 2] != "\\":
            break
        start -= 1
    if not plain[start:at].lstrip().startswith("#"):
        return None
    end = re.compile(r"(?<!\\)\n|\Z").search(plain, at)
    return end.start() if end else len(plain)
