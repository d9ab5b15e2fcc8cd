"""Runs a recipe: what is done already is taken from the cache, the rest is measured, and gates are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqcli.capture.store import open_capture
from tqcli.datasets import Text, load_text
from tqcli.environment import device_name, versions
from tqcli.errors import InputError
from tqcli.evaluation.distortion import CALIBRATION_UNUSED
from tqcli.kernels.runtime import added
from tqcli.recipes.expand import StudyCodec, expand
from tqcli.recipes.gates import judge
from tqcli.recipes.identity import model_identity
from tqcli.recipes.measuring import Measuring, Observer
from tqcli.recipes.schema import Recipe
from tqcli.recipes.steps import CaptureName, Steps, seed_of, steps_of
from tqcli.recipes.store import Finished, StepStore
from tqcli.report.run import Failure, RunCodec, RunResult
from tqcli.report.schema import CodecResult, Environment, Result

CACHE = Path("runs") / "cache"
"""Where finished steps are kept, if nothing else is named."""


@dataclass(frozen=True)
class Study:
    """A recipe with all that it comes to, and what of it is done; nothing has been loaded but the texts."""

    recipe: Recipe
    codecs: list[StudyCodec]
    texts: dict[CaptureName, Text]
    steps: Steps
    store: StepStore

    @classmethod
    def of(cls, recipe: Recipe, cache: Path = CACHE, dry: bool = False) -> Study:
        """Raises `InputError` for a text or model that there isn't, or a cache folder that can't be written.

        dry: to look at alone; no cache folder is made and no model fetched.
        """
        codecs = expand(recipe)
        texts: dict[CaptureName, Text] = {"capture": load_text(recipe.dataset.spec)}
        if recipe.calibration is not None:
            same = recipe.calibration.spec == recipe.dataset.spec
            texts["calibration"] = texts["capture"] if same else load_text(recipe.calibration.spec)
        store = StepStore(cache, make=not dry)
        model = model_identity(recipe.model, may_fetch=not dry)
        return cls(recipe, codecs, texts, steps_of(recipe, codecs, texts, store, model), store)

    def run(self, observer: Observer, baseline: RunResult | None = None) -> RunResult:
        """Does what isn't done, and puts everything together. A step that fails is recorded, and the rest goes on.

        So is a model that can't be loaded. baseline: a stored run that gates compare with.
        """
        measuring = Measuring(self.recipe, self.texts, self.steps, self.store, observer)
        try:
            measuring.run()
        except InputError as e:
            measuring.failures.append(Failure(step="model", codec=None, error=str(e)))
        result = self._result(measuring)
        return result.model_copy(update={"gates": judge(self.recipe.gates, result, baseline)})

    def _result(self, measuring: Measuring) -> RunResult:
        measures: dict[str, Result] = {}
        for measure in dict.fromkeys(step.measure for step in self.steps.measures):
            finished = {
                codec.name: measuring.done[measure, codec.name]
                for codec in self.codecs
                if (measure, codec.name) in measuring.done
            }
            if finished:
                measures[measure] = _together(finished)
        first = next(iter(measures.values()), None)
        calibration = self.steps.capture("calibration")
        learned = any(CALIBRATION_UNUSED not in of.notes for of in measures.values())
        return RunResult(
            name=self.recipe.name,
            description=self.recipe.description,
            recipe=self.recipe.model_dump(mode="json", exclude_defaults=False),
            environment=Environment(**versions(), device=device_name()),
            model={"name": self.recipe.model} if first is None else first.model,
            dataset=self._dataset() if first is None else first.dataset,
            calibration=(
                open_capture(calibration.folder).manifest.dataset.model_dump()
                if calibration is not None and calibration.is_there and learned
                else None
            ),
            control=self.recipe.control,
            codecs=[
                RunCodec(
                    name=codec.name,
                    codec=str(codec.plan.codec),
                    sinks=codec.plan.sinks,
                    recent=codec.plan.recent,
                    layer_bits=codec.layer_bits,
                    predicted=dict(codec.predicted),
                )
                for codec in self.codecs
            ],
            measures=measures,
            failures=measuring.failures,
            notes=sorted({note for of in measures.values() for note in of.notes}),
        )

    def _dataset(self) -> dict[str, Any]:
        """What is known of the text where nothing was measured on it."""
        text, settings = self.texts["capture"], self.recipe.dataset
        drawn = {"windows": settings.windows, "tokens": settings.tokens, "seed": seed_of(self.recipe, "capture")}
        return {"spec": settings.spec, "text_sha256": text.sha256, **drawn}


def _together(finished: dict[str, Finished]) -> Result:
    """Results of single codecs as one, called by their names in the recipe."""
    results = [of.result for of in finished.values()]
    batches = {of.batch: of.result.backends for of in finished.values()}
    codecs: list[CodecResult] = []
    for name, result in zip(finished, results, strict=True):
        codecs.append(result.codecs[0].model_copy(update={"codec": name}))
    floors: dict[str, CodecResult] = {}
    for result in results:
        floors = {floor.codec: floor for floor in result.codecs[1:]} | floors  # of several the first codec's
    codecs += [floor for name, floor in floors.items() if name not in finished]
    notes = [note for result in results for note in result.notes if note != CALIBRATION_UNUSED]
    notes += [CALIBRATION_UNUSED] if all(CALIBRATION_UNUSED in result.notes for result in results) else []
    return results[0].model_copy(
        update={
            "settings": _alike(results),
            "codecs": codecs,
            "backends": added(list(batches.values())),
            "notes": list(dict.fromkeys(notes)),
        }
    )


def _alike(results: Sequence[Result]) -> dict[str, Any]:
    """The settings, None where codecs have their own: the run's codecs say which."""
    first = results[0].settings
    return {
        name: value if all(result.settings.get(name) == value for result in results) else None
        for name, value in first.items()
    }
