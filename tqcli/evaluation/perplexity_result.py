"""What the finished windows of a perplexity run come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tqcli.capture.run import dataset_record, model_record
from tqcli.compression.plan import CompressionPlan
from tqcli.datasets import Text
from tqcli.environment import device_name, versions
from tqcli.errors import InputError
from tqcli.evaluation.coder import lower
from tqcli.evaluation.perplexity import Case, PerplexityRun, Reading, WindowScores, run_all
from tqcli.kernels.runtime import added
from tqcli.metrics.perplexity import UNITS, Measure, summarise, summarise_baseline
from tqcli.models import LoadedModel
from tqcli.report.schema import CodecResult, Environment, LayerResult, Metric, Metrics, Result

_BETTER: dict[str, bool | None] = {"same_top1": True, "ppl_base": None}
"""Whether more is better; of the measures that aren't named, less is."""
_MOSTLY = 0.75
"""Share of coded tokens below which the effective bits are those of what isn't coded; told then."""


def evaluate_perplexity(loaded: LoadedModel, text: Text, plans: Sequence[CompressionPlan], **settings: Any) -> Result:
    """Runs every window through the uncompressed model and every plan's caches, and compares what is predicted.

    settings: those of `PerplexityRun`, which also names the errors.
    """
    return perplexity_result(run_all(PerplexityRun(loaded, text, plans, **settings)))


def perplexity_result(run: PerplexityRun) -> Result:
    """The measures over the finished windows. Raises `InputError` if there is none."""
    windows = [run.finished[window] for window in sorted(run.finished)]
    if not windows:
        raise InputError("not one window is finished, so there is nothing to report; let it run longer")
    model, plan = run.loaded, run.plans[0]
    text_bytes = [window.text_bytes for window in windows]
    notes = [] if len(windows) == run.windows else [f"{len(windows)} of {run.windows} windows are finished"]
    if run.head.keeps == "logits":
        notes.append(f"{model.model_type} can't be split before its output head: its logits were kept")
    if len(windows) == 1:
        notes.append("one window gives no interval; use --windows 2 or more")
    return Result(
        kind="perplexity",
        environment=Environment(**versions(), device=device_name()),
        model=model_record(run.loaded).model_dump(),
        dataset=dataset_record(run.text, run.drawn, run.seed).model_dump(),
        settings={
            "sinks": plan.sinks,
            "recent": plan.recent,
            "layer_bits": dict(plan.layer_bits) or None,
            "cache_dtype": run.cache_dtype or model.compute_dtype,
            "chunk": run.chunk,
            "rechunk": run.rechunk,
            "floors": [str(plan.codec) for plan in run.floors],
            "windows": len(windows),
            "scored_per_window": run.scored,
            "scored_tokens": run.scored * len(windows),
            "text_bytes": sum(text_bytes),
            "kept": run.head.keeps,
            "processes": run.processes,
        },
        backends=added([run.learning, *(window.backends for window in windows)]),
        baseline=_baseline(run, windows, text_bytes),
        codecs=[_codec(run, windows, text_bytes, index) for index in range(len(run.plans))],
        notes=notes,
    )


def _baseline(run: PerplexityRun, windows: Sequence[WindowScores], text_bytes: Sequence[int]) -> Metrics:
    exact = [window.scores[Case(0)].nll_exact for window in windows]
    metrics = _metrics(summarise_baseline(exact, text_bytes), len(windows))
    metrics |= _reading_metrics(run, [window.baseline for window in windows])
    return metrics | _floor(run, windows, text_bytes, None)


def _codec(run: PerplexityRun, windows: Sequence[WindowScores], text_bytes: Sequence[int], index: int) -> CodecResult:
    plan, case = run.plans[index], Case(index)
    total = _measured(windows, text_bytes, case)
    total |= _reading_metrics(run, [window.readings[case] for window in windows])
    fp16 = float(np.mean([window.baseline.cache.fp16 for window in windows]))
    resident = total["bytes_resident"].value
    if fp16 and resident:
        total["bytes_fp16"] = Metric(value=fp16, unit="bytes")
        total["bits_effective"] = lower(16 * resident / fp16, "bits/element")
        total["ratio"] = Metric(value=fp16 / resident, unit="x", higher_is_better=True)
    total |= _floor(run, windows, text_bytes, index)
    notes = []
    if plan.values_stand_in:
        notes.append(f"{plan.codec.keys.name} codes keys alone; values take {plan.codec.values}")
    if broken := sum(window.scores[case].broken for window in windows):
        notes.append(f"the predictions of {broken} tokens are not finite; their divergence counts as infinite")
    tokens = len(windows) * len(run.caches.layers(index)) * run.drawn.ids.shape[1]
    readings = [window.readings[case] for window in windows]
    keys, values = (sum(of) / tokens for of in zip(*((r.coded_keys, r.coded_values) for r in readings), strict=True))
    if min(keys, values) < _MOSTLY:
        notes.append(
            f"{plan.codec}: at its end a window has {100 * keys:.0f} % of its keys and {100 * values:.0f} % of its "
            "values coded; longer windows (--tokens) have more"
        )
    layers = [of.layer for of in run.cases if of.plan == index and of.layer is not None]
    return CodecResult(
        codec=str(plan.codec),
        total=total,
        by_tensor={},
        layers=[
            LayerResult(
                layer=layer,
                tensor="both",
                codec=_spec(plan, layer),
                metrics=_measured(windows, text_bytes, Case(index, layer)),
            )
            for layer in layers
        ],
        skipped=run.caches.skipped(index),
        notes=notes,
    )


def _spec(plan: CompressionPlan, layer: int) -> str:
    return " | ".join(dict.fromkeys(str(plan.spec(layer, tensor)) for tensor in ("keys", "values")))


def _floor(run: PerplexityRun, windows: Sequence[WindowScores], text_bytes: Sequence[int], plan: int | None) -> Metrics:
    """`kl_mean_rechunked` and the like: what the same run in other steps differs in, which is float noise."""
    if not run.rechunk:
        return {}
    measured = _measured(windows, text_bytes, Case(plan, rechunked=True))
    return {f"{name}_rechunked": measured[name] for name in ("kl_mean", "kl_p99_9", "same_top1", "ppl_delta_percent")}


def _measured(windows: Sequence[WindowScores], text_bytes: Sequence[int], case: Case) -> Metrics:
    return _metrics(summarise([window.scores[case] for window in windows], text_bytes), len(windows))


def _metrics(measures: dict[str, Measure], windows: int) -> Metrics:
    return {
        name: Metric(
            value=measure.value,
            unit=UNITS[name],
            n=windows,
            ci_low=measure.low,
            ci_high=measure.high,
            higher_is_better=_BETTER.get(name, False),
        )
        for name, measure in measures.items()
    }


def _reading_metrics(run: PerplexityRun, readings: Sequence[Reading]) -> Metrics:
    """Speed of one process over all windows, its largest peak, and the bytes of one window's cache."""
    seconds = sum(reading.seconds for reading in readings)
    tokens = run.drawn.ids.shape[1] * len(readings)
    return {
        "tokens_per_second": Metric(value=tokens / seconds, unit="tokens/s", higher_is_better=True),
        "peak_bytes": lower(max(reading.peak_bytes for reading in readings), "bytes"),
        "bytes_resident": lower(float(np.mean([reading.cache.resident for reading in readings])), "bytes"),
    }
