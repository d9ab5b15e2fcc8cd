"""Codecs, a cache and a model with kernels on the GPU, against the same with plain MLX operations there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from conftest import TinyModelDir
from on_cuda import cuda, no_back_end_named  # noqa: F401  # fixtures for every test here

from tqcli.codecs.context import LayerContext
from tqcli.codecs.spec import parse_codec
from tqcli.compression.plan import CompressionPlan
from tqcli.datasets import Document, Text
from tqcli.kernels.runtime import reset_used, set_backend, used
from tqcli.models import load

# isort: split
import mlx.core as mx
import numpy as np

CODECS = (
    "turboquant-mse@4",
    "turboquant-rvq@4",
    "turboquant-prod@3",
    "qjl@2",
    "vecinfer@2,sub_dim=4,code_bits=8,iterations=3",
    "affine@4",
)
FLIPS = 2e-3
"""The part of words and scales that may lie within float error of a boundary."""
T = TypeVar("T")


def with_both(make: Callable[[], T]) -> tuple[T, T]:
    """What it makes with the kernels, and with plain operations."""
    made = []
    for backend in ("cuda", "mlx"):
        set_backend(backend)
        made.append(make())
    set_backend(None)
    return made[0], made[1]


def context() -> LayerContext:
    return LayerContext(0, "keys", head_dim=128, n_q_heads=8, n_kv_heads=2, scale=128**-0.5)


def close(a: mx.array, b: mx.array) -> float:
    """The error relative to the norm of b."""
    wide, expected = (np.array(x.astype(mx.float32)).astype(np.float64) for x in (a, b))
    return float(np.linalg.norm(wide - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("name", CODECS)
def test_codecs_code_alike(name: str, record_property: Callable[[str, object], None]) -> None:
    codec, ctx = parse_codec(name).of("keys").build("keys"), context()
    rng = np.random.default_rng(0)
    x, q = (
        mx.array(rng.standard_normal(shape).astype(np.float32)).astype(mx.float16)
        for shape in ((2, 257, 128), (8, 2, 128))
    )
    set_backend("mlx")
    state = codec.calibrate(x, ctx) if codec.learns(ctx) else None
    ours, plain = with_both(lambda: codec.encode(x, ctx, state))
    assert ours.arrays.keys() == plain.arrays.keys()
    flips, words = 0, 0
    for key, expected in plain.arrays.items():
        assert ours.arrays[key].shape == expected.shape
        flips += int(mx.sum(ours.arrays[key] != expected))
        words += expected.size
    record_property("flips", flips)
    print(f"{name}: {flips} of {words} words and scales differ")
    assert flips <= max(4, FLIPS * words)
    decoded = with_both(lambda: codec.decode(plain, ctx))
    assert close(*decoded) < 1e-5
    scores = with_both(lambda: codec.scores(q, plain, ctx))
    assert close(*scores) < 1e-5


@pytest.mark.parametrize(("dtype", "most"), [("float16", 2e-3), ("float32", 1e-5)])
@pytest.mark.parametrize("codec", ["turboquant-mse@4", "affine@4"])
def test_fused_attention_is_that_of_plain_operations(codec: str, dtype: str, most: float) -> None:
    from tqcli.cache import CompressedKVCache, TensorCache

    kind: mx.Dtype = getattr(mx, dtype)
    rng = np.random.default_rng(1)

    def made(heads: int, tokens: int) -> mx.array:
        return mx.array(rng.standard_normal((1, heads, tokens, 128)).astype(np.float32)).astype(kind)

    prompt, step = ([made(8, n), made(2, n), made(2, n)] for n in (300, 1))
    set_backend("mlx")  # both caches hold the same codes
    caches = []
    for _ in range(2):
        parts = []
        for tensor in ("keys", "values"):
            ctx = LayerContext(0, tensor, 128, 8, 2, 128**-0.5, cache_dtype=dtype, capture_dtype=dtype)  # type: ignore[arg-type]
            parts.append(TensorCache(parse_codec(codec).of(tensor), ctx, 4, 32, None))  # type: ignore[arg-type]
        cache = CompressedKVCache(*parts)
        for q, k, v in (prompt, step):
            cache.update_and_fetch(k, v)
            if q is prompt[0]:
                mx.eval(cache.attend(q, 128**-0.5, "causal"))
        caches.append(cache)
    reset_used()
    outputs = []
    for backend, cache in zip(("cuda", "mlx"), caches, strict=True):
        set_backend(backend)
        outputs.append(cache.attend(step[0], 128**-0.5))
    assert {(use.backend, use.calls) for use in used() if use.operation == "attend"} == {("cuda", 1), ("mlx", 1)}
    assert close(*outputs) < most


def test_a_model_is_as_perplexed_with_either(tiny_model_dir: TinyModelDir) -> None:
    from tqcli.evaluation.perplexity_result import evaluate_perplexity

    text = Text("words", (Document("words", "a single man, in possession of 7 good fortunes; " * 60),))
    loaded = load(str(tiny_model_dir("llama", layers=2, hidden=128, head_dim=64, heads=4)), dtype="float32")
    plans = [CompressionPlan(parse_codec("turboquant-mse@4"), sinks=4, recent=16)]

    def measured() -> dict[str, float | None]:
        result = evaluate_perplexity(loaded, text, plans, windows=1, tokens=96, chunk=16)
        return {name: metric.value for name, metric in result.codecs[0].total.items()}

    ours, plain = with_both(measured)
    print(f"perplexity {ours['ppl']} with kernels, {plain['ppl']} without")
    kernels = {use.operation for use in used() if use.backend == "cuda"}
    assert {"attend", "hadamard_quantise"} <= kernels
    assert ours["ppl"] == pytest.approx(plain["ppl"], rel=1e-3)
