"""YAML as a tree whose every part knows where it was written, so that an error can name the file and the line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tqcli.errors import InputError

Step = str | int
Path = tuple[Step, ...]
_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
_LONGEST_NUMBER = 40
_HINTS = {
    r"character '\t'": "indent with spaces, not tabs",
    "cannot start any token": "put text that starts with this character in quotes",
    "alphabetic or numeric character": "put text that starts with * or & in quotes",
    "undefined alias": "put text that starts with * in quotes",
    "mapping values are not allowed here": "look at the indentation; put text that holds ': ' in quotes",
    "expected a single document": "remove the second ---",
}


class _Loader(yaml.SafeLoader):
    """Scalars as in YAML 1.2, which editors read: PyYAML's 1.1 takes `29:5` for a number in base 60 and `no` for false.

    Composes only; `_Reader` makes the tree.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (as PyYAML has it)


for _name, _pattern in (
    ("null", r"~|null|Null|NULL|"),
    ("bool", r"true|True|TRUE|false|False|FALSE"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
    ("merge", r"<<"),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), None)


@dataclass(frozen=True)
class Place:
    """Where a part of a recipe was written: a line of a file, or a `--set` of the command line, which has no line."""

    source: str
    line: int | None = None
    changed: str = ""
    """The --set that changed something inside it."""

    def __str__(self) -> str:
        at = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{at} with {self.changed}" if self.changed else at

    @property
    def order(self) -> tuple[bool, int]:
        """What the command line says is told of first."""
        return (self.line is not None, self.line or 0)


@dataclass(frozen=True)
class Problem:
    """Something wrong with a recipe."""

    place: Place
    text: str


@dataclass(frozen=True, eq=False)
class Node:
    """A mapping (key to its place and value), a sequence, or a scalar."""

    value: dict[str, tuple[Place, Node]] | list[Node] | bool | int | float | str | None
    place: Place
    blank: bool = False
    """A scalar of which nothing is written, as after `distortion:`; it is null."""
    flow: bool = False
    """A collection in brackets."""


def raise_first(problems: Iterable[Problem]) -> None:
    """Raises `InputError` for the first of them, with the number of the others; nothing if there is none."""
    ordered = sorted(problems, key=lambda p: p.place.order)
    if not ordered:
        return
    first, *others = ordered
    more = f" (and {len(others)} more error{'s' if len(others) > 1 else ''})" if others else ""
    raise InputError(f"{first.place}: {first.text}{more}")


def read_tree(text: str, source: str, problems: list[Problem], one_line: bool = False) -> Node:
    """The tree of a YAML document; an empty one is a blank scalar.

    source: the name that errors get; with `one_line` they have no line number. Appends keys that are given twice and
    tags that aren't known to `problems`, and raises `InputError` for what isn't YAML.
    """

    def fail(line: int, problem: str) -> InputError:
        hint = next((f"; {hint}" for part, hint in _HINTS.items() if part in problem), "")
        return InputError(f"{Place(source, None if one_line else line)}: this is not YAML: {problem}{hint}")

    try:
        root = yaml.compose(text, Loader=_Loader)
        if root is None:
            return Node(None, Place(source, None if one_line else 1), blank=True)
        return _Reader(source, problems, one_line).node(root)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        raise fail(mark.line + 1 if mark else 1, f"{e.context or ''} {e.problem or ''}".strip()) from None
    except yaml.reader.ReaderError as e:
        line = text.count("\n", 0, e.position) + 1
        raise fail(line, f"it holds the control character {_code(e.character):#04x}") from None
    except RecursionError:
        raise InputError(f"{source}: this is nested too deeply to be a recipe") from None


def _code(character: int | str | bytes) -> int:
    """As PyYAML gives it: a number or a character."""
    return character if isinstance(character, int) else ord(character)


class _Reader:
    """Turns PyYAML's nodes into `Node`s, each once: an alias is the node that it names."""

    def __init__(self, source: str, problems: list[Problem], one_line: bool) -> None:
        self.source, self.problems, self.one_line = source, problems, one_line
        self._made: dict[int, Node] = {}
        self._open: set[int] = set()

    def node(self, node: yaml.Node) -> Node:
        if id(node) in self._made:
            return self._made[id(node)]
        place = self._place(node)
        if id(node) in self._open:
            raise InputError(f"{place}: an alias in here names what holds it")
        self._open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            made = Node(self._mapping(node), place, flow=bool(node.flow_style))
        elif isinstance(node, yaml.SequenceNode):
            made = Node([self.node(item) for item in node.value], place, flow=bool(node.flow_style))
        elif isinstance(node, yaml.ScalarNode):
            made = Node(self._scalar(node, place), place, blank=node.value == "" and node.style is None)
        else:
            raise TypeError(f"{place}: PyYAML has no other node than these, but {node!r}")
        self._open.remove(id(node))
        self._made[id(node)] = made
        return made

    def _place(self, node: yaml.Node) -> Place:
        return Place(self.source, None if self.one_line else node.start_mark.line + 1)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, tuple[Place, Node]]:
        own: dict[str, tuple[Place, Node]] = {}
        merged: dict[str, tuple[Place, Node]] = {}
        for key, value in node.value:
            place = self._place(key)
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(f"{place}: a list or mapping can't be a key")
            if key.tag == _MERGE:
                for item in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(part := self.node(item).value, dict):
                        raise InputError(f"{place}: << takes a mapping, or a list of mappings")
                    merged = part | merged
                continue
            if key.value in own:
                first = own[key.value][0].line
                where = f", here and in line {first}" if first and first != place.line else ""
                self.problems.append(Problem(place, f"the key {key.value!r} is given twice{where}; remove one"))
            own[key.value] = (place, self.node(value))
        return merged | own

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> bool | int | float | str | None:
        kind, text = node.tag.removeprefix(_TAG), str(node.value)
        try:
            if kind in ("int", "float") and len(text) > _LONGEST_NUMBER:
                raise ValueError(text)
            if kind == "null":
                return None
            if kind == "bool":
                return text.lower() == "true"
            if kind == "int":
                return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
            if kind == "float":
                return float(re.sub(r"\.(?=[a-zA-Z])", "", text))  # .inf, .nan
        except ValueError:
            self.problems.append(Problem(place, f"{shown(text)} can't be read as a number"))
            return 0
        if kind not in ("str", "merge"):
            self.problems.append(Problem(place, f"the tag {node.tag!r} is not known here; leave it out"))
        return text


def plain(node: Node) -> Any:
    """The data of a tree: dicts, lists and scalars. What an alias names is made once."""
    made: dict[int, Any] = {}

    def of(node: Node) -> Any:
        if id(node) not in made:
            value = node.value
            if isinstance(value, dict):
                made[id(node)] = {key: of(item) for key, (_, item) in value.items()}
            else:
                made[id(node)] = [of(item) for item in value] if isinstance(value, list) else value
        return made[id(node)]

    return of(node)


def child(node: Node, step: Step) -> Node | None:
    """What is under a key or at an index; None where there is nothing."""
    if isinstance(node.value, dict) and str(step) in node.value:
        return node.value[str(step)][1]
    if isinstance(node.value, list) and isinstance(step, int) and 0 <= step < len(node.value):
        return node.value[step]
    return None


def place_of(root: Node, path: Sequence[Step], of_key: bool = False) -> Place:
    """Where the value at a path was written, or its key; of a path that isn't there, where its deepest part was."""
    node = root
    for at, step in enumerate(path):
        below = child(node, step)
        if below is None:
            break
        if of_key and at == len(path) - 1 and isinstance(node.value, dict):
            return node.value[str(step)][0]
        node = below
    return node.place


def written(path: Sequence[Step]) -> str:
    """A path as users write it: `codecs.0.bits`; of the whole, `the recipe`."""
    return ".".join(map(str, path)) or "the recipe"


def shown(value: object) -> str:
    """A value as an error names it, cut short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
