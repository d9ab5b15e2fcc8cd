"""How much work the steps of a study are, and what that comes to in seconds and bytes, before they are done."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx

from tqcli.errors import InputError
from tqcli.models.fetching import local_folder
from tqcli.models.source import resolve
from tqcli.recipes.schema import Recipe
from tqcli.recipes.steps import MeasureStep, Steps, perplexity_settings
from tqcli.storage import read_json

_SHARE = {"distortion": 0.3, "attention": 0.6, "memory": 0.2}
"""Of running the captured tokens through the model, that a measure of one codec takes; roughly, a small model."""
_CODED = 1.3
"""A run with compressed caches takes so many times an uncompressed one, roughly."""
_OVERHEAD = 2.0
"""A model's small products and everything beside them take so many times what large products would, roughly."""
_STEP_SECONDS = 0.5
"""That each step takes besides."""
_SIDE, _PRODUCTS = 1024, 4
"""Of the products that are timed."""


@dataclass(frozen=True)
class Work:
    """Steps that are to be done, in tokens through the model, or what takes as long."""

    tokens: dict[tuple[str, str], float]
    """By step and codec; captures have no codec."""

    @property
    def total(self) -> float:
        """Of all steps."""
        return sum(self.tokens.values())

    def of(self, steps: Sequence[tuple[str, str]]) -> float:
        """Of some steps."""
        return sum(self.tokens.get(step, 0.0) for step in steps)


def work_of(recipe: Recipe, steps: Steps, layers: int | None = None) -> Work:
    """The work that a study still is. layers: of the model, for runs that compress one at a time; 30 if unknown."""
    tokens: dict[tuple[str, str], float] = {(step.name, ""): float(step.tokens) for step in steps.captures_to_do}
    captured = recipe.dataset.windows * recipe.dataset.tokens
    shared: set[str] = set()
    for step in steps.measures:
        if step.finished is not None:
            continue
        if step.measure in _SHARE:
            tokens[step.measure, step.codec.name] = captured * _SHARE[step.measure]
            continue
        tokens[step.measure, step.codec.name] = _predicting(recipe, step, layers or 30, shared)
    return Work(tokens)


def _predicting(recipe: Recipe, step: MeasureStep, layers: int, shared: set[str]) -> float:
    """The uncompressed run counts once for those that are run together."""
    assert recipe.measures.perplexity is not None, "a step of perplexity has its settings"
    settings = perplexity_settings(recipe, recipe.measures.perplexity, step.codec)
    tokens = (settings.windows or 1) * (settings.tokens or 1)
    runs = _CODED * (1 + (settings.rechunk is not None) + (layers if settings.per_layer else 0))
    group = f"{step.codec.plan.sinks} {step.codec.plan.recent} {settings.per_layer}"
    if group not in shared:
        shared.add(group)
        runs += 1
    return tokens * runs


@dataclass(frozen=True)
class Estimate:
    """What a study is likely to take; None where the model isn't here to tell."""

    seconds: float | None
    capture_bytes: int | None
    """Of the captures that are to be made, on disk."""


def estimate(recipe: Recipe, steps: Steps) -> Estimate:
    """By the size of the model's weights and the speed of a matrix product, which is timed here."""
    found = _model_folder(recipe.model)
    if found is None:
        return Estimate(None, None)
    config, weights = found
    geometry = _geometry(config)
    work = work_of(recipe, steps, None if geometry is None else geometry[0])
    seconds = _OVERHEAD * 2 * weights * work.total / _product_speed() if work.total else 0.0
    seconds += _STEP_SECONDS * len(work.tokens)
    if geometry is None:
        return Estimate(seconds, None)
    layers, kv_heads, heads, width = geometry
    size = 4 if recipe.dtype in (None, "float32") else 2
    captured = sum(
        step.settings.windows
        * layers
        * width
        * size
        * (2 * step.settings.tokens * kv_heads + recipe.capture.queries * heads)
        for step in steps.captures_to_do
    )
    return Estimate(seconds, captured)


def layers_of(model: str) -> int | None:
    """How many layers a model has, if it is here as a folder that tells."""
    found = _model_folder(model)
    geometry = None if found is None else _geometry(found[0])
    return None if geometry is None else geometry[0]


def _model_folder(name: str) -> tuple[dict[str, Any], float] | None:
    """config.json and the number of weights of a model that is here as a folder."""
    path = local_folder(resolve(name))
    if path is None or not path.is_dir():
        return None
    try:
        config = read_json(path / "config.json")
        weights = sum(_weights(file) for file in path.glob("model*.safetensors"))
    except (InputError, OSError, ValueError, KeyError):
        return None
    return (config, weights) if isinstance(config, dict) and weights else None


def _weights(file: Path) -> int:
    with file.open("rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    return sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _geometry(config: dict[str, Any]) -> tuple[int, int, int, int] | None:
    """Layers, KV heads, query heads and head_dim."""
    try:
        layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
        width = int(config.get("head_dim") or config["hidden_size"] // heads)
        return layers, int(config.get("num_key_value_heads") or heads), heads, width
    except (KeyError, TypeError, ValueError):
        return None


def _product_speed() -> float:
    """Floating-point operations a second of a float32 matrix product on the default device."""
    a = mx.random.normal((_SIDE, _SIDE))
    mx.eval(a, a @ a)
    began = time.perf_counter()
    for _ in range(_PRODUCTS):
        mx.eval(a @ a)
    return _PRODUCTS * 2 * _SIDE**3 / (time.perf_counter() - began)
