"""Whole models in float64: logits agree to 1e-9 whatever the size of the prefill steps, through every codec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from one_layer import flips
from tiny_models import write_tiny_model

from tqcli.cache import compress_cache, compressed_attention
from tqcli.codecs.base import State, registered_codecs
from tqcli.codecs.context import Tensor
from tqcli.codecs.spec import parse_codec
from tqcli.compression.plan import CompressionPlan

# isort: split
import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

TOKENS = 130
STEPS = (1, 7, 64, TOKENS)
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "hidden": 72, "heads": 9, "kv_heads": 3, "head_dim": 64},
    "qwen2": {"model_type": "qwen2", "hidden": 224, "heads": 14, "kv_heads": 2, "head_dim": 80, "key_bias_std": 20.0},
    "gemma3": {"model_type": "gemma3_text", "heads": 4, "kv_heads": 1, "head_dim": 96, "sliding_window": 70},
}
"""Every other layer of gemma3 sees 70 tokens."""
KEPT = {"llama": (0, 0), "qwen2": (4, 32), "gemma3": (4, 32)}
"""Sinks and recent tokens."""


def middle(name: str) -> str:
    """A codec at a middle number of bits."""
    allowed = registered_codecs()[name].bits_allowed
    bits = f"{name}@{allowed[len(allowed) // 2]:g}" if allowed else name
    return f"{bits},iterations=2" if registered_codecs()[name].needs_calibration else bits


def codes(name: str, model: str) -> bool:
    """Whether the codec codes heads of the model's size."""
    return name != "affine" or MODELS[model]["head_dim"] % 64 == 0


CASES = [(name, model) for name in registered_codecs() for model in MODELS if codes(name, model)]


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """In the dtype of x: MLX's own computes in float32 whatever comes."""
    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps) * weight


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    made = {}
    for name, shape in MODELS.items():
        made[name], _ = load_model(write_tiny_model(tmp_path_factory.mktemp(name) / "m", **shape), lazy=True)
        made[name].set_dtype(mx.float64)
    return made


def ids(seed: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).integers(0, 128, (1, TOKENS), dtype=np.int32))


def logits(model: Any, cache: Any, step: int) -> np.ndarray:
    steps = []
    for start in range(0, TOKENS, step):
        steps.append(model(ids(0)[:, start : start + step], cache=cache))
        mx.eval(steps[-1], [entry.state for entry in cache])
    assert steps[0].dtype == mx.float64
    return np.array(mx.concatenate(steps, axis=1))


def learned(model: Any, plan: CompressionPlan) -> dict[tuple[int, Tensor], State]:
    """What the plan's codecs learn from other tokens, where they can't do without."""
    cache = make_prompt_cache(model)
    model(ids(1), cache=cache)
    states: dict[tuple[int, Tensor], State] = {}
    for layer, made in compress_cache(model, CompressionPlan(parse_codec("identity"))).compressed.items():
        for part, x in zip((made.keys, made.values), cache[layer].keys_and_values(), strict=True):
            codec = plan.codec_of(layer, part.ctx.tensor)
            if codec.needs_calibration:
                ctx = replace(part.ctx, positions=np.arange(TOKENS - x.shape[2], TOKENS))
                states[layer, part.ctx.tensor] = codec.calibrate(x[0], ctx)
    return states


@pytest.mark.parametrize(("name", "model_name"), CASES)
def test_steps_agree(name: str, model_name: str, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.fast, "rms_norm", rms_norm)
    model, (sinks, recent) = models[model_name], KEPT[model_name]
    plan = CompressionPlan(parse_codec(middle(name)), sinks=sinks, recent=recent)
    states = learned(model, plan)
    with compressed_attention(model):
        outputs, caches = [], []
        for step in STEPS:
            caches.append(compress_cache(model, plan, states=states))
            assert caches[-1].skipped == []
            outputs.append(logits(model, caches[-1], step))
    for cache, output in zip(caches[1:], outputs[1:], strict=True):
        assert np.abs(output - outputs[0]).max() < 1e-9
        if name != "identity":  # which holds the noise itself
            assert sum(flips(cache.compressed[of], caches[0].compressed[of]) for of in cache.compressed) == 0
    off = np.abs(outputs[0] - logits(model, make_prompt_cache(model), TOKENS)).max()
    assert off < 1e-9 if name == "identity" else off > 1e-6  # what is coded takes part
