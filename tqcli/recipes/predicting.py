"""Perplexity of several codecs of a study at once: the uncompressed model is run once for all."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqcli.capture.store import Capture
from tqcli.compression.calibration import check_apart
from tqcli.datasets import Text
from tqcli.evaluation.perplexity import FLOORS, PerplexityRun, run_all
from tqcli.evaluation.perplexity_calibration import plan_states
from tqcli.evaluation.perplexity_folder import PerplexityFolder
from tqcli.evaluation.perplexity_result import perplexity_result
from tqcli.kernels.runtime import used
from tqcli.models import LoadedModel
from tqcli.recipes.schema import Perplexity, Recipe
from tqcli.recipes.steps import MeasureStep, perplexity_settings, seed_of
from tqcli.recipes.store import Finished, StepStore, key_of
from tqcli.report.schema import CodecResult, Result


@dataclass(frozen=True)
class Predicting:
    """Runs a model on a text with compressed caches."""

    recipe: Recipe
    loaded: LoadedModel
    text: Text
    calibration: Capture | None
    store: StepStore

    def alike(self, step: MeasureStep) -> tuple[Any, ...]:
        """Steps of one such value can be measured together."""
        plan = step.codec.plan
        return plan.sinks, plan.recent, json.dumps(self._settings(step).model_dump(), sort_keys=True)

    def check(self, step: MeasureStep) -> None:
        """Raises what is wrong with one codec, before others are run beside it."""
        self._run([step])

    def measure(self, steps: Sequence[MeasureStep]) -> list[Finished]:
        """The results of steps that are alike, in their order. A window that is finished is kept if it is cut short."""
        batch = key_of({"perplexity": sorted(step.key for step in steps)})
        with self.store.locked("perplexity", batch):
            there = [self.store.find(step.measure, step.key) for step in steps]  # by another process, meanwhile
            found = [finished for finished in there if finished is not None]
            return found if len(found) == len(steps) else self._measure(steps, batch)

    def _measure(self, steps: Sequence[MeasureStep], batch: str) -> list[Finished]:
        began = time.perf_counter()
        run = self._run(steps)
        folder = PerplexityFolder(self.store.path("perplexity", batch), run, self.calibration)
        folder.begin(resume=True)
        run.finished |= folder.finished()
        try:
            run_all(run, folder.add)
        except KeyboardInterrupt:
            folder.add_missing()
            raise
        result = perplexity_result(run)
        seconds = (time.perf_counter() - began) / len(steps)
        finished = [
            Finished(batch, result.model_copy(update={"codecs": [codec, *_floors(result, codec)]}), seconds)
            for codec in result.codecs[: len(steps)]
        ]
        for step, of in zip(steps, finished, strict=True):
            self.store.keep(step.measure, step.key, of)
        self.store.forget(folder.path)
        return finished

    def _run(self, steps: Sequence[MeasureStep]) -> PerplexityRun:
        settings, plans, before = self._settings(steps[0]), [step.codec.plan for step in steps], used()
        states = plan_states(self.loaded, plans, self.calibration)
        assert settings.windows is not None and settings.tokens is not None, "they were filled in"
        run = PerplexityRun(
            self.loaded,
            self.text,
            plans,
            windows=settings.windows,
            tokens=settings.tokens,
            chunk=settings.chunk,
            stride=settings.stride,
            seed=seed_of(self.recipe, "capture"),
            rechunk=settings.rechunk,
            per_layer=settings.per_layer,
            states=states,
            learning=used(before),
            cache_dtype=settings.cache_dtype,
        )
        if self.calibration is not None:
            check_apart(run.drawn.ids, self.calibration)
        return run

    def _settings(self, step: MeasureStep) -> Perplexity:
        asked = self.recipe.measures.perplexity
        assert asked is not None, "a step of perplexity has its settings"
        return perplexity_settings(self.recipe, asked, step.codec)


def _floors(result: Result, codec: CodecResult) -> list[CodecResult]:
    """The noise floors of a re-chunked run, whether they were asked for as codecs or came by themselves."""
    if not result.settings.get("rechunk"):
        return []
    return [other for other in result.codecs if other.codec in FLOORS and other is not codec]
