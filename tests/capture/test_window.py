from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small_models import bits, largest, small_model, some_ids
from test_attention import attended

from tqcli.capture.attention import AttentionCall, observe_attention
from tqcli.capture.geometry import describe_layers
from tqcli.capture.window import WindowCapture, capture_window, prefill_chunks, sample_positions
from tqcli.codecs.rotary import turn
from tqcli.errors import InputError

# isort: split
import mlx.core as mx
import numpy as np


def captured(small: Any, tokens: int, chunk: int = 64, **options: Any) -> tuple[WindowCapture, list[Any]]:
    cache = small.cache()
    positions = np.arange(tokens, dtype=np.int32)
    return capture_window(small.model, cache, some_ids(tokens), positions, chunk, **options), cache


@pytest.mark.parametrize("tokens", [1, 7, 63, 257])
@pytest.mark.parametrize("name", ["llama", "qwen2", "llama-80", "llama-96"])
def test_keys_and_values_are_the_caches_own(name: str, tokens: int) -> None:
    small = small_model(name)
    seen, cache = captured(small, tokens)
    assert list(seen.layers) == list(range(len(cache)))
    for layer, entry in enumerate(cache):
        keys, values = entry.keys_and_values()
        assert np.array_equal(bits(seen.layers[layer].keys), bits(keys[0]))
        assert np.array_equal(bits(seen.layers[layer].values), bits(values[0]))


@pytest.mark.parametrize("tokens", [1, 7, 15, 16, 17, 63, 257])
@pytest.mark.parametrize("chunk", [3, 10, 64])
def test_a_sliding_window_layer_is_captured_whole_and_agrees_with_its_cache(tokens: int, chunk: int) -> None:
    small = small_model("gemma3")
    seen, cache = captured(small, tokens, chunk)
    for layer, entry in enumerate(cache):
        own = seen.layers[layer]
        assert own.keys.shape == own.values.shape == (1, tokens, 64)
        held = [x[0] for x in entry.keys_and_values()]
        length = min(held[0].shape[1], tokens)
        assert np.array_equal(bits(own.keys[:, -length:]), bits(held[0][:, -length:]))
        assert np.array_equal(bits(own.values[:, -length:]), bits(held[1][:, -length:]))


def test_the_dtype_is_the_caches() -> None:
    seen, cache = captured(small_model("llama", mx.bfloat16), 12)
    assert seen.layers[0].keys.dtype == mx.bfloat16
    assert np.array_equal(bits(seen.layers[0].keys), bits(cache[0].keys_and_values()[0][0]))


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize("chunk", [2, 7, 33])
def test_the_size_of_a_prefill_step_matters_only_to_rounding(name: str, chunk: int) -> None:
    small = small_model(name)
    whole, _ = captured(small, 90, chunk=90)
    parts, _ = captured(small, 90, chunk=chunk)
    for layer, expected in whole.layers.items():
        for tensor in ("keys", "values", "queries"):
            a, b = getattr(expected, tensor), getattr(parts.layers[layer], tensor)
            assert a.shape == b.shape
            assert largest(a - b) < 1e-4 * largest(a)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_captured_tensors_and_the_recorded_geometry_reproduce_attention(name: str) -> None:
    """From keys, values, queries, scale and window of a capture, in chunks, to the output of one whole prefill."""
    small = small_model(name)
    calls: list[AttentionCall] = []
    seen, cache = captured(small, 60, chunk=25)
    records, skipped = describe_layers(small.model, cache, seen, list(range(len(cache))))
    with observe_attention(small.model, whole := small.cache(), calls.append):
        mx.eval(small.model(mx.array(some_ids(60))[None], cache=whole))

    assert skipped == []
    for record, call in zip(records, calls, strict=True):
        own = seen.layers[record.layer]
        rebuilt = replace(
            call, queries=own.queries[None], keys=own.keys[None], values=own.values[None], scale=record.scale
        )
        output = attended(rebuilt, record.window)
        assert largest(output - call.output) < 1e-4 * largest(call.output)


def test_layers_are_described_as_they_work() -> None:
    small = small_model("gemma3", rope_theta=1_000_000.0)
    seen, cache = captured(small, 60)
    records, _ = describe_layers(small.model, cache, seen, [0, 1, 2, 3])
    assert [(r.kind, r.window) for r in records] == [("sliding", 16), ("full", None)] * 2
    assert {(r.n_q_heads, r.n_kv_heads, r.head_dim, r.value_head_dim, r.scale) for r in records} == {
        (4, 1, 64, 64, 0.125)
    }
    # gemma 3 turns its sliding layers by another base than the others.
    assert records[0].rotary is not None and records[1].rotary is not None
    assert records[0].rotary.frequencies[1] == pytest.approx(10_000 ** (-2 / 64), rel=1e-6)
    assert records[1].rotary.frequencies[1] == pytest.approx(1_000_000 ** (-2 / 64), rel=1e-6)


@pytest.mark.parametrize(
    "changes", [{}, {"rope_traditional": True}, {"rope_scaling": {"type": "linear", "factor": 4.0}}]
)
def test_keys_before_the_recorded_rotary_embedding_are_the_projections(changes: dict[str, Any]) -> None:
    small = small_model("llama", layers=1, **changes)
    seen, cache = captured(small, 40, chunk=16)
    records, _ = describe_layers(small.model, cache, seen, [0])
    assert records[0].rotary is not None
    block = small.model.layers[0]
    hidden = block.input_layernorm(small.model.model.embed_tokens(mx.array(some_ids(40))[None]))
    projected = block.self_attn.k_proj(hidden)[0].reshape(40, 3, 64).transpose(1, 0, 2)

    before = turn(seen.layers[0].keys, np.arange(40), records[0].rotary, inverse=True)
    assert largest(before - projected) < 1e-4 * largest(projected)


def test_only_the_layers_that_are_wanted_are_kept() -> None:
    seen, _ = captured(small_model("gemma3"), 20, layers=[1, 3])
    assert sorted(seen.layers) == [1, 3]


def test_queries_are_those_at_their_positions() -> None:
    small = small_model("llama")
    every, _ = captured(small, 50, chunk=20)
    positions = np.array([0, 3, 16, 17, 40, 49], dtype=np.int32)
    some = capture_window(small.model, small.cache(), some_ids(50), positions, 20)
    for layer, own in some.layers.items():
        assert np.array_equal(bits(own.queries), bits(every.layers[layer].queries[:, mx.array(positions)]))


def test_a_layer_whose_cache_holds_something_else_than_attention_reads_is_left_out_with_the_reason() -> None:
    small = small_model("llama")
    seen, cache = captured(small, 20)
    cache[1].keys = cache[1].keys + 1
    records, skipped = describe_layers(small.model, cache, seen, [0, 1])
    assert [r.layer for r in records] == [0]
    assert [(s.layer, s.reason) for s in skipped] == [
        (1, "the keys that its attention reads are not those in its cache")
    ]
    with pytest.raises(InputError, match="nothing can be captured from the architecture llama"):
        describe_layers(small.model, cache, seen, [1])


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 64, 255, 256, 257, 1000])
@pytest.mark.parametrize("chunk", [2, 3, 64, 256])
def test_prefill_steps_cover_the_window_and_are_never_longer_than_asked(tokens: int, chunk: int) -> None:
    sizes = prefill_chunks(tokens, chunk)
    assert sum(sizes) == tokens
    assert max(sizes) <= chunk
    assert min(sizes) >= (1 if tokens == 1 or chunk < 3 else 2)


def test_sampled_positions_are_sorted_distinct_and_seeded() -> None:
    first = sample_positions(100, 20, seed=1, window=0)
    assert len(set(first.tolist())) == 20
    assert first.tolist() == sorted(first.tolist())
    assert first.min() >= 0 and first.max() < 100
    assert np.array_equal(first, sample_positions(100, 20, seed=1, window=0))
    assert not np.array_equal(first, sample_positions(100, 20, seed=1, window=1))
    assert not np.array_equal(first, sample_positions(100, 20, seed=2, window=0))
    assert sample_positions(5, 20, seed=0, window=0).tolist() == [0, 1, 2, 3, 4]
