"""What a perplexity run shows of nothing but noise: identity, fp16, and every codec against itself in other steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from conftest import TinyModelDir

from tqcli.codecs.spec import parse_codec
from tqcli.compression.plan import CompressionPlan
from tqcli.datasets import load_text
from tqcli.errors import InputError
from tqcli.evaluation.perplexity import PerplexityRun
from tqcli.evaluation.perplexity_result import evaluate_perplexity
from tqcli.models import LoadedModel, load
from tqcli.report.schema import Metrics, Result

FP16_AT_MOST = 5e-6
"""Nats a token that storing a float32 model's cache in float16 may cost."""


def measured(loaded: LoadedModel, codecs: Sequence[str], **settings: Any) -> Result:
    plans = [CompressionPlan(parse_codec(codec)) for codec in codecs]
    return evaluate_perplexity(loaded, load_text("sample"), plans, **settings)


def totals(result: Result) -> dict[str, Metrics]:
    return {codec.codec: codec.total for codec in result.codecs}


def value(metrics: Metrics, name: str) -> float:
    number = metrics[name].value
    assert number is not None
    return number


def test_floors_of_smollm2(smollm2: LoadedModel) -> None:
    result = measured(smollm2, ["turboquant-mse@4"], windows=2, tokens=256, stride=128, chunk=128, rechunk=50)
    assert result.settings["floors"] == ["identity", "fp16"]
    assert (result.settings["chunk"], result.settings["rechunk"]) == (128, 50)
    of = totals(result)
    assert list(of) == ["turboquant-mse@4", "identity", "fp16"]
    assert value(of["identity"], "kl_mean") == value(of["identity"], "ppl_delta_percent") == 0
    assert value(of["identity"], "kl_p99_9") == 0
    assert value(of["identity"], "same_top1") == 1
    assert 0 < value(of["fp16"], "kl_mean") <= FP16_AT_MOST
    # The uncompressed model's noise is identity's; that of a quantiser's flipped codes is far below what it costs.
    assert value(of["identity"], "kl_mean_rechunked") == value(result.baseline, "kl_mean_rechunked")
    for codec, bound in (("identity", 1e-8), ("fp16", FP16_AT_MOST)):
        assert value(of[codec], "kl_mean_rechunked") <= bound
    mse = of["turboquant-mse@4"]
    assert value(of["identity"], "kl_mean_rechunked") < value(mse, "kl_mean_rechunked") < value(mse, "kl_mean") / 5


def test_totals_in_float32_agree_within_their_intervals_whatever_the_steps(smollm2: LoadedModel) -> None:
    codecs, size = ["turboquant-prod@3,center=none | affine@4"], {"windows": 3, "tokens": 80, "stride": 40}
    results = [totals(measured(smollm2, codecs, chunk=chunk, **size)) for chunk in (7, 64, 80)]
    for codec in codecs:
        for metric in ("kl_mean", "ppl", "ppl_delta_percent"):
            of = [result[codec][metric] for result in results]
            for low, high in [(one.ci_low, one.ci_high) for one in of]:
                assert low is not None and high is not None
                assert all(low <= (one.value or 0) <= high for one in of)


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: TinyModelDir) -> LoadedModel:
    return load(str(tiny_model_dir("llama", head_dim=64, heads=2, kv_heads=1)), dtype="float32")


def test_floors_are_run_once_and_not_a_layer_at_a_time(tiny: LoadedModel) -> None:
    size = {"windows": 2, "tokens": 96, "chunk": 32}
    named = measured(tiny, ["fp16", "affine@4"], rechunk=20, per_layer=True, **size)
    assert [codec.codec for codec in named.codecs] == ["fp16", "affine@4", "identity"]
    assert [len(codec.layers) for codec in named.codecs] == [2, 2, 0]
    assert named.settings["floors"] == ["identity"]
    without = measured(tiny, ["affine@4"], **size)
    assert [codec.codec for codec in without.codecs] == ["affine@4"]
    assert without.settings["floors"] == []


def test_a_floor_that_can_not_be_run_says_what_to_leave_out(tiny_model_dir: TinyModelDir) -> None:
    loaded = load(str(tiny_model_dir("qwen2", key_bias_std=1e6, layers=1)), dtype="float32")
    plans = [CompressionPlan(parse_codec("turboquant-mse@4"))]
    settings: dict[str, Any] = {"windows": 1, "tokens": 96}
    run = PerplexityRun(loaded, load_text("sample"), plans, rechunk=20, **settings)
    with pytest.raises(InputError, match=r"fp16 can't hold what the model caches: .*; leave --rechunk out"):
        list(run.walk())
