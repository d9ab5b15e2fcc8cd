"""Reads a YAML file into a model, and says in one plain line which key is wrong, what it is and what to write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)
_LONGEST = 60
_PLAIN = {
    "missing": "is missing; add it",
    "greater_than_equal": "write a number of at least {ge}",
    "less_than_equal": "write a number of at most {le}",
    "finite_number": "write a finite number",
    "string_too_short": "write a text that isn't empty",
    "model_type": "write a mapping of {settings}",
    "dict_type": "write a mapping of names",
    "list_type": "write a list",
    "string_type": "write a text; in quotes if YAML takes it for something else",
}
_NUMBERS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
_NAME = "has to be letters, digits and underscores, no digit first"
_DUPLICATE = "the key {!r} is there twice, first in line {}; give each its own name"


class _Loader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            name, line = key.value, key.start_mark.line + 1
            if name in lines and name != "<<":
                problem = _DUPLICATE.format(name, lines[name])
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            lines[name] = line
        return super().construct_mapping(node, deep)


def read(path: Path, model: type[Model], choices: Mapping[str, str]) -> Model:
    """The file as a model. Raises `ValueError` with one line: file, key, value and remedy.

    `choices` says what a key takes for which several kinds of values are allowed, by a pattern of its path.
    """
    try:
        document: Any = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except yaml.MarkedYAMLError as e:
        line = f":{e.problem_mark.line + 1}" if e.problem_mark else ""
        kind = "" if isinstance(e, yaml.constructor.ConstructorError) else "is not YAML: "
        raise ValueError(f"{path}{line}: {kind}{e.problem}") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise ValueError(f"{path} is not YAML: {' '.join(str(e).split())}") from e
    if not isinstance(document, dict):
        required = [name for name, field in model.model_fields.items() if field.is_required()]
        raise ValueError(f"{path} is not a mapping with {', '.join(required)}")
    try:
        return model.model_validate(document)
    except ValidationError as e:
        raise ValueError(f"{path}: {_plain(e.errors()[0], document, model, choices)}") from e


def _plain(error: Any, document: Any, model: type[BaseModel], choices: Mapping[str, str]) -> str:
    keys, value = _place(error["loc"], document)
    where, kind = _path(keys), error["type"]
    if kind == "value_error":
        reason = error["msg"].removeprefix("Value error, ")
        return f"{where}: {reason}" if where else reason
    if error["loc"] and error["loc"][-1] == "[key]":
        about = f"{_path(keys[:-1])}: the name {_short(value)}"
        return f"{about} is no text; write it in quotes" if kind == "string_type" else f"{about} {_NAME}"
    if kind == "missing":
        return f"{_path(error['loc'])} {_PLAIN[kind]}"
    told = f"{where} is {_short(value)}"
    if kind == "extra_forbidden":
        return f"{where}: no such setting; there are {', '.join(_settings(model, keys[:-1]))}"
    for pattern, choice in choices.items():
        if re.fullmatch(pattern, where):
            return f"{told}; write {choice}"
    if kind in ("too_short", "too_long"):
        least, most = error["ctx"].get("min_length"), error["ctx"].get("max_length")
        count = f"at least {least}" if most is None else f"at most {most}"
        return f"{told}; it takes {count}, not {error['ctx']['actual_length']}"
    if kind == "literal_error":
        return f"{told}; write {error['ctx']['expected'].replace(chr(39), '')}"
    number = _NUMBERS.get(kind.partition("_")[0])
    if number:
        return f"{told}; write {number}"
    reason = _PLAIN.get(kind, error["msg"])
    settings = ", ".join(_settings(model, keys))
    return f"{told}; {reason.format(settings=settings, **error.get('ctx', {}))}"


def _place(location: tuple[int | str, ...], document: Any) -> tuple[list[int | str], Any]:
    """The keys that the document has, without pydantic's own, and what stands there."""
    keys: list[int | str] = []
    for key in location:
        if key == "[key]":
            return keys, keys[-1]
        known = isinstance(document, dict) and key in document
        known |= isinstance(document, list) and isinstance(key, int) and key < len(document)
        if not known:
            break
        keys.append(key)
        document = document[key]
    return keys, document


def _path(keys: Any) -> str:
    """`inputs.x.shape[0]`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _settings(model: type[BaseModel], keys: list[int | str]) -> list[str]:
    """The keys that a mapping at this place takes."""
    inner: Any = model
    for key in keys:
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            inner = inner.model_fields[str(key)].annotation
        else:
            inner = inner.__args__[-1]
    return list(inner.model_fields) if isinstance(inner, type) and issubclass(inner, BaseModel) else []
