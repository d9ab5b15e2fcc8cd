"""Runs windows of text through a model, its cache uncompressed and coded, and scores what it predicts.

Window by window: the uncompressed run is kept as hidden states, every codec's run is kept the same way, and the model's
own head makes logits of them a block of tokens at a time. So divergences are exact, and no more than a block of logits
is in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, get_args

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.capture.window import prefill_chunks
from tqcli.codecs.base import Unsupported
from tqcli.codecs.fp16 import Float16
from tqcli.codecs.identity import Identity
from tqcli.codecs.spec import parse_codec
from tqcli.codecs.warm_up import WARM_UP_TOKENS
from tqcli.compression.calibration import States
from tqcli.compression.plan import CompressionPlan
from tqcli.datasets import Text, token_windows
from tqcli.datasets.windows import bytes_between
from tqcli.errors import InputError
from tqcli.evaluation.caches import CacheSize, CacheSource, CodedCaches, is_empty
from tqcli.evaluation.distortion import check_plans
from tqcli.evaluation.head import OutputHead
from tqcli.kernels.runtime import Use, used
from tqcli.manifests import Dtype
from tqcli.metrics.perplexity import TokenScores, score_logits
from tqcli.models import LoadedModel
from tqcli.progress import progress

CHUNK = 256
"""Tokens a prefill step."""
_LOGIT_BYTES = 64 << 20
"""Of logits in memory at a time, all runs together."""
_HIDDEN_BYTES = 256 << 20
"""Of hidden states of codecs in memory at a time."""
_TOGETHER = 7
"""Runs that are scored together: the uncompressed model's logits are made once for all."""
_TRIED_TOKENS = 8
"""Tokens with which the output head is found."""
FLOORS = (Identity.name, Float16.name)
"""What a re-chunked run shows beside the codecs: what the compressed cache itself changes, and 16-bit storage."""


@dataclass(frozen=True)
class Case:
    """What is run through each window beside the uncompressed model."""

    plan: int | None
    """Index of the plan; None for the uncompressed model, once more in other steps."""
    layer: int | None = None
    """The layer that alone is compressed; None for all."""
    rechunked: bool = False
    """Whether it is run in steps of `rechunk` tokens, and compared with itself in steps of `chunk`."""


@dataclass(frozen=True)
class Reading:
    """What it took to run one window."""

    seconds: float
    """Through the whole model but for its output head."""
    peak_bytes: int
    """The most memory that MLX used meanwhile, less what it used before: activations and the cache."""
    cache: CacheSize
    """Of the cache at the end."""
    coded_keys: int = 0
    """Tokens whose keys were coded, over all layers."""
    coded_values: int = 0
    """Tokens whose values were coded, over all layers."""


@dataclass(frozen=True)
class WindowScores:
    """A finished window."""

    window: int
    text_bytes: int
    """UTF-8 bytes of text under the scored tokens."""
    baseline: Reading
    readings: dict[Case, Reading]
    scores: dict[Case, TokenScores]
    backends: list[Use]
    """Which back-end each operation took, over all cases."""


class PerplexityRun:
    """Windows drawn from a text, and what is to be measured on each; keeps the finished ones.

    windows, tokens: how many, and how long; see `token_windows`. chunk: tokens a prefill step. stride: how many tokens
    at the end of each window are scored, all but its first if None. rechunk: tokens a step of the runs that tell how
    much of a divergence is float noise; None for no such runs. With them the noise floors `identity` and `fp16` become
    plans too, after the others, unless they are among these. per_layer: also compress one layer at a time, all or those
    named; not of floors. states: for each plan, what was learned from a calibration capture. learning: which back-ends
    that took. cache_dtype: of what stays uncompressed. caches: where caches come from, `tqcli.cache` if None.

    Raises `InputError` for values that don't fit the text or the model, and a plan that compresses nothing.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        text: Text,
        plans: Sequence[CompressionPlan],
        *,
        windows: int = 8,
        tokens: int = 1024,
        chunk: int = CHUNK,
        stride: int | None = None,
        seed: int = 0,
        rechunk: int | None = None,
        per_layer: bool | Sequence[int] = False,
        states: Sequence[States | None] | None = None,
        learning: Sequence[Use] = (),
        cache_dtype: str | None = None,
        caches: CacheSource | None = None,
    ) -> None:
        check_plans(plans)
        _check_steps(tokens, chunk, rechunk)
        if cache_dtype is not None and cache_dtype not in get_args(Dtype):
            raise InputError(f"--cache-dtype must be one of {', '.join(get_args(Dtype))}, not {cache_dtype}")
        self.floors = _floor_plans(plans) if rechunk else []
        """Plans that weren't asked for."""
        self.loaded, self.text, self.plans = loaded, text, [*plans, *self.floors]
        self.chunk, self.rechunk, self.seed = chunk, rechunk, seed
        self.cache_dtype, self.per_layer, self.learning = cache_dtype, per_layer, learning
        self.drawn = token_windows(text, loaded.tokenizer, tokens, windows, seed)
        if stride is not None and not 1 <= stride < tokens:
            raise InputError(f"--stride must be from 1 to {tokens - 1} for windows of {tokens} tokens, not {stride}")
        self.scored = tokens - 1 if stride is None else stride
        """Tokens that are scored of each window, its last ones."""
        learned = [*(states or [None] * len(plans)), *[None] * len(self.floors)]
        self.caches = caches or CodedCaches(loaded.model, self.plans, learned, cache_dtype)
        self.head = OutputHead.find(loaded.model, self.drawn.ids[0, :_TRIED_TOKENS].tolist())
        self.cases = self._cases(per_layer)
        self.finished: dict[int, WindowScores] = {}
        """By window; add to it what an earlier run of the same settings has finished."""
        self.processes = 1
        """How many shared the windows."""

    @property
    def windows(self) -> int:
        """How many windows were asked for."""
        return len(self.drawn.ids)

    def _cases(self, per_layer: bool | Sequence[int]) -> list[Case]:
        cases = [Case(None, rechunked=True)] if self.rechunk else []
        for plan in range(len(self.plans)):
            cases.append(Case(plan))
            if self.rechunk:
                cases.append(Case(plan, rechunked=True))
            if per_layer is not False and self.plans[plan] not in self.floors:
                known = self.caches.layers(plan)
                asked = known if per_layer is True else sorted(set(per_layer))
                if unknown := [layer for layer in asked if layer not in known]:
                    raise InputError(f"{self.plans[plan].codec} doesn't compress layer {unknown[0]}; it does {known}")
                cases += [Case(plan, layer) for layer in asked]
        return cases

    def walk(
        self, windows: Iterable[int] | None = None, on_case: Callable[[], object] = lambda: None
    ) -> Iterator[WindowScores]:
        """Runs those windows that aren't finished yet, all if None, and yields each when it is in `finished`.

        Stopped in a window, by Ctrl-C for instance, it loses that window alone. A window's figures depend on no other
        window, so windows can be shared among processes. `on_case` is told of each case of a window.
        """
        for window in range(self.windows) if windows is None else windows:
            if window not in self.finished:
                self.finished[window] = self._run(window, on_case)
                yield self.finished[window]

    def _run(self, window: int, on_case: Callable[[], object]) -> WindowScores:
        ids, before = self.drawn.ids[window], used()
        targets = ids[len(ids) - self.scored :]
        base, baseline = self._read(ids, Case(None))
        readings: dict[Case, Reading] = {}
        scores: dict[Case, TokenScores] = {}
        together = min(_TOGETHER, max(1, _HIDDEN_BYTES // max(1, base.nbytes)))
        main = [case for case in self.cases if case.plan is None or not case.rechunked]
        for group in (main[start : start + together] for start in range(0, len(main), together)):
            hidden = []
            for case in group:
                of_case, readings[case] = self._read(ids, case)
                hidden.append(of_case)
                on_case()
            scores |= zip(group, self._score(base, hidden, targets), strict=True)
            for case, of_case in zip(group, hidden, strict=True):
                again = Case(case.plan, case.layer, rechunked=True)
                if not case.rechunked and again in self.cases:
                    rechunked, readings[again] = self._read(ids, again)
                    scores[again] = self._score(of_case, [rechunked], targets)[0]
                    on_case()
        return WindowScores(window, self._text_bytes(window), baseline, readings, scores, used(before))

    def _read(self, ids: NDArray[np.int32], case: Case) -> tuple[mx.array, Reading]:
        """Hidden states of the scored tokens' predictions [scored, width] of one window, and what it took."""
        from mlx_lm.models.cache import make_prompt_cache

        model, plan = self.loaded.model, case.plan
        cache = make_prompt_cache(model) if plan is None else self.caches.make(plan, case.layer)
        chunk = self.rechunk if case.rechunked and self.rechunk else self.chunk
        with nullcontext() if plan is None else self.caches.reading():
            try:
                hidden, seconds, peak = read_window(self.head, cache, ids, self.scored, chunk)
            except Unsupported as e:
                named = "the cache" if plan is None else self.plans[plan].codec
                out = "--rechunk" if plan is not None and self.plans[plan] in self.floors else "it"
                raise InputError(f"{named} can't hold what the model caches: {e}; leave {out} out") from e
        coded = (0, 0) if plan is None else self.caches.coded_tokens(cache)
        if plan is not None and not any(coded):
            raise InputError(self._nothing_coded(self.plans[plan]))
        return hidden, Reading(seconds, peak, CacheSize.of(cache), *coded)

    def _nothing_coded(self, plan: CompressionPlan) -> str:
        return (
            f"{plan.codec} compressed nothing: windows of {self.drawn.ids.shape[1]} tokens leave none to code beside "
            f"{plan.sinks} sinks, {plan.recent} recent ones and the up to {WARM_UP_TOKENS} that a codec learns from; "
            "use longer windows, fewer of these, --calibration, or center=none"
        )

    def _score(self, exact: mx.array, coded: Sequence[mx.array], targets: NDArray[np.int32]) -> list[TokenScores]:
        vocabulary = self.head.logits(exact[:1]).shape[-1]
        if targets.max() >= vocabulary:
            raise InputError(
                f"{self.loaded.source.name} has {vocabulary} tokens, and its tokenizer makes of the text number "
                f"{targets.max()}; use the tokenizer that belongs to it"
            )
        step = max(1, _LOGIT_BYTES // (4 * vocabulary * (1 + len(coded))))
        parts = []
        for start in range(0, len(targets), step):
            at = slice(start, start + step)
            # All of one shape, so that equal hidden states give equal logits.
            logits = [self.head.logits(hidden[at]) for hidden in (exact, *coded)]
            mx.eval(logits)
            try:
                parts.append(score_logits(logits[0], logits[1:], targets[at]))
            except ValueError as e:
                raise InputError(f"{self.loaded.source.name} can't be measured: {e}; use another --dtype") from e
        return [TokenScores.join([part[index] for part in parts]) for index in range(len(coded))]

    def _text_bytes(self, window: int) -> int:
        """UTF-8 bytes under the scored tokens; see `TokenWindows.text_bytes`."""
        ids = self.drawn.ids[window]
        if self.scored == len(ids) - 1:
            return self.drawn.text_bytes[window]
        return bytes_between(self.loaded.tokenizer, ids, len(ids) - self.scored, len(ids))


def read_window(
    head: OutputHead, cache: Sequence[Any], ids: NDArray[np.int32], scored: int, chunk: int
) -> tuple[mx.array, float, int]:
    """Prefills `cache` with the token ids [tokens] in steps of up to `chunk`, as `prefill_chunks` has them.

    Returns what the head makes the predictions of the last `scored` tokens of, [scored, width] in the model's dtype;
    seconds; and the most bytes that MLX used beyond those before. Everything is evaluated.
    """
    kept: list[mx.array] = []
    first, start = len(ids) - 1 - scored, 0
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    began = time.perf_counter()
    for size in prefill_chunks(len(ids), chunk):
        hidden = head.hidden(mx.array(ids[start : start + size])[None], cache)
        begin, end = max(first - start, 0), min(len(ids) - 1 - start, size)
        new = [mx.contiguous(hidden[begin:end])] if begin < end else []
        # The caches too: nothing is left that would keep the step's activations.
        mx.eval(new, [entry.state for entry in cache if entry is not None and not is_empty(entry)])
        kept += new
        start += size
    seconds, peak = time.perf_counter() - began, mx.get_peak_memory() - before
    joined = mx.concatenate(kept)
    mx.eval(joined)
    return joined, seconds, max(0, peak)


def _floor_plans(plans: Sequence[CompressionPlan]) -> list[CompressionPlan]:
    """Those of `FLOORS` that aren't among the plans, with the same tokens uncompressed."""
    named = {str(plan.codec) for plan in plans}
    return [
        CompressionPlan(parse_codec(f), sinks=plans[0].sinks, recent=plans[0].recent) for f in FLOORS if f not in named
    ]


def _check_steps(tokens: int, chunk: int, rechunk: int | None) -> None:
    for name, value in (("chunk", chunk), ("rechunk", rechunk)):
        if value is not None and value < 1:
            raise InputError(f"--{name} must be 1 or more, not {value}")
    if rechunk is not None and tokens > 0 and prefill_chunks(tokens, chunk) == prefill_chunks(tokens, rechunk):
        raise InputError(f"--rechunk {rechunk} makes the same steps of {tokens} tokens as --chunk {chunk}; use another")


def run_all(
    run: PerplexityRun,
    keep: Callable[[WindowScores], object] = lambda scores: None,
    windows: Iterable[int] | None = None,
) -> PerplexityRun:
    """Finishes those windows of a run, all if None, with a progress bar. `keep` is given each as it is finished."""
    mine, cases = list(range(run.windows) if windows is None else windows), len(run.cases)
    before = sum(window in run.finished for window in mine)
    # A window's first case brings the uncompressed run with it, the last of a group all their scoring: so the time left
    # is told from the mean over all cases.
    with progress(len(mine) * cases, "perplexity", "case", done=before * cases, smoothing=0) as bar:

        def name_window(number: int) -> None:
            bar.set_description(f"perplexity, window {min(number, len(mine))} of {len(mine)}")

        name_window(before + 1)
        for number, scores in enumerate(run.walk(mine, on_case=bar.update), start=before + 2):
            keep(scores)
            name_window(number)
    return run
