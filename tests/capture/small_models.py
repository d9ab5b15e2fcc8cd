"""Small random models in memory, token ids, and prefill without anything watching."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tqcli  # noqa: F401  # before mlx.core: puts a fast BLAS in front

# isort: split
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from tiny_models import write_tiny_model

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "hidden": 72, "heads": 9, "kv_heads": 3, "head_dim": 64},
    "qwen2": {"model_type": "qwen2", "hidden": 224, "heads": 14, "kv_heads": 2, "key_bias_std": 20.0},
    "gemma3": {"model_type": "gemma3_text", "layers": 4, "heads": 4, "kv_heads": 1, "head_dim": 64},
    "llama-80": {"model_type": "llama", "heads": 2, "kv_heads": 1, "head_dim": 80},
    "llama-96": {"model_type": "llama", "heads": 2, "kv_heads": 1, "head_dim": 96},
}
"""gemma3 has a sliding window of 16 tokens in every other layer."""


@dataclass(frozen=True)
class SmallModel:
    model: Any
    dtype: mx.Dtype

    def cache(self) -> list[Any]:
        from mlx_lm.models.cache import make_prompt_cache

        return list(make_prompt_cache(self.model))


def small_model(name: str, dtype: mx.Dtype = mx.float32, **changes: Any) -> SmallModel:
    from mlx_lm.utils import load_model

    with TemporaryDirectory() as folder:
        path = write_tiny_model(Path(folder) / "model", **(SHAPES[name] | changes))
        model, _ = load_model(path, lazy=True)
        model.set_dtype(dtype)
        mx.eval(model.parameters())
    return SmallModel(model, dtype)


def some_ids(tokens: int, vocabulary: int = 280, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, vocabulary, tokens, dtype=np.int32)


def prefill(model: Any, cache: list[Any], ids: NDArray[np.int32], chunk: int) -> mx.array:
    """Logits [tokens, vocabulary] of a prefill in steps of `chunk`."""
    steps = []
    for start in range(0, len(ids), chunk):
        steps.append(model(mx.array(ids[start : start + chunk])[None], cache=cache)[0])
        mx.eval(steps[-1], [entry.state for entry in cache])
    return mx.concatenate(steps)


def bits(x: mx.array) -> NDArray[np.uint8]:
    """The array's bytes, so that equality means every bit."""
    return np.array(mx.contiguous(x).view(mx.uint8))


def largest(x: mx.array) -> float:
    """The largest absolute value."""
    return float(np.abs(np.array(x)).max())
