"""The graph of a study: which steps a recipe needs, what each depends on, and which are done already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from tqcli.capture.store import open_capture
from tqcli.codecs.describe import describe
from tqcli.compression.plan import CompressionPlan
from tqcli.datasets import Text
from tqcli.errors import InputError
from tqcli.evaluation.coder import TENSORS
from tqcli.recipes.expand import StudyCodec
from tqcli.recipes.identity import Identity, machine_identity, text_identity
from tqcli.recipes.schema import MeasureName, Perplexity, Recipe, TextSettings
from tqcli.recipes.store import Finished, StepStore, key_of
from tqcli.storage import MANIFEST

CaptureName = Literal["capture", "calibration"]
ON_CAPTURES: tuple[MeasureName, ...] = ("distortion", "attention", "memory")


@dataclass(frozen=True)
class CaptureStep:
    """A capture that other steps read."""

    name: CaptureName
    settings: TextSettings
    seed: int
    key: str
    folder: Path
    is_done: bool
    """Whether it was whole when the study began."""

    @property
    def is_there(self) -> bool:
        """Whether it is whole now."""
        return self.is_done or is_whole(self.folder, self.settings.windows)

    @property
    def tokens(self) -> int:
        """Through the model."""
        return self.settings.windows * self.settings.tokens


@dataclass(frozen=True)
class MeasureStep:
    """One measure of one codec."""

    measure: MeasureName
    codec: StudyCodec
    key: str
    finished: Finished | None
    """None if it has to be done."""


@dataclass(frozen=True)
class Steps:
    """All steps of a recipe."""

    captures: list[CaptureStep]
    measures: list[MeasureStep]

    def of(self, measure: str) -> list[MeasureStep]:
        """A measure's, in the order of the codecs."""
        return [step for step in self.measures if step.measure == measure]

    def capture(self, name: CaptureName) -> CaptureStep | None:
        """The capture of that name, if the recipe needs it."""
        return next((step for step in self.captures if step.name == name), None)

    @property
    def captures_to_do(self) -> list[CaptureStep]:
        """Those that aren't there, and that a step which isn't done reads."""
        return [step for step in self.captures_to_read if not step.is_done]

    @property
    def captures_to_read(self) -> list[CaptureStep]:
        """Those that a step reads which isn't done."""
        waiting = {step.measure for step in self.measures if step.finished is None}
        wanted: set[CaptureName] = {"capture"} if waiting & set(ON_CAPTURES) else set()
        wanted |= {"calibration"} if waiting else set()
        return [step for step in self.captures if step.name in wanted]


def steps_of(
    recipe: Recipe, codecs: Sequence[StudyCodec], texts: dict[CaptureName, Text], store: StepStore, model: Identity
) -> Steps:
    """The steps, with what the store has of them. texts: of the data set, and of calibration where there is one."""
    base: Identity = {**machine_identity(), "model": model, "dtype": recipe.dtype}
    captures = list(_captures(recipe, texts, base, store))
    keys = {step.name: step.key for step in captures}
    measures = []
    for measure in get_args(MeasureName):
        settings = getattr(recipe.measures, measure)
        if settings is None:
            continue
        for codec in codecs:
            if measure == "perplexity":
                read: Identity = {**text_identity(texts["capture"]), "seed": seed_of(recipe, "capture")}
                given: Any = perplexity_settings(recipe, settings, codec).model_dump()
            else:
                read, given = {"capture": keys["capture"]}, settings.model_dump()
            parts = {**base, **read, "measure": measure, "settings": given, "calibration": keys.get("calibration")}
            key = key_of({**parts, "codec": _spelled_out(codec.plan)})
            measures.append(MeasureStep(measure, codec, key, store.find(measure, key)))
    return Steps(captures, measures)


def seed_of(recipe: Recipe, name: CaptureName) -> int:
    """Which windows are drawn of the data set or the calibration text."""
    settings = recipe.dataset if name == "capture" else recipe.calibration
    own = None if settings is None else settings.seed
    return own if own is not None else recipe.seed + (name == "calibration")


def perplexity_settings(recipe: Recipe, settings: Perplexity, codec: StudyCodec) -> Perplexity:
    """Those of one codec, with what is left out filled in."""
    return settings.model_copy(
        update={
            "windows": settings.windows or recipe.dataset.windows,
            "tokens": settings.tokens or recipe.dataset.tokens,
            "per_layer": settings.per_layer if codec.per_layer is None else codec.per_layer,
        }
    )


def _captures(
    recipe: Recipe, texts: dict[CaptureName, Text], base: Identity, store: StepStore
) -> Iterator[CaptureStep]:
    wanted: dict[CaptureName, TextSettings] = {}
    if any(getattr(recipe.measures, measure) is not None for measure in ON_CAPTURES):
        wanted["capture"] = recipe.dataset
    if recipe.calibration is not None:
        wanted["calibration"] = recipe.calibration
    for name, settings in wanted.items():
        seed = seed_of(recipe, name)
        drawn = {"windows": settings.windows, "tokens": settings.tokens, "seed": seed}
        key = key_of({**base, **text_identity(texts[name]), **drawn, "capture": recipe.capture.model_dump()})
        folder = store.path("capture", key)
        yield CaptureStep(name, settings, seed, key, folder, is_whole(folder, settings.windows))


def is_whole(folder: Path, windows: int) -> bool:
    """Whether a folder holds a capture of so many windows, by its manifest."""
    if not (folder / MANIFEST).is_file():
        return False
    try:
        return len(open_capture(folder).manifest.shards) == windows
    except InputError:
        return False


def _spelled_out(plan: CompressionPlan) -> list[Any]:
    """The codec with every option, so that another default in a later tq is another step."""
    usual = [describe(plan.codec.of(tensor).build(tensor)) for tensor in TENSORS]
    others = {layer: [describe(plan.codec_of(layer, tensor)) for tensor in TENSORS] for layer in plan.layer_bits}
    return [usual, sorted(others.items()), plan.sinks, plan.recent]
