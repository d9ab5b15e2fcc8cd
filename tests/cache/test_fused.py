"""A compressed cache read by the kernel `attend`, here by its specification, answers as plain operations do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_layer import Layer, run

# isort: split
import mlx.core as mx
import numpy as np

from tqcli.cache import attention, fused
from tqcli.cache.compressed import CompressedKVCache
from tqcli.cache.tensor import TensorCache
from tqcli.cache.visibility import Visibility
from tqcli.kernels.runtime import reset_used, used

TOKENS = 150
VECINFER = "vecinfer@2,sub_dim=2,code_bits=4,iterations=3"
LAYERS = {
    "mse": Layer("turboquant-mse@4", 4, 9),
    "mse, nothing raw": Layer("turboquant-mse@4"),
    "mse, values centred": Layer("turboquant-mse@3,center=mean | turboquant-mse@2,center=mean", 2, 9),
    "mse, batch, window": Layer("turboquant-mse@3", 4, 9, window=20, batch=2),
    "mse, float16": Layer("turboquant-mse@4", 4, 9, dtype="float16"),
    "rvq, 9/3": Layer("turboquant-rvq@3", 4, 9, q_heads=9, kv_heads=3),
    "rvq, one stage": Layer("turboquant-rvq@4,stages=1", 0, 5),
    "prod, 14/2": Layer("turboquant-prod@3", 4, 9, q_heads=14),
    "prod@1": Layer("turboquant-prod@1 | turboquant-rvq@4", 0, 70),
    "qjl, d 80 and 96": Layer("qjl@2", 4, 9, head_dim=80, value_head_dim=96),
    "affine": Layer("affine@4,center=rope", 4, 9, value_head_dim=128),
    "affine, bfloat16": Layer("affine@4", 4, 9, dtype="bfloat16"),
    "vecinfer": Layer(VECINFER, 4, 9),
    "vecinfer, own codebooks": Layer(f"{VECINFER},scope=head,smooth=false,rotation=none", 4, 9, batch=2),
}


class Reading:
    """In the place of `fused.fused`: the specification answers every call that the kernel would take."""

    def __init__(self) -> None:
        self.answered = 0

    def __call__(
        self,
        keys: TensorCache,
        values: TensorCache,
        queries: mx.array,
        scale: float,
        visible: Visibility,
        sinks: mx.array | None = None,
    ) -> mx.array | None:
        parts = fused.readable(keys, values, queries, visible)
        if isinstance(parts, str):
            return None
        self.answered += 1
        return fused.by_kernel("mlx", parts, (keys, values), queries, scale, visible, sinks)


@pytest.mark.parametrize("name", LAYERS)
def test_the_kernel_sees_what_plain_operations_see(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LAYERS[name]
    layer = layer.calibrated() if "vecinfer" in name else layer
    q, k, v = layer.tensors(TOKENS)
    logits = mx.array(np.linspace(-1, 1, layer.q_heads)).astype(q.dtype)
    for chunk in (1, 16) if name == "mse" else (7,):
        expected = run(layer.cache(), q, k, v, chunk, sinks=logits)
        with monkeypatch.context() as patch:
            reading = Reading()
            patch.setattr(attention, "fused", reading)
            got = run(layer.cache(), q, k, v, chunk, sinks=logits)
        assert reading.answered
        error = np.sqrt(np.sum((got - expected) ** 2) / np.sum(expected**2))
        assert error < {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[layer.dtype]


def test_what_the_kernel_does_not_take_has_a_reason() -> None:
    def reason(layer: Layer, tokens: int, new: int, mask: mx.array | str | None = "causal") -> str | None:
        cache = layer.cache()
        q, k, v = layer.tensors(tokens)
        run(cache, q[:, :, :-new], k[:, :, :-new], v[:, :, :-new], 64)
        cache.update_and_fetch(k[:, :, -new:], v[:, :, -new:])
        visible = Visibility.of(mask, tokens - new, tokens, None)
        found = fused.readable(cache.keys, cache.values, q[:, :, -new:], visible)
        return found if isinstance(found, str) else None

    layer = Layer("turboquant-mse@4", 4, 9)
    assert reason(layer, 150, 16) is None
    assert reason(layer, 150, 17) == "more than 16 query positions"
    assert reason(layer, 150, 2, mx.ones((2, 150), dtype=mx.bool_)) == "a mask that is an array"
    assert reason(replace(layer, recent=200), 150, 1) == "keys of which none is coded yet"
    late = replace(layer, codec="turboquant-mse@4,center=none | turboquant-mse@4,center=mean", recent=100)
    assert reason(late, 150, 1) == "values of which none is coded yet"
    for unread in ("identity", "turboquant-mse@2.5"):
        found = reason(replace(layer, codec=f"{unread} | turboquant-mse@4"), 150, 1)
        assert found == f"{unread} has no reader for the kernel"


def test_attention_that_sees_nothing_coded_is_counted_too() -> None:
    layer = Layer("turboquant-mse@4", recent=70)
    q, k, v = layer.tensors(70)
    before = used()
    run(layer.cache(), q, k, v, 35)
    assert [(use.operation, use.backend, use.calls) for use in used(before)] == [("attend", "mlx", 2)]


@pytest.mark.usefixtures("gpu_left_alone")
@pytest.mark.parametrize(("codec", "operation"), [("qjl@2", "qjl_scores"), ("turboquant-prod@3", "prod_scores")])
def test_keys_that_are_decoded_in_the_place_of_estimates_are_counted(codec: str, operation: str) -> None:
    layer = Layer(f"{codec},center=none | identity")
    q, k, v = layer.tensors(150)
    for chunk in (150, 1):
        before = used()
        run(layer.cache(), q, k, v, chunk)
        found = used(before)
        decoded = sum(use.calls for use in found if use.operation == operation and "keys are decoded" in use.reason)
        estimated = sum(use.calls for use in found if use.operation == operation) - decoded
        assert decoded == sum(use.calls for use in found if use.operation == "unsketch") > 0
        assert decoded > estimated if chunk == 150 else decoded < estimated


def test_plain_operations_answer_where_there_is_no_gpu_and_it_is_counted() -> None:
    layer = Layer("turboquant-mse@4")
    q, k, v = layer.tensors(70)
    cache: CompressedKVCache = layer.cache()
    reset_used()
    run(cache, q, k, v, 70)
    assert [(use.backend, use.calls) for use in used() if use.operation == "attend"] == [("mlx", 1)]


def test_a_step_whose_launch_no_gpu_can_run_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LAYERS["mse, batch, window"]
    asked = []
    monkeypatch.setattr(fused, "unlaunchable", lambda shape, *_: asked.append(shape) or "too many vectors")
    monkeypatch.setattr(attention, "fused", reading := Reading())
    q, k, v = layer.tensors(TOKENS)
    run(layer.cache(), q, k, v, 7)
    assert not reading.answered
    assert set(asked) <= {(4, rows * layer.q_heads // 2, layer.head_dim) for rows in (7, TOKENS % 7)}
    assert asked
