"""What a recipe can have wrong that its schema doesn't know of, and that takes no model to find."""

from __future__ import annotations

from collections.abc import Callable

from tqcli.codecs.context import Tensor
from tqcli.errors import InputError
from tqcli.layers import parse_layers
from tqcli.recipes.check_gates import gate_problem
from tqcli.recipes.expand import StudyCodec, expand_entry, unlike
from tqcli.recipes.schema import Recipe, TextSettings
from tqcli.recipes.tree import Node, Path, Problem, child, place_of, written
from tqcli.recipes.validation import nearest

_CAPTURED = ("distortion", "attention", "memory")
_TENSORS: tuple[Tensor, ...] = ("keys", "values")


def check(recipe: Recipe, root: Node) -> list[Problem]:
    """Everything that is wrong, each with the place where it was written."""
    problems: list[Problem] = []

    def wrong(path: Path, text: str) -> None:
        problems.append(Problem(place_of(root, path), text))

    codecs = _codecs(recipe, root, wrong)
    _check_texts(recipe, wrong)
    if not any(getattr(recipe.measures, name) for name in type(recipe.measures).model_fields):
        names = ", ".join(type(recipe.measures).model_fields)
        wrong(("measures",), f"measures is empty, so nothing would be measured; name some of {names}")
    if problems:  # What comes now depends on the names of all codecs.
        return problems
    for entry, made in codecs.items():
        for codec in made:
            _check_codec(recipe, entry, codec, wrong)
    called = [codec.name for made in codecs.values() for codec in made]
    if recipe.control is not None and recipe.control not in called:
        wrong(
            ("control",),
            f"control: no codec of this recipe is called {recipe.control!r}; {nearest(recipe.control, called)}",
        )
    for index, gate in enumerate(recipe.gates):
        if problem := gate_problem(recipe, gate, called):
            key, text = problem
            wrong(("gates", index, *key), f"gates.{index}: {text}")
    return problems


def _codecs(recipe: Recipe, root: Node, wrong: Callable[[Path, str], None]) -> dict[int, list[StudyCodec]]:
    """The codecs of each entry."""
    made: dict[int, list[StudyCodec]] = {}
    names: set[str] = set()
    if recipe.layer_bits is not None:
        try:
            expand_entry(recipe.model_copy(update={"codecs": ["identity"]}), 0)
        except InputError as e:
            wrong(("layer_bits",), str(e))
            return {}
    for index, entry in enumerate(recipe.codecs):
        try:
            made[index] = unlike(expand_entry(recipe, index), names)
        except InputError as e:
            split = isinstance(entry, str) and "=" in entry and "@" not in entry
            node = child(root, "codecs")
            hint = (
                "; put a codec with options in quotes, a comma in [...] ends it" if split and node and node.flow else ""
            )
            wrong(("codecs", index), f"codecs.{index}: {e}{hint}")
    return made


def _check_texts(recipe: Recipe, wrong: Callable[[Path, str], None]) -> None:
    """The windows and layers that are captured, and those that are learned from."""
    if recipe.capture.layers is not None:
        try:
            parse_layers(recipe.capture.layers)
        except InputError as e:
            wrong(("capture", "layers"), f"capture.layers: {str(e).replace('--layers ', '')}")
    if recipe.calibration is not None and _drawn(recipe, recipe.calibration, 1) == _drawn(recipe, recipe.dataset, 0):
        wrong(("calibration",), "calibration draws the same windows as dataset; give it another seed or text")
    of = recipe.measures.perplexity
    if of is not None and of.stride is not None and of.stride >= (of.tokens or recipe.dataset.tokens):
        path = ("measures", "perplexity", "stride")
        wrong(path, f"{written(path)} must be less than the {of.tokens or recipe.dataset.tokens} tokens of a window")


def _drawn(recipe: Recipe, text: TextSettings, later: int) -> tuple[str, int, int]:
    return text.spec, text.tokens, recipe.seed + later if text.seed is None else text.seed


def _check_codec(recipe: Recipe, entry: int, codec: StudyCodec, wrong: Callable[[Path, str], None]) -> None:
    plan, path = codec.plan, ("codecs", entry)
    if recipe.calibration is None and any(plan.codec.of(t).build(t).needs_calibration for t in _TENSORS):
        wrong(path, f"codecs.{entry}: {codec.name} learns from another text; add calibration: {{}} for one")
    lengths = [recipe.dataset.tokens] if any(getattr(recipe.measures, name) for name in _CAPTURED) else []
    if of := recipe.measures.perplexity:
        lengths.append(of.tokens or recipe.dataset.tokens)
    if plan.sinks + plan.recent >= min(lengths):
        kept = f"{plan.sinks} sinks and {plan.recent} recent tokens"
        wrong(path, f"codecs.{entry}: {kept} leave nothing to compress of windows of {min(lengths)} tokens")
