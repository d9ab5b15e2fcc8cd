"""`--set key.path=value`: changes to a recipe's tree, before it is checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from tqcli.errors import InputError
from tqcli.recipes.schema import Recipe
from tqcli.recipes.tree import Node, Path, Place, Problem, child, raise_first, read_tree, shown, written

_QUOTED = ("[", "{", '"', "'", "!", "&", "|", ">")
"""What a value starts with that is meant as YAML and nothing else."""


def change(root: Node, text: str) -> Node:
    """The tree with one value set or added; the given one stays as it is.

    A list takes the index after its last one too. A key that isn't there is added, and found wrong, if it is, when the
    whole is checked. Raises `InputError` for a change that can't be read or made.
    """
    name, equals, value = text.partition("=")
    place = Place(f"--set {text}")
    path = tuple(step.strip() for step in name.split("."))
    if not equals or not all(path):
        raise InputError(f"{shown(text)} is not a change; write for example --set dataset.windows=2")
    return _set(root, (), path, _value(value, place), place)


def _value(text: str, place: Place) -> Node:
    """A scalar or a collection in brackets; everything else is text."""
    as_text = Node(text, place)
    problems: list[Problem] = []
    try:
        node = read_tree(text, place.source, problems, one_line=True)
    except InputError:
        if text.strip().startswith(_QUOTED):
            raise
        return as_text
    raise_first(problems)
    return as_text if isinstance(node.value, dict | list) and not node.flow else node


def _set(node: Node, above: Path, path: tuple[str, ...], value: Node, place: Place) -> Node:
    """The node with `value` at `path` inside it; `above` is its own path."""
    if not path:
        return value
    step, *rest = path
    if len(above) == 2 and above[0] == "codecs":
        node = _codec_entry(node, path)
    if node.value is None:
        node = Node([] if step.isdigit() else {}, place)
    if isinstance(node.value, list):
        index = _index(step, node.value, above, place)
        items = list(node.value)
        below = items[index] if index < len(items) else Node(None, place)
        items[index : index + 1] = [_set(below, (*above, index), tuple(rest), value, place)]
        changed = Node(items, node.place, flow=node.flow)
    elif isinstance(node.value, dict):
        below = child(node, step) or _default((*above, step), place)
        at = node.value[step][0] if step in node.value and rest else place
        changed = replace(node, value=node.value | {step: (at, _set(below, (*above, step), tuple(rest), value, place))})
    else:
        raise InputError(f"{place}: {written(above)} is {shown(node.value)}, which holds no {step!r}")
    # What is wrong with a list entry as a whole may come of the change.
    inside_entry = above and isinstance(above[-1], int) and not node.place.changed and node.place.line is not None
    return replace(changed, place=replace(node.place, changed=place.source)) if inside_entry else changed


def _index(step: str, items: list[Node], above: Path, place: Place) -> int:
    if not (step.isascii() and step.isdigit() and len(step) < 9):
        raise InputError(f"{place}: {written(above)} is a list: name an entry by its number, for example {_at(above)}")
    if int(step) > len(items):
        there = f"has the entries 0 to {len(items) - 1}" if items else "is empty"
        raise InputError(f"{place}: {written(above)} {there}; {written((*above, len(items)))} adds one")
    return int(step)


def _at(above: Path) -> str:
    return written((*above, 0))


def _default(path: Path, place: Place) -> Node:
    """What a part of the recipe is where nothing is written: the measures have defaults that a change adds to."""
    field = Recipe.model_fields.get(str(path[0])) if len(path) == 1 else None
    if field is None or not isinstance(field.default, BaseModel):
        return Node(None, place)
    return _node(field.default.model_dump(exclude_unset=True), place)


def _node(data: dict[str, Any], place: Place) -> Node:
    return Node(
        {k: (place, _node(v, place) if isinstance(v, dict) else Node(v, place)) for k, v in data.items()}, place
    )


def _codec_entry(node: Node, path: tuple[str, ...]) -> Node:
    """A codec as a mapping, without what its text says of the thing that is to be set: bits or an option."""
    if isinstance(node.value, str):
        node = Node({"codec": (node.place, node)}, node.place)
    text = child(node, "codec")
    if text is None or not isinstance(node.value, dict) or not isinstance(text.value, str) or "|" in text.value:
        return node
    head, *options = text.value.split(",")
    if path[0] == "bits":
        head = head.partition("@")[0]
    if path[0] == "options" and len(path) == 2:
        options = [option for option in options if option.partition("=")[0].strip() != path[1]]
    named = replace(text, value=",".join([head, *options]))
    return replace(node, value=node.value | {"codec": (node.value["codec"][0], named)})
