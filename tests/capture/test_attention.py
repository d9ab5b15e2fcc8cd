from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from small_models import bits, largest, prefill, small_model, some_ids

from tqcli.capture.attention import AttentionCall, observe_attention
from tqcli.errors import InputError
from tqcli.models import LoadedModel

# isort: split
import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten


def attended(call: AttentionCall, window: int | None) -> mx.array:
    """softmax(scale q k^T) v with a causal mask, or a sliding window's, in float32; from the definition alone."""
    q, k, v = (x.astype(mx.float32) for x in (call.queries, call.keys, call.values))
    ratio = q.shape[1] // k.shape[1]
    k, v = mx.repeat(k, ratio, axis=1), mx.repeat(v, ratio, axis=1)
    new, seen = q.shape[2], k.shape[2]
    behind = mx.arange(seen - new, seen)[:, None] - mx.arange(seen)[None]
    visible = behind >= 0 if window is None else (behind >= 0) & (behind < window)
    logits = mx.where(visible, (q @ k.transpose(0, 1, 3, 2)) * call.scale, -mx.inf)
    return mx.softmax(logits, axis=-1) @ v


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_observing_does_not_change_one_bit_of_the_logits(name: str, dtype: mx.Dtype) -> None:
    small, ids = small_model(name, dtype), some_ids(50)
    unobserved = prefill(small.model, small.cache(), ids, chunk=20)

    cache = small.cache()
    calls: list[AttentionCall] = []
    with observe_attention(small.model, cache, calls.append):
        observed = prefill(small.model, cache, ids, chunk=20)

    assert len(calls) == 3 * len(cache)
    assert observed.dtype == unobserved.dtype
    assert np.array_equal(bits(observed), bits(unobserved))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_observing_smollm2_does_not_change_one_bit_of_the_logits(smollm2: LoadedModel, dtype: mx.Dtype) -> None:
    from mlx_lm.models.cache import make_prompt_cache

    # 16-bit matrix products are slow on a CPU, so that dtype sees fewer tokens.
    ids = some_ids(64 if dtype == mx.float32 else 8, vocabulary=40_000)
    stored = dict(tree_flatten(smollm2.model.parameters()))
    try:
        smollm2.model.set_dtype(dtype)
        unobserved = prefill(smollm2.model, make_prompt_cache(smollm2.model), ids, chunk=64)
        cache = make_prompt_cache(smollm2.model)
        calls: list[AttentionCall] = []
        with observe_attention(smollm2.model, cache, calls.append):
            observed = prefill(smollm2.model, cache, ids, chunk=64)
    finally:
        smollm2.model.update(tree_unflatten(list(stored.items())))

    assert [call.cache_index for call in calls] == list(range(30))
    assert calls[0].queries.shape[1] == 9 and calls[0].keys.shape[1] == 3
    assert np.array_equal(bits(observed), bits(unobserved))


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "llama-80", "llama-96"])
def test_what_is_seen_reproduces_the_models_own_attention(name: str) -> None:
    small = small_model(name)
    calls: list[AttentionCall] = []
    cache = small.cache()
    with observe_attention(small.model, cache, calls.append):
        prefill(small.model, cache, some_ids(41), chunk=30)

    for call in calls:
        window = getattr(cache[call.cache_index], "max_size", None)
        expected = attended(call, window)
        assert largest(expected - call.output) < 1e-4 * largest(expected)


def test_the_calling_attention_module_is_told() -> None:
    small = small_model("llama")
    calls: list[AttentionCall] = []
    cache = small.cache()
    with observe_attention(small.model, cache, calls.append):
        prefill(small.model, cache, some_ids(4), chunk=4)
    assert [call.module for call in calls] == [block.self_attn for block in small.model.layers]


def test_calls_for_another_cache_pass_unseen() -> None:
    small = small_model("llama")
    calls: list[AttentionCall] = []
    with observe_attention(small.model, small.cache(), calls.append):
        prefill(small.model, small.cache(), some_ids(4), chunk=4)
        small.model(mx.array(some_ids(4))[None])
    assert calls == []


def test_two_observers_may_be_nested() -> None:
    small = small_model("llama")
    outer: list[AttentionCall] = []
    inner: list[AttentionCall] = []
    cache, other = small.cache(), small.cache()
    ids = some_ids(8)
    with observe_attention(small.model, cache, outer.append):
        with observe_attention(small.model, other, inner.append):
            first = prefill(small.model, cache, ids, chunk=8)
            second = prefill(small.model, other, ids, chunk=8)
        prefill(small.model, other, ids, chunk=8)
    assert [call.cache for call in outer] == cache
    assert [call.cache for call in inner] == other
    assert np.array_equal(bits(first), bits(second))


def test_the_attention_function_is_put_back_after_an_exception() -> None:
    import mlx_lm.models.llama as llama

    small = small_model("llama")
    original, cache = llama.scaled_dot_product_attention, small.cache()

    def refuse(call: AttentionCall) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), observe_attention(small.model, cache, refuse):
        prefill(small.model, cache, some_ids(4), chunk=4)
    assert llama.scaled_dot_product_attention is original


def test_the_queries_seen_of_a_quantised_cache_are_the_models_own() -> None:
    """mlx-lm's quantised attention scales the queries in place."""
    from mlx_lm.models.cache import QuantizedKVCache

    small = small_model("llama")
    plain: list[AttentionCall] = []
    quantised: list[AttentionCall] = []
    ids, cache = some_ids(8), small.cache()
    with observe_attention(small.model, cache, plain.append):
        prefill(small.model, cache, ids, chunk=8)
    packed = [QuantizedKVCache(group_size=64, bits=8) for _ in cache]
    with observe_attention(small.model, packed, quantised.append):
        prefill(small.model, packed, ids, chunk=8)
    assert np.array_equal(bits(plain[0].queries), bits(quantised[0].queries))


def test_a_model_without_the_common_attention_function_is_refused() -> None:
    class Block(nn.Module):  # type: ignore[misc, unused-ignore]
        def __call__(self, x: mx.array) -> mx.array:
            return x

    model: Any = Block()
    model.model_type = "rwkv"
    with (
        pytest.raises(InputError, match="the architecture rwkv doesn't use mlx-lm's common attention function"),
        observe_attention(model, [SimpleNamespace()], lambda call: None),
    ):
        pass
