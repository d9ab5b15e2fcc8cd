"""What a query sees of a compressed cache, against a computation from the definition, whatever the chunk size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_layer import Layer, by_hand, flips, run, worst

from tqcli.codecs.spec import parse_codec
from tqcli.errors import InputError

# isort: split
import mlx.core as mx
import numpy as np

TOKENS = 150
CODECS = {
    "turboquant-mse@4": {},
    "turboquant-rvq@3,scale=unbiased": {"q_heads": 9, "kv_heads": 3},
    "turboquant-prod@3": {"q_heads": 14, "kv_heads": 2},
    "qjl@2": {"head_dim": 80, "value_head_dim": 96},
    "turboquant-mse@2.5": {"head_dim": 80},
    "affine@4,center=rope": {"value_head_dim": 128},
    "affine@4": {},
    "identity": {},
}
VECINFER = "vecinfer@2,sub_dim=2,code_bits=4,iterations=3"


@pytest.mark.parametrize(("sinks", "recent"), [(0, 0), (4, 0), (4, 9), (0, 32)])
@pytest.mark.parametrize("codec", [*CODECS, VECINFER])
def test_a_query_sees_what_it_would_see_while_decoding(codec: str, sinks: int, recent: int) -> None:
    layer = Layer(codec, sinks, recent, **CODECS.get(codec, {}))
    if codec == VECINFER:
        layer = layer.calibrated()
    q, k, v = layer.tensors(TOKENS)
    expected = by_hand(layer, q, k, v)
    caches = []
    for chunk in (1, 7, 64, TOKENS):
        caches.append(layer.cache())
        got = run(caches[-1], q, k, v, chunk)
        assert caches[-1].offset == TOKENS
        # A code that lies on a boundary may flip: the products of a rotation depend on how many rows it takes.
        assert flips(caches[-1], caches[0]) <= 3
        if not flips(caches[-1], caches[0]):
            assert worst(got, expected) < 1e-4


def test_what_is_calibrated_needs_no_first_tokens() -> None:
    layer = Layer("turboquant-mse@2", sinks=4, recent=9)
    q, k, v = layer.tensors(60)
    assert worst(run(layer.cache(), q, k, v, 7), by_hand(Layer("identity"), q, k, v)) > 1e-3  # values are coded
    for codec in ("turboquant-mse@2 | identity", "turboquant-mse@2.5,center=mean | identity"):
        waiting = replace(layer, codec=codec)
        calibrated = waiting.calibrated()
        got = run(calibrated.cache(), q, k, v, 7)
        assert worst(got, by_hand(calibrated, q, k, v)) < 1e-4
        exact = by_hand(Layer("identity"), q, k, v)
        assert worst(run(waiting.cache(), q, k, v, 7), exact) < 1e-5
        assert worst(got, exact) > 1e-2


@pytest.mark.parametrize("codec", ["turboquant-mse@3", "turboquant-mse@2.5", VECINFER])
def test_the_sequences_of_a_batch_are_apart(codec: str) -> None:
    layer = Layer(codec, 4, 9, q_heads=6, batch=2)
    layer = layer.calibrated() if codec == VECINFER else layer
    q, k, v = layer.tensors(TOKENS)
    assert worst(run(layer.cache(), q, k, v, 40), by_hand(layer, q, k, v)) < 1e-4


@pytest.mark.parametrize("rotating", [True, False])
@pytest.mark.parametrize(("sinks", "recent"), [(0, 0), (4, 9), (0, 100)])
@pytest.mark.parametrize("window", [20, 70])
def test_a_sliding_window_hides_what_has_left_it(window: int, sinks: int, recent: int, rotating: bool) -> None:
    layer = Layer("turboquant-mse@3", sinks, recent, window=window)
    q, k, v = layer.tensors(330)
    expected = by_hand(layer, q, k, v)
    for chunk in (1, 50, 330):
        cache = layer.cache(rotating)
        assert worst(run(cache, q, k, v, chunk), expected) < 1e-4
        assert cache.offset == 330
        held = [part.save()[0]["coded_tokens"] for part in (cache.keys, cache.values)]
        assert max(held) < window + 64


def test_more_tokens_than_a_block_and_more_queries() -> None:
    layer = Layer("turboquant-mse@4", 4, 32, q_heads=2, kv_heads=1, head_dim=16, value_head_dim=16)
    q, k, v = layer.tensors(1300)
    expected = by_hand(layer, q, k, v)
    for chunk in (1300, 700):
        assert worst(run(layer.cache(), q, k, v, chunk), expected) < 1e-4


def test_learned_sink_logits_take_part_of_the_softmax() -> None:
    logits = np.array([0.5, -1.0, 3.0, 2.0])
    for codec in ("turboquant-mse@4", "identity"):
        layer = Layer(codec, 4, 9)
        q, k, v = layer.tensors(100)
        got = run(layer.cache(), q, k, v, 30, sinks=mx.array(logits))
        assert worst(got, by_hand(layer, q, k, v, logits)) < 1e-4


def test_masks_as_arrays_say_the_same_as_causal() -> None:
    layer = Layer("turboquant-mse@4", 4, 9)
    q, k, v = layer.tensors(100)
    expected = by_hand(layer, q, k, v)
    for kind in ("bool", "additive"):
        cache, outputs = layer.cache(), []
        for part in (slice(0, 60), slice(60, 100)):
            mask = cache.make_mask(part.stop - part.start, return_array=True)
            assert isinstance(mask, mx.array)
            assert mask.shape == (part.stop - part.start, part.stop)
            if kind == "additive":
                mask = mx.where(mask, 0.0, -mx.inf)[None, None]
            cache.update_and_fetch(k[:, :, part], v[:, :, part])
            outputs.append(cache.attend(q[:, :, part], layer.scale, mask))
        assert worst(np.array(mx.concatenate(outputs, axis=2)), expected) < 1e-4


def test_without_a_mask_queries_see_the_tokens_after_them() -> None:
    layer = Layer("turboquant-mse@4", 4, 9)
    q, k, v = layer.tensors(100)
    cache = layer.cache()
    cache.update_and_fetch(k, v)
    got = np.array(cache.attend(q, layer.scale, None))
    assert worst(got, by_hand(layer, q, k, v, causal=False)) < 1e-4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_output_has_the_queries_dtype_and_raw_tokens_the_caches(dtype: str) -> None:
    layer = Layer("turboquant-mse@4", 4, 9, dtype=dtype)
    q, k, v = layer.tensors(100)
    cache = layer.cache()
    cache.update_and_fetch(k, v)
    output = cache.attend(q, layer.scale, "causal")
    assert output.dtype == q.dtype
    assert worst(np.array(output.astype(mx.float32)), by_hand(layer, q, k, v)) < 0.02
    mixed = replace(layer, dtype="float16").cache()
    mixed.update_and_fetch(k.astype(mx.float32), v.astype(mx.float32))
    assert mixed.attend(q.astype(mx.float32), layer.scale, "causal").dtype == mx.float32
    assert {str(a.dtype) for a in mixed.state[1:]} <= {"mlx.core.float16", "mlx.core.bfloat16", "mlx.core.uint32"}


@pytest.mark.parametrize("codec", ["identity", "turboquant-mse@8"])
def test_an_element_that_does_not_fit_the_caches_dtype_stays_what_it_is(codec: str) -> None:
    layer = Layer(codec, 4, 9, dtype="float16")
    q, k, v = (x.astype(mx.float32) for x in layer.tensors(120))
    v[:, :, 70, 0] = 1e5
    got = run(layer.cache(), q, k, v, 1)
    assert np.isfinite(got).all()
    assert worst(got, by_hand(layer, q, k, v)) < 0.02


def test_an_update_that_attention_passed_by_is_noticed() -> None:
    layer = Layer("turboquant-mse@4")
    q, k, v = layer.tensors(4)
    cache = layer.cache()
    cache.update_and_fetch(k, v)
    with pytest.raises(RuntimeError, match="did not go through the compressed cache: run the model inside"):
        cache.update_and_fetch(k, v)
    with pytest.raises(ValueError, match="3 queries don't go with an update of 4 tokens"):
        cache.attend(q[:, :, :3], 1.0)
    cache.attend(q, 1.0, "causal")
    with pytest.raises(RuntimeError, match="one call of attend"):
        cache.attend(q, 1.0, "causal")
    with pytest.raises(ValueError, match="keys of layer 3 have 2 heads of 32 channels, not 2 of 64"):
        cache.update_and_fetch(k[..., :32], v)


def test_a_codec_that_needs_a_calibration_says_so() -> None:
    with pytest.raises(InputError, match=r"vecinfer@2.* learns from another text"):
        Layer(VECINFER).cache()
    assert parse_codec(VECINFER).keys.build("keys").needs_calibration
