"""What a compressed cache keeps: bytes, saving and going on, taking tokens back."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from one_layer import TENSORS, Layer, by_hand, run, worst

from tqcli.cache import CompressedKVCache
from tqcli.cache.hook import register
from tqcli.codecs.base import registered_codecs
from tqcli.codecs.spec import parse_codec
from tqcli.compression.tensor import nominal_bytes

# isort: split
import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import (
    can_trim_prompt_cache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)

CODECS = ["turboquant-mse@4", "turboquant-prod@3", "affine@4", "turboquant-mse@2.5", "identity"]


def fill(layer: Layer, tokens: int, chunk: int = 512) -> CompressedKVCache:
    cache = layer.cache()
    run(cache, *layer.tensors(tokens), chunk)
    return cache


def continued(cache: CompressedKVCache, layer: Layer, start: int, stop: int, chunk: int = 7) -> np.ndarray:
    q, k, v = (x[:, :, start:stop] for x in layer.tensors(stop))
    return run(cache, q, k, v, chunk)


@pytest.mark.parametrize("tokens", [4096, 4097])
@pytest.mark.parametrize("codec", CODECS)
def test_live_bytes_are_within_a_few_percent_of_the_formula(codec: str, tokens: int) -> None:
    layer = Layer(codec, 4, 32, q_heads=3, kv_heads=3, dtype="float16")
    cache = layer.cache()
    _, k, v = layer.tensors(tokens)
    for start in range(0, tokens, 1024):
        cache.update_and_fetch(k[:, :, start : start + 1024], v[:, :, start : start + 1024])
        cache.keys.finish()
        cache.values.finish()
    nominal = sum(nominal_bytes(of.codec, of.ctx, tokens, 4, 32) for of in (cache.keys, cache.values))
    assert nominal <= cache.nbytes <= 1.03 * nominal
    assert cache.nbytes == sum(a.nbytes for a in cache.state[1:])
    if codec != "identity":
        assert cache.nbytes < 0.35 * (k.nbytes + v.nbytes)


def every_codec() -> list[tuple[str, int]]:
    """All that code, at 2, 3 and 4 bits, with each head_dim that they can code."""
    found = []
    for name, cls in registered_codecs().items():
        few = ",iterations=2" if name == "vecinfer" else ""
        for bits in sorted({2, 3, 4} & set(cls.bits_allowed)):
            codec = f"{name}@{bits}{few}"
            for head_dim in (64, 80, 128):
                ctx = Layer(codec, head_dim=head_dim).context("keys")
                if parse_codec(codec).keys.build("keys").unsupported(ctx) is None:
                    found.append((codec, head_dim))
    return found


@pytest.mark.parametrize(("codec", "head_dim"), every_codec())
def test_live_bytes_of_every_codec_are_within_3_percent_of_the_formula(codec: str, head_dim: int) -> None:
    layer = Layer(codec, 4, 32, q_heads=1, kv_heads=1, head_dim=head_dim, value_head_dim=head_dim, dtype="bfloat16")
    layer = layer.calibrated() if codec.startswith("vecinfer") else layer
    cache = layer.cache()
    _, k, v = layer.tensors(64)
    for tokens, new in ((4032, 4032), (4096, 64), (4097, 1)):
        x = (mx.tile(of, (1, 1, -(-new // 64), 1))[:, :, :new] for of in (k, v))
        cache.update_and_fetch(*x)
        cache.keys.finish()
        cache.values.finish()
        assert cache.offset == tokens
        nominal = sum(
            nominal_bytes(of.codec, of.ctx, tokens, 4, 32, bool(layer.states)) for of in (cache.keys, cache.values)
        )
        assert nominal <= cache.nbytes <= 1.03 * nominal


def test_what_is_counted_is_what_is_allocated() -> None:
    """One KV head, where a slice of an array would keep the whole of it alive."""
    layer = Layer("turboquant-mse@4,center=none", 4, 32, q_heads=1, kv_heads=1, dtype="float16")
    before_all = mx.get_active_memory()
    cache = fill(layer, 2048, 2048)
    mx.clear_cache()
    shared = sum(array.nbytes for array in cache.shared.values())
    assert mx.get_active_memory() - before_all < 1.1 * (cache.nbytes + shared) + 100_000


def test_peak_memory_does_not_grow_with_the_context() -> None:
    peaks = []
    for tokens in (1024, 8192):
        layer = Layer("turboquant-mse@4", 4, 32, dtype="float16")
        cache = layer.cache()
        q, k, v = (mx.contiguous(mx.tile(x, (1, 1, tokens // 64, 1))) for x in layer.tensors(64))
        mx.eval(q, k, v)
        for start in range(0, tokens, 512):
            cache.update_and_fetch(k[:, :, start : start + 512], v[:, :, start : start + 512])
            cache.keys.finish()
            cache.values.finish()
            mx.eval(cache.state)
        for new in (1, 64):
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            cache.update_and_fetch(k[:, :, :new], v[:, :, :new])
            mx.eval(cache.attend(q[:, :, :new], layer.scale, "causal"))
            peaks.append(mx.get_peak_memory() - before)
    grown = cache.nbytes  # the packed buffer itself may be copied as it grows
    assert peaks[2] < 1.5 * peaks[0] + grown
    assert peaks[3] < 1.5 * peaks[1] + grown
    decoded = 2 * 8192 * 2 * 64 * 4  # bytes of the keys and values of two KV heads in float32
    assert max(peaks[0], peaks[2]) < decoded


@pytest.mark.parametrize("codec", [*CODECS, "vecinfer@2,sub_dim=2,code_bits=4,iterations=3"])
@pytest.mark.parametrize(("tokens", "window"), [(3, None), (50, None), (150, None), (150, 40)])
def test_saved_and_loaded_it_goes_on_bit_for_bit(tmp_path: Path, codec: str, tokens: int, window: int | None) -> None:
    layer = Layer(codec, 4, 9, window=window)
    layer = layer.calibrated() if codec.startswith("vecinfer") else layer
    cache = fill(layer, tokens, 40)
    register()
    path = str(tmp_path / "cache.safetensors")
    save_prompt_cache(path, [cache], {"prompt": "a"})
    loaded, metadata = load_prompt_cache(path, return_metadata=True)
    assert metadata == {"prompt": "a"}
    assert isinstance(loaded[0], CompressedKVCache)
    assert (loaded[0].offset, loaded[0].nbytes) == (tokens, cache.nbytes)
    assert loaded[0].meta_state == cache.meta_state
    assert {name: a.nbytes for name, a in loaded[0].shared.items()} == {n: a.nbytes for n, a in cache.shared.items()}
    copied = copy.deepcopy(cache)
    expected = continued(cache, layer, tokens, tokens + 40)
    assert np.array_equal(continued(loaded[0], layer, tokens, tokens + 40), expected)
    assert np.array_equal(continued(copied, layer, tokens, tokens + 40), expected)
    for of in (cache, loaded[0]):
        save_prompt_cache(str(tmp_path / f"{id(of)}"), [of])
    a, b = (mx.load(str(tmp_path / f"{id(of)}.safetensors")) for of in (cache, loaded[0]))
    assert isinstance(a, dict) and isinstance(b, dict)
    assert all(mx.array_equal(a[name], b[name], equal_nan=True).item() for name in a.keys() | b.keys())


def test_an_empty_cache_is_saved_and_loaded(tmp_path: Path) -> None:
    layer = Layer("turboquant-mse@4", 4, 9)
    register()
    path = str(tmp_path / "cache.safetensors")
    cache = layer.cache()
    assert cache.empty() and cache and cache.nbytes == 0 and cache.size() == 0
    save_prompt_cache(path, [cache])
    loaded = load_prompt_cache(path)
    assert np.array_equal(continued(loaded[0], layer, 0, 100), continued(cache, layer, 0, 100))
    assert not cache.empty()


def test_a_state_of_another_format_is_refused() -> None:
    text = Layer("affine@4").cache().meta_state.replace('"format": 1', '"format": 9')
    with pytest.raises(ValueError, match="of format 9 can't be read, only 1"):
        CompressedKVCache.from_state([mx.array(list(text.encode()), dtype=mx.uint8)])


@pytest.mark.parametrize("codec", ["turboquant-mse@4", "turboquant-mse@4,center=none", "identity"])
@pytest.mark.parametrize("back", [1, 5, 30, 100, 147, 1000])
def test_tokens_taken_back_are_as_if_they_had_not_been_but_that_coded_ones_stay_coded(codec: str, back: int) -> None:
    layer = Layer(codec, 4, 9)
    cache = fill(layer, 150, 40)
    assert can_trim_prompt_cache([cache])
    assert trim_prompt_cache([cache], back) == min(back, 150)
    start = 150 - min(back, 150)
    assert cache.offset == start
    q, k, v = layer.tensors(170)
    got = continued(cache, layer, start, 170)
    if codec == "identity":
        assert worst(got, by_hand(layer, q, k, v)[:, :, start:]) < 1e-4
        return
    # 137 tokens were coded, from the fifth on: of these, the ones that are left are seen coded from the start.
    stays = min(start, 141)
    recent = np.maximum(0, np.arange(start, 170) + 1 - stays)
    for t, kept in zip(range(start, 170), np.minimum(recent, 9), strict=True):
        at_t = Layer(codec, 4, int(kept))
        if stays > 4 and t + 1 - 4 - kept < 64 and "none" not in codec:
            continue  # the reference would wait for its first tokens here
        if t % 5 == 0:
            prefix = tuple(x[:, :, : t + 1] for x in (q, k, v))
            assert worst(got[:, :, t - start], by_hand(at_t, *prefix)[:, :, t]) < 1e-4


def test_a_cache_taken_back_to_nothing_is_a_new_one() -> None:
    layer = Layer("turboquant-mse@4", 4, 9)
    cache = fill(layer, 150)
    cache.trim(150)
    assert cache.empty() and cache.nbytes == 0
    assert np.array_equal(continued(cache, layer, 0, 120), continued(layer.cache(), layer, 0, 120))


def test_a_sliding_window_that_has_dropped_tokens_cannot_be_trimmed() -> None:
    cache = fill(Layer("turboquant-mse@4", window=300), 150, 50)
    assert cache.is_trimmable()
    cache = fill(Layer("turboquant-mse@4", window=30), 150, 50)
    assert not cache.is_trimmable()
    assert trim_prompt_cache([cache], 3) == 0
    with pytest.raises(ValueError, match="can't be trimmed"):
        cache.trim(3)


def test_masks_have_the_shapes_of_the_caches_that_are_replaced() -> None:
    from mlx_lm.models.cache import KVCache, RotatingKVCache

    full, sliding = Layer("affine@4"), Layer("affine@4", window=40)
    pairs = ((full.cache(), KVCache()), (sliding.cache(rotating=True), RotatingKVCache(40)))
    for ours, theirs in pairs:
        for step in (10, 1, 30, 25, 1):
            for window in (None, 40):
                for as_array in (False, True):
                    mask, other = (c.make_mask(step, window_size=window, return_array=as_array) for c in (ours, theirs))
                    assert type(mask) is type(other)
                    assert mx.array_equal(mask, other) if isinstance(other, mx.array) else mask == other
            x = mx.zeros((1, 2, step, 64))
            theirs.update_and_fetch(x, x)
            ours.update_and_fetch(x, x)
            ours.attend(mx.zeros((1, 4, step, 64)), 1.0, "causal")
            assert ours.offset == theirs.offset


def test_nothing_of_mlx_lm_takes_it_for_something_else() -> None:
    cache = Layer("affine@4").cache()
    assert cache
    assert not hasattr(cache, "bits")  # mlx-lm would take it for its own quantised cache
    assert not hasattr(cache, "to_quantized")
    assert make_prompt_cache is not None
    assert [of.ctx.tensor for of in (cache.keys, cache.values)] == list(TENSORS)
