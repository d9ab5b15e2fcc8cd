"""Reads a recipe: a file or a packaged one, with changes from the command line, checked as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tqcli.errors import InputError
from tqcli.recipes.changes import change
from tqcli.recipes.check import check
from tqcli.recipes.expand import BASELINE
from tqcli.recipes.schema import Measures, Recipe
from tqcli.recipes.tree import Node, Place, Problem, child, raise_first, read_tree
from tqcli.recipes.validation import nearest, validate

_SHIPPED = Path(__file__).parent / "shipped"
_SUFFIXES = (".yaml", ".yml")
_LARGEST = 1 << 20


def packaged_recipes() -> dict[str, Path]:
    """The recipes that come with tq, by name."""
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.yaml"))}


def load_recipe(source: str, changes: Sequence[str] = (), baseline: Path | None = None) -> Recipe:
    """The recipe of a file, or of one that comes with tq by its name, with `--set` changes made to it.

    baseline: the folder of a run, in the place of the one that the recipe names. Raises `InputError` for the first
    thing that is wrong, with its file and line or its change, and says how many more there are; and for a `baseline`
    that no gate compares with.
    """
    path = _find(source)
    recipe = parse_recipe(_text(path), str(path), changes, baseline)
    if baseline is not None and not any(gate.against == BASELINE for gate in recipe.gates):
        raise InputError(
            f"no gate of {path} is against the baseline, so --baseline {baseline} would do nothing; leave it out, or "
            "write a gate such as {metric: kl_mean, against: baseline, max: 1.1}"
        )
    return recipe


def parse_recipe(text: str, path: str, changes: Sequence[str] = (), baseline: Path | None = None) -> Recipe:
    """The recipe that a text holds, checked as by `load_recipe`; `path` is what errors call it."""
    problems: list[Problem] = []
    root = read_tree(text, path, problems)
    if root.blank:
        raise InputError(f"{path} is empty; {_START}")
    if not isinstance(root.value, dict):
        raise InputError(f"{root.place}: this is not a mapping of keys to values; {_START}")
    for one in changes:
        root = change(root, one)
    if baseline is not None and isinstance(root.value, dict):
        place = Place(f"--baseline {baseline}")
        root = replace(root, value=root.value | {"baseline": (place, Node(str(baseline), place))})
    recipe = validate(_with_blank_measures(root), problems)
    if recipe is not None and not problems:
        problems = check(recipe, root)
    raise_first(problems)
    if recipe is None:
        raise InputError(f"{path} can't be read as a recipe")
    return recipe


_START = "write for example name: mine, and codecs: [turboquant-mse@4, affine@4]"


def _find(source: str) -> Path:
    """The file that a source names."""
    packaged = packaged_recipes()
    if source in packaged:
        return packaged[source]
    try:
        path = Path(source).expanduser()
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, RuntimeError, ValueError) as e:  # too long, no such user, a NUL in it
        raise InputError(f"can't look at {source[:80]!r}: {getattr(e, 'strerror', None) or e}") from None
    if is_file:
        return path
    if is_folder:
        raise InputError(f"{source} is a folder; name a recipe in it, or one of tq's own: {', '.join(packaged)}")
    own = path.stem if path.suffix in _SUFFIXES else source
    hint = f"tq's own recipe is called {own}" if own in packaged else nearest(own, packaged)
    what = "file" if path.suffix in _SUFFIXES or len(path.parts) > 1 else "file, and no recipe of tq's own,"
    raise InputError(f"there is no {what} called {source!r}; {hint}")


def _text(path: Path) -> str:
    data = path.read_bytes() if path.stat().st_size <= _LARGEST else None
    if data is None:
        raise InputError(f"{path} has {path.stat().st_size} bytes; a recipe is a short text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise InputError(f"{path}:{line}: this is not UTF-8 (byte {data[e.start]:#04x}); save it as UTF-8") from None


def _with_blank_measures(root: Node) -> Node:
    """`distortion:` with nothing after it is meant as `distortion: {}`; null leaves a measure out."""
    measures = child(root, "measures")
    if measures is None or not isinstance(measures.value, dict) or not isinstance(root.value, dict):
        return root
    filled = {
        key: (place, replace(node, value={}) if node.blank and key in Measures.model_fields else node)
        for key, (place, node) in measures.value.items()
    }
    return replace(root, value=root.value | {"measures": (root.value["measures"][0], replace(measures, value=filled))})
