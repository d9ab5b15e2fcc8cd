"""Does the steps of a study that aren't done: captures, and the measures of each codec."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from tqcli.capture.run import capture
from tqcli.capture.store import Capture, open_capture
from tqcli.compression.plan import CompressionPlan
from tqcli.datasets import Text
from tqcli.errors import TqError
from tqcli.evaluation.attention import evaluate_attention
from tqcli.evaluation.distortion import evaluate_distortion
from tqcli.evaluation.memory import evaluate_memory
from tqcli.layers import parse_layers
from tqcli.models import LoadedModel, load
from tqcli.progress import watched_by
from tqcli.recipes.predicting import Predicting
from tqcli.recipes.schema import MeasureName, Recipe
from tqcli.recipes.soundness import can_go_on, is_sound
from tqcli.recipes.steps import ON_CAPTURES, CaptureName, CaptureStep, MeasureStep, Steps
from tqcli.recipes.store import Finished, StepStore
from tqcli.report.run import Failure
from tqcli.report.schema import Result


class Observer(Protocol):
    """Is told how a study goes."""

    def begin(self, step: str, codecs: Sequence[str]) -> None:
        """A step begins, for these codecs at once; for none where it is a capture."""

    def advance(self, part: float) -> None:
        """So much of it is done, from 0 to 1."""

    def end(self, seconds: float, error: str | None) -> None:
        """It is done, or failed."""


@dataclass
class Measuring:
    """The work of one study. A step that fails is recorded, and those that don't need it go on."""

    recipe: Recipe
    texts: dict[CaptureName, Text]
    steps: Steps
    store: StepStore
    observer: Observer
    failures: list[Failure] = field(default_factory=list)
    done: dict[tuple[str, str], Finished] = field(default_factory=dict)
    """By measure and the codec's name."""
    _loaded: LoadedModel | None = None
    _failed: dict[CaptureName, str] = field(default_factory=dict)

    def run(self) -> None:
        """Does what isn't done. Raises `InputError` where the model can't be loaded, and nothing else."""
        self.done |= {
            (step.measure, step.codec.name): step.finished for step in self.steps.measures if step.finished is not None
        }
        for step in self.steps.captures_to_read:
            self._make_sound(step)
        for measure in ON_CAPTURES:
            for waiting in self._waiting(measure):
                self._on_capture(waiting)
        self._perplexity(self._waiting("perplexity"))

    @property
    def model(self) -> LoadedModel:
        """The model, loaded when it is first needed. Raises `InputError` if it can't be."""
        if self._loaded is None:
            self._loaded = load(self.recipe.model, self.recipe.dtype)
        return self._loaded

    def _waiting(self, measure: MeasureName) -> list[MeasureStep]:
        return [step for step in self.steps.of(measure) if step.finished is None]

    def _make_sound(self, step: CaptureStep) -> None:
        """Captures what isn't there yet, and what is damaged again; another process may be at it."""
        with self.store.locked("capture", step.key):
            if is_sound(step.folder, step.settings.windows):
                return
            if step.is_done or not can_go_on(step.folder):
                self.store.forget(step.folder)
            self._capture(step)

    def _capture(self, step: CaptureStep) -> None:
        asked, model = self.recipe.capture, self.model
        with self._observed(step.name, [], lambda error: self._failed.__setitem__(step.name, error)):
            capture(
                model,
                self.texts[step.name],
                step.folder,
                windows=step.settings.windows,
                tokens=step.settings.tokens,
                layers=None if asked.layers is None else parse_layers(asked.layers),
                queries=asked.queries,
                seed=step.seed,
                chunk=asked.chunk,
                resume=True,
            )

    def _on_capture(self, step: MeasureStep) -> None:
        def measured(plan: CompressionPlan) -> Result:
            captured, calibration = self._opened("capture"), self._opened("calibration")
            assert captured is not None, "measures of captures have one"
            if step.measure == "distortion":
                return evaluate_distortion(captured, [plan], calibration)
            if step.measure == "memory":
                return evaluate_memory(captured, [plan], calibration)
            asked = self.recipe.measures.attention
            assert asked is not None, "a step of attention has its settings"
            return evaluate_attention(captured, [plan], calibration, asked.top_k)

        if error := self._blocked("capture", "calibration"):
            self._fail(step.measure, [step], error)
            return
        began = time.perf_counter()
        with self._observed(step.measure, [step]):
            result = measured(step.codec.plan)
            self._keep(step, Finished(step.key, result, time.perf_counter() - began))

    def _perplexity(self, steps: Sequence[MeasureStep]) -> None:
        if not steps:
            return
        if error := self._blocked("calibration"):
            self._fail("perplexity", steps, error)
            return
        predicting = Predicting(self.recipe, self.model, self.texts["capture"], self._opened("calibration"), self.store)
        fitting = []
        for step in steps:
            with self._observed("perplexity", [step], quietly=True):
                predicting.check(step)
                fitting.append(step)
        for _, group in groupby(sorted(fitting, key=predicting.alike), key=predicting.alike):
            self._predict(predicting, list(group))

    def _predict(self, predicting: Predicting, steps: list[MeasureStep]) -> None:
        """Several codecs at once, which share the uncompressed run; one by one where that fails."""
        failed: list[str] = []
        with self._observed("perplexity", steps, failed.append if len(steps) > 1 else None):
            for step, finished in zip(steps, predicting.measure(steps), strict=True):
                self.done[step.measure, step.codec.name] = finished
        for step in steps if failed else []:
            self._predict(predicting, [step])

    def _opened(self, name: CaptureName) -> Capture | None:
        step = self.steps.capture(name)
        return None if step is None else open_capture(step.folder)

    def _blocked(self, *names: CaptureName) -> str | None:
        """Why a step can't be done that needs these captures."""
        return next((f"the {name} failed: {self._failed[name]}" for name in names if name in self._failed), None)

    def _keep(self, step: MeasureStep, finished: Finished) -> None:
        self.store.keep(step.measure, step.key, finished)
        self.done[step.measure, step.codec.name] = finished

    def _fail(self, name: str, steps: Sequence[MeasureStep], error: str) -> None:
        self.failures += [Failure(step=name, codec=step.codec.name, error=error) for step in steps] or [
            Failure(step=name, codec=None, error=error)
        ]

    @contextmanager
    def _observed(
        self,
        name: str,
        steps: Sequence[MeasureStep],
        on_error: Callable[[str], object] | None = None,
        quietly: bool = False,
    ) -> Iterator[None]:
        """Whatever fails in the block is recorded and goes no further, unless `on_error` has another use for it."""
        began, error = time.perf_counter(), None
        if not quietly:
            self.observer.begin(name, [step.codec.name for step in steps])
        try:
            with watched_by(self.observer.advance):
                yield
        except TqError as e:
            error = str(e)
        except Exception as e:  # of MLX, a model or a disk: the other codecs' figures are still worth having
            error = f"{type(e).__name__}: {' '.join(str(e).split())[:500]}"
        if error is not None:
            if on_error is not None:
                on_error(error)
            if on_error is None or not steps:
                self._fail(name, steps, error)
        if not quietly or error is not None:
            self.observer.end(time.perf_counter() - began, error)
