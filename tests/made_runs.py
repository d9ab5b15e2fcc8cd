"""Results of runs that nothing was measured for, to judge and to compare."""

from __future__ import annotations

from typing import Any

from tqcli.report.run import Failure, GateResult, RunCodec, RunResult
from tqcli.report.schema import CodecResult, Environment, LayerResult, Metric, Metrics, Result

ENVIRONMENT = Environment(tq="0.1", mlx="0.32", python="3.11", platform="linux", device="cpu")
MODEL = {"name": "tiny", "weights_sha256": "a" * 64}
TEXT = {"spec": "sample", "text_sha256": "b" * 64, "seed": 0}


def metric(value: float | None, low: float | None = None, high: float | None = None, **more: Any) -> Metric:
    """Of which less is better, in nats, unless told otherwise."""
    return Metric(**{"value": value, "ci_low": low, "ci_high": high, "unit": "nats", "higher_is_better": False} | more)


def row(layer: int, tensor: Any = "both", **metrics: Metric) -> LayerResult:
    return LayerResult(layer=layer, tensor=tensor, codec="any", metrics=metrics)


def codec(
    name: str, total: Metrics | None = None, layers: list[LayerResult] | None = None, **by_tensor: Metrics
) -> CodecResult:
    return CodecResult(codec=name, total=total or {}, by_tensor=by_tensor, layers=layers or [], skipped=[])  # type: ignore[arg-type]


def measure(kind: Any, *codecs: CodecResult, **more: Any) -> Result:
    basis = {"environment": ENVIRONMENT, "model": MODEL, "dataset": TEXT, "settings": {}, "backends": []}
    return Result(**basis | {"kind": kind, "codecs": list(codecs)} | more)  # type: ignore[arg-type]


def run(*measures: Result, control: str | None = None, **more: Any) -> RunResult:
    """Of all codecs that the measures have, or those that `names` names."""
    names = more.pop("names", None) or dict.fromkeys(of.codec for result in measures for of in result.codecs)
    basis = {"name": "made", "recipe": {}, "environment": ENVIRONMENT, "model": MODEL, "dataset": TEXT}
    codecs = [RunCodec(name=name, codec=name, sinks=4, recent=32, layer_bits="") for name in names]
    results = {result.kind: result for result in measures}
    return RunResult(**basis | {"control": control, "codecs": codecs, "measures": results} | more)  # type: ignore[arg-type]


def judged(verdict: Any = "pass", **more: Any) -> GateResult:
    """A gate on kl_mean that came out so."""
    value = {"value": 0.002, "ci_low": 0.0016, "ci_high": 0.0024, "unit": "nats", "kind": "max", "bound": 0.02}
    names = {"metric": "kl_mean", "codec": "turboquant-mse@4", "measure": "perplexity", "where": "total"}
    return GateResult(**names | value | {"verdict": verdict} | more)


def failure(error: str = "no memory", of: str | None = "qjl@4", step: str = "perplexity") -> Failure:
    return Failure(step=step, codec=of, error=error)
