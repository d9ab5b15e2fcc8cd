"""The recipe that a tree holds, and in plain words what of it doesn't fit the schema."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tqcli.recipes.schema import CodecEntry, Recipe
from tqcli.recipes.tree import Node, Path, Problem, child, place_of, plain, shown, written

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "string": "text",
    "bool": "true or false",
    "list": "a list",
    "dict": "a mapping",
    "model": "a mapping",
}
"""By the first word of pydantic's error types: what was expected."""


def validate(root: Node, problems: list[Problem]) -> Recipe | None:
    """The recipe of a tree; None, and what is wrong appended to `problems`, where it doesn't fit the schema."""
    try:
        return Recipe.model_validate(plain(root))
    except ValidationError as e:
        problems += _problems(root, e.errors(include_url=False))
        return None


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the one that was probably meant, or those that there are."""
    known = list(known)
    near = [other for other in known if name and other.startswith(name)]
    near = near[:3] or difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"there are {', '.join(known)}" if len(known) > 1 else f"there is {', '.join(known) or 'none'}"


def _problems(root: Node, errors: Iterable[ErrorDetails]) -> list[Problem]:
    """One for each place that is wrong.

    Of a union pydantic tells what is wrong with every alternative: those are joined, and left out where the alternative
    that has the right shape says more about a part of it.
    """
    found: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        found.setdefault(_path(root, error), []).append(error)
    told = {path: of for path, of in found.items() if not any(_is_inside(other, path) for other in found)}
    return [_problem(root, path, of) for path, of in told.items()]


def _is_inside(path: Path, outer: Path) -> bool:
    return len(path) > len(outer) and path[: len(outer)] == outer


def _path(root: Node, error: ErrorDetails) -> Path:
    """Where an error is: pydantic's location without the names of a union's alternatives."""
    node = root
    path: Path = ()
    for step in error["loc"]:
        below = child(node, step)
        if below is not None:
            node, path = below, (*path, step)
    return (*path, error["loc"][-1]) if error["type"] == "missing" else path


def _problem(root: Node, path: Path, errors: list[ErrorDetails]) -> Problem:
    """What is wrong with one value; `errors` are of it alone."""
    name, first = written(path), errors[0]
    kinds = {error["type"]: error for error in errors}
    if "extra_forbidden" in kinds:
        return Problem(place_of(root, path, of_key=True), _unknown_key(path))
    if "missing" in kinds:
        return Problem(place_of(root, path), f"{written(path[:-1])} lacks the key {path[-1]!r}")
    place, context = place_of(root, path), first.get("ctx", {})
    if "value_error" in kinds:
        return Problem(place, f"{name}: {context['error']}")
    if first["type"] == "too_short":
        return Problem(place, f"{name} is empty; name at least one")
    return Problem(place, f"{name} must be {_expected(errors)}, not {shown(first['input'])}")


def _expected(errors: list[ErrorDetails]) -> str:
    *others, last = dict.fromkeys(_words(error["type"], error.get("ctx", {})) for error in errors)
    return f"{', '.join(others)} or {last}" if others else last


def _words(kind: str, context: Mapping[str, Any]) -> str:
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind == "greater_than_equal":
        return f"{context['ge']:g} or more"
    if kind == "string_pattern_mismatch":
        return "of letters, digits, ., _ and -, beginning with a letter or digit"
    if kind == "string_too_long":
        return f"at most {context['max_length']} characters"
    return _KINDS.get(kind.partition("_")[0], kind.replace("_", " "))


def _unknown_key(path: Path) -> str:
    *outer, key = path
    model = _model_at(tuple(outer))
    hint = nearest(str(key), model.model_fields)
    if model is CodecEntry and "did you mean" not in hint:
        hint += "; an option of the codec goes under options"
    return f"{written(outer)} has no key {str(key)!r}; {hint}"


def _model_at(path: Path) -> type[BaseModel]:
    """The schema of the mapping at a path."""
    model: type[BaseModel] = Recipe
    for step in path:
        if isinstance(step, str):
            model = next(iter(_models(model.model_fields[step].annotation)))
    return model


def _models(annotation: Any) -> Iterable[type[BaseModel]]:
    """The schemas in a type such as `list[str | CodecEntry]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
