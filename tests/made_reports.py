"""Makes results of runs by hand, for tests that measure nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from tqcli.report.run import Failure, GateResult, RunCodec, RunResult
from tqcli.report.schema import CodecResult, Environment, LayerResult, Metric, Metrics, Result, SkippedTensor

CODECS = ("turboquant-mse@2", "turboquant-mse@4", "affine@2", "affine@4", "fp16")
MEASURES = ("perplexity", "attention", "distortion", "memory")
_CONTEXTS = (8192, 32768)


def made_run(
    codecs: Iterable[str] = CODECS,
    measures: Iterable[str] = MEASURES,
    *,
    layers: int = 3,
    control: str | None = "affine@4",
    error: Callable[[str], float] | None = None,
    spread: float | None = 0.1,
    bad_layer: int = 1,
    **more: Any,
) -> RunResult:
    """A run in which more bits are better, affine is eight times worse, and one layer is ten times worse than others.

    error: a codec's error, in the place of that. spread: half the width of intervals over their values; None for none.
    """
    names = list(codecs)
    of = error or _error
    results = {measure: _measure(measure, names, layers, of, spread, bad_layer) for measure in measures}
    fields: dict[str, Any] = {
        "name": "made",
        "recipe": {"name": "made", "codecs": names},
        "environment": _environment(),
        "model": {"name": "made-model", "weights_sha256": "0" * 64},
        "dataset": {"spec": "sample", "windows": 4, "tokens": 512, "text_sha256": "1" * 64},
        "control": control,
        "codecs": [RunCodec(name=name, codec=name, sinks=4, recent=0, layer_bits="") for name in names],
        "measures": results,
    }
    return RunResult(**fields | more)


def gate(verdict: str, **fields: Any) -> GateResult:
    """A gate on the mean KL of one codec."""
    made: dict[str, Any] = {"metric": "kl_mean", "codec": "affine@4", "measure": "perplexity", "where": "total"}
    made |= {"value": 0.03, "ci_low": 0.02, "ci_high": 0.04, "unit": "nats", "kind": "max", "bound": 0.035}
    return GateResult(**made | {"verdict": verdict} | fields)


def failure(**fields: Any) -> Failure:
    """A measure of one codec that failed."""
    return Failure(**{"step": "perplexity", "codec": "affine@4", "error": "out of memory"} | fields)


def _environment() -> Environment:
    return Environment(tq="0.1.0", mlx="0.32.4", python="3.12.3", platform="Linux x86_64", device="cpu")


def _bits(codec: str) -> float:
    found = re.search(r"@([\d.]+)", codec)
    return float(found[1]) + 0.25 if found else 16.0


def _error(codec: str) -> float:
    if "@" not in codec:
        return 1e-6
    worse = 8.0 if codec.startswith("affine") else 1.0
    return float(worse * 4.0 ** -_bits(codec))


def _measure(
    measure: str, codecs: list[str], layers: int, error: Callable[[str], float], spread: float | None, bad_layer: int
) -> Result:
    return Result(
        kind=measure,  # type: ignore[arg-type]
        environment=_environment(),
        capture=None if measure == "perplexity" else "captures/made",
        model={"name": "made-model"},
        dataset={"spec": "sample", "windows": 4, "tokens": 512},
        settings={"sinks": 4, "recent": 0, "calibration": None},
        backends=[],
        baseline={"ppl": _metric(12.5, None, "1")} if measure == "perplexity" else {},
        codecs=[_codec(measure, codec, layers, error(codec), spread, bad_layer) for codec in codecs],
    )


def _metric(value: float, spread: float | None, unit: str, better: bool = False) -> Metric:
    bounds = {} if spread is None else {"ci_low": value * (1 - spread), "ci_high": value * (1 + spread)}
    return Metric(value=value, unit=unit, n=4, higher_is_better=better, **bounds)


def _codec(measure: str, codec: str, layers: int, error: float, spread: float | None, bad_layer: int) -> CodecResult:
    bits = _bits(codec)
    total = _measured(measure, error, spread) | {
        "bits_effective": _metric(bits, None, "bits/element"),
        "ratio": _metric(16 / bits, None, "x", better=True),
    }
    by_tensor: dict[Any, Metrics] = {}
    rows = []
    if measure == "distortion":
        by_tensor = dict.fromkeys(("keys", "values"), total)
    if measure == "memory":
        for ending in ("", *(f"_{tokens}" for tokens in _CONTEXTS)):
            tokens = int(ending[1:] or 512)
            total[f"bytes_nominal{ending}"] = _metric(1000.0 * tokens * bits, None, "bytes")
            total[f"bytes_fp16{ending}"] = _metric(16000.0 * tokens, None, "bytes")
        return CodecResult(codec=codec, total=total, by_tensor={}, layers=[], skipped=[])
    for layer in range(layers):
        here = error * (10 if layer == bad_layer else 1)
        heads = [] if measure == "perplexity" else [_measured(measure, here * (1 + head), None) for head in range(2)]
        for tensor in ("keys", "values") if measure == "distortion" else ("both",):
            metrics = _measured(measure, here, spread)
            rows.append(LayerResult(layer=layer, tensor=tensor, codec=codec, metrics=metrics, heads=heads))  # type: ignore[arg-type]
    skipped = [SkippedTensor(layer=layers, tensor="keys", reason="a test's")] if measure == "attention" else []
    return CodecResult(codec=codec, total=total, by_tensor=by_tensor, layers=rows, skipped=skipped)


def _measured(measure: str, error: float, spread: float | None) -> Metrics:
    if measure == "perplexity":
        return {
            "ppl": _metric(12.5 * (1 + error), spread, "1"),
            "ppl_delta_percent": _metric(100 * error, spread, "%"),
            "kl_mean": _metric(error, spread, "nats"),
            "same_top1": _metric(max(0.0, 1 - error), None, "1", better=True),
        }
    if measure == "attention":
        return {
            "attention_error": _metric(error, spread, "1"),
            "logit_correlation": _metric(1 - error, None, "1", better=True),
        }
    if measure == "distortion":
        return {"relative_mse": _metric(error, spread, "1"), "relative_mse_theory": _metric(error * 0.9, None, "1")}
    return {}
