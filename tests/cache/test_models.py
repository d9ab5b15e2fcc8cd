"""Compressed caches inside real model code of mlx-lm: the hook, which layers are replaced, and generation."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import tqcli  # noqa: F401  # before mlx.core: puts a fast BLAS in front

# isort: split
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step, stream_generate
from mlx_lm.models.cache import KVCache, load_prompt_cache, make_prompt_cache, save_prompt_cache
from mlx_lm.utils import load_model, load_tokenizer
from tiny_models import COMMON, LATENT, write_tiny_model

from tqcli.cache import (
    CompressedCaches,
    CompressedKVCache,
    compress_cache,
    compressed_attention,
    install,
    uninstall,
)
from tqcli.capture.attention import AttentionCall, observe_attention
from tqcli.codecs.base import State
from tqcli.codecs.context import Tensor
from tqcli.codecs.spec import parse_codec
from tqcli.compression.plan import CompressionPlan
from tqcli.compression.tensor import nominal_bytes
from tqcli.errors import InputError

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "hidden": 72, "heads": 9, "kv_heads": 3, "head_dim": 64},
    "qwen2": {"model_type": "qwen2", "hidden": 224, "heads": 14, "kv_heads": 2, "key_bias_std": 20.0},
    "gemma3": {"model_type": "gemma3_text", "layers": 4, "heads": 4, "kv_heads": 1, "head_dim": 64},
    "llama-80": {"model_type": "llama", "heads": 2, "kv_heads": 1, "head_dim": 80},
}
"""gemma3 has a sliding window of 16 tokens in every other layer."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_tiny_model(tmp_path_factory.mktemp(name) / "m", **shape) for name, shape in SHAPES.items()}


def loaded(folder: Path, dtype: mx.Dtype = mx.float32) -> Any:
    model, _ = load_model(folder, lazy=True)
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    return model


def architecture(model_type: str, **config: Any) -> Any:
    module = import_module(f"mlx_lm.models.{model_type}")
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict(COMMON | {"model_type": model_type} | config))
    mx.eval(model.parameters())
    return model


def plan(codec: str, sinks: int = 0, recent: int = 0, **more: Any) -> CompressionPlan:
    return CompressionPlan(parse_codec(codec), sinks=sinks, recent=recent, **more)


def ids(tokens: int, batch: int = 1, vocabulary: int = 128) -> mx.array:
    return mx.array(np.random.default_rng(5).integers(0, vocabulary, (batch, tokens), dtype=np.int32))


def logits(model: Any, cache: Any, tokens: mx.array, chunk: int) -> np.ndarray:
    steps = []
    for start in range(0, tokens.shape[1], chunk):
        steps.append(model(tokens[:, start : start + chunk], cache=cache).astype(mx.float32))
        mx.eval(steps[-1], [entry.state for entry in cache])
    return np.array(mx.concatenate(steps, axis=1))


def kinds(cache: CompressedCaches) -> list[str]:
    return [type(entry).__name__ for entry in cache]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("sinks", "recent"), [(0, 0), (4, 9)])
@pytest.mark.parametrize("name", SHAPES)
def test_a_codec_that_loses_nothing_gives_mlx_lms_own_logits_bit_for_bit(
    folders: dict[str, Path], name: str, sinks: int, recent: int, dtype: mx.Dtype
) -> None:
    model, tokens = loaded(folders[name], dtype), ids(90)
    for chunk in (90, 32, 1):
        expected = logits(model, make_prompt_cache(model), tokens, chunk)
        cache = compress_cache(model, plan("identity", sinks, recent))
        assert cache.skipped == []
        with compressed_attention(model):
            got = logits(model, cache, tokens, chunk)
        if name == "gemma3" and chunk == 1:
            # mlx-lm's rotating cache hands out its ring in another order, so that sums are rounded otherwise.
            assert np.abs(got - expected).max() < (1e-4 if dtype == mx.float32 else 1)
        else:
            assert np.array_equal(got, expected)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_cache_that_still_waits_for_its_first_tokens_changes_nothing(folders: dict[str, Path], name: str) -> None:
    model, tokens = loaded(folders[name]), ids(60)
    expected = logits(model, make_prompt_cache(model), tokens, 20)
    cache = compress_cache(model, plan("turboquant-mse@2,center=mean", 4, 0))
    with compressed_attention(model):
        assert np.array_equal(logits(model, cache, tokens, 20), expected)
        more = logits(model, cache, ids(60), 20)
    assert not np.array_equal(more, logits(model, make_prompt_cache(model), ids(60), 20))


def test_more_bits_give_logits_that_are_nearer(folders: dict[str, Path]) -> None:
    model, tokens = loaded(folders["qwen2"]), ids(150)
    expected = logits(model, make_prompt_cache(model), tokens, 64)
    errors, sizes = [], []
    with compressed_attention(model):
        for codec in ("turboquant-mse@2", "turboquant-mse@4", "turboquant-mse@8"):
            cache = compress_cache(model, plan(codec, 4, 9))
            errors.append(float(np.mean((logits(model, cache, tokens, 64) - expected) ** 2)))
            sizes.append(sum(entry.nbytes for entry in cache))
    assert errors[0] > 3 * errors[1] > 9 * errors[2] > 0
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.parametrize(("name", "codec"), [("llama-80", "turboquant-mse@3"), ("llama", "affine@4")])
def test_after_4096_tokens_a_models_cache_takes_3_percent_more_than_the_formula_at_most(
    folders: dict[str, Path], name: str, codec: str
) -> None:
    model, tokens = loaded(folders[name], mx.float16), ids(4097)
    cache = compress_cache(model, plan(codec, 4, 32))
    for part in (slice(0, 4096), slice(4096, 4097)):
        with compressed_attention(model):
            logits(model, cache, tokens[:, part], 512)
        nominal = sum(
            nominal_bytes(of.codec, of.ctx, part.stop, 4, 32) for entry in cache for of in (entry.keys, entry.values)
        )
        assert nominal <= sum(entry.nbytes for entry in cache) <= 1.03 * nominal
        assert cache.shared_bytes < 0.001 * nominal


def test_each_sequence_of_a_batch_has_its_own_cache(folders: dict[str, Path]) -> None:
    model, tokens = loaded(folders["llama"]), ids(120, batch=2)
    with compressed_attention(model):
        together = logits(model, compress_cache(model, plan("turboquant-mse@4", 4, 9)), tokens, 50)
        for b in (0, 1):
            alone = logits(model, compress_cache(model, plan("turboquant-mse@4", 4, 9)), tokens[b : b + 1], 50)
            # A flipped code here and there: products are rounded otherwise with more rows.
            assert np.median(np.abs(together[b] - alone[0])) < 1e-4


def test_bits_of_a_layer_and_states_are_the_plans(folders: dict[str, Path]) -> None:
    model = loaded(folders["llama"])
    cache = compress_cache(model, plan("turboquant-mse@4", layer_bits={1: (8, 2)}))
    assert [cache.compressed[layer].keys.spec.bits for layer in (0, 1)] == [4, 8]
    assert [cache.compressed[layer].values.spec.bits for layer in (0, 1)] == [4, 2]
    with pytest.raises(InputError, match="--layer-bits names layer 7"):
        compress_cache(model, plan("turboquant-mse@4", layer_bits={7: (8, 2)}))
    mean = mx.ones((3, 1, 64), dtype=mx.bfloat16)
    states: dict[tuple[int, Tensor], State] = {(layer, "keys"): {"mean": mean} for layer in (0, 1)}
    waiting = compress_cache(model, plan("turboquant-mse@4", 2, 3))
    given = compress_cache(model, plan("turboquant-mse@4", 2, 3), states=states)
    with compressed_attention(model):
        logits(model, given, ids(20), 20)
        logits(model, waiting, ids(20), 20)
    assert {"0.keys.mean", "1.keys.mean"} < given.compressed[0].shared.keys() | given.compressed[1].shared.keys()
    assert given.shared_bytes == waiting.shared_bytes + 2 * mean.nbytes
    assert given.compressed[0].nbytes < waiting.compressed[0].nbytes  # nothing waits for a mean


def test_a_copy_of_empty_caches_is_a_new_one(folders: dict[str, Path]) -> None:
    model = loaded(folders["gemma3"])
    first = compress_cache(model, plan("turboquant-mse@4", 4, 3), only=[0, 1, 3])
    copied = copy.deepcopy(first)
    assert (kinds(copied), copied.skipped) == (kinds(first), first.skipped)
    with compressed_attention(model):
        expected = logits(model, first, ids(100), 30)
        assert all(entry.empty() for entry in copied)
        assert np.array_equal(logits(model, copied, ids(100), 30), expected)
    assert first.compressed[3].values.coded_tokens == 100 - 4 - 3


def test_layers_may_be_compressed_one_at_a_time(folders: dict[str, Path]) -> None:
    model, tokens = loaded(folders["gemma3"]), ids(90)
    expected = logits(model, make_prompt_cache(model), tokens, 30)
    for layer in range(4):
        cache = compress_cache(model, plan("identity", 4, 3), only=[layer])
        assert [type(entry) is CompressedKVCache for entry in cache] == [other == layer for other in range(4)]
        with compressed_attention(model):
            assert np.array_equal(logits(model, cache, tokens, 30), expected)


def test_what_stays_uncompressed_is_in_the_dtype_asked_for(folders: dict[str, Path]) -> None:
    model = loaded(folders["llama"])
    sizes = []
    for dtype in ("float32", "float16"):
        cache = compress_cache(model, plan("identity"), cache_dtype=dtype)
        with compressed_attention(model):
            logits(model, cache, ids(64), 64)
        sizes.append(sum(entry.nbytes for entry in cache))
    assert sizes[0] == 2 * sizes[1] == 2 * 2 * 3 * 64 * 64 * 4


def test_linear_attention_layers_and_states_keep_their_caches() -> None:
    model = architecture("falcon_h1")
    expected = logits(model, make_prompt_cache(model), ids(60), 25)
    cache = compress_cache(model, plan("identity", 2, 3))
    assert kinds(cache) == ["CacheList"] * 4
    assert sorted(cache.compressed) == [0, 1, 2, 3]
    with compressed_attention(model):
        assert np.array_equal(logits(model, cache, ids(60), 25), expected)


def test_learned_sink_logits_of_a_model(folders: dict[str, Path]) -> None:
    layer_types = ["sliding_attention", "full_attention"] * 2
    mixture = {"num_local_experts": 1, "num_experts_per_tok": 1}
    model = architecture("gpt_oss", sliding_window=16, layer_types=layer_types, rope_scaling=None, **mixture)
    for block in model.layers:
        block.self_attn.sinks = mx.array([0.5, 1.0, -1.0, 2.0])
    expected = logits(model, make_prompt_cache(model), ids(100), 40)
    errors = []
    with compressed_attention(model):
        assert np.array_equal(logits(model, compress_cache(model, plan("identity")), ids(100), 40), expected)
        for codec in ("turboquant-mse@3", "turboquant-mse@8"):
            cache = compress_cache(model, plan(codec, 2, 3))
            errors.append(np.abs(logits(model, cache, ids(100), 40) - expected).max())
    assert errors[1] < 0.05 < errors[0]


def test_layers_that_share_a_cache_keep_it() -> None:
    model = architecture(
        "gemma4_text",
        num_kv_shared_layers=1,
        sliding_window=16,
        global_head_dim=32,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=128,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    expected = logits(model, make_prompt_cache(model), ids(60), 25)
    cache = compress_cache(model, plan("identity"))
    assert kinds(cache) == ["CompressedKVCache", "KVCache", "CompressedKVCache"]
    assert [(of.layer, of.tensor, of.reason) for of in cache.skipped] == [
        (1, None, "another layer reads its keys and values too"),
        (3, None, "no attention over a cache of its own was seen"),
    ]
    with compressed_attention(model):
        assert np.array_equal(logits(model, cache, ids(60), 25), expected)


def test_latent_attention_and_attention_of_an_own_kind_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="as multi-head latent attention does"):
        compress_cache(architecture("deepseek_v3", **LATENT), plan("affine@4"))
    with pytest.raises(InputError, match="gemma2 doesn't use mlx-lm's common attention function"):
        compress_cache(architecture("gemma2"), plan("affine@4"))


def test_tensors_and_layers_that_the_codec_cannot_code_are_named(folders: dict[str, Path]) -> None:
    model = loaded(folders["llama-80"])
    cache = compress_cache(model, plan("affine@4 | turboquant-mse@4"))
    assert {(of.layer, of.tensor) for of in cache.skipped} == {(0, "keys"), (1, "keys")}
    assert "head_dim 80 is not a multiple" in cache.skipped[0].reason
    with pytest.raises(InputError, match=r"affine@4 compresses nothing of this model's cache: head_dim 80 is not"):
        compress_cache(model, plan("affine@4"))
    with pytest.raises(InputError, match="learns from another text"):
        compress_cache(model, plan("vecinfer@2"))


def test_the_attention_function_is_put_back_after_an_exception_and_when_nested(folders: dict[str, Path]) -> None:
    model = loaded(folders["llama"])
    module = sys.modules["mlx_lm.models.llama"]
    original = module.scaled_dot_product_attention
    with pytest.raises(KeyError), compressed_attention(model):
        assert module.scaled_dot_product_attention is not original
        with compressed_attention(model):
            raise KeyError
    assert module.scaled_dot_product_attention is original
    expected = logits(model, make_prompt_cache(model), ids(30), 30)
    with compressed_attention(model):
        assert np.array_equal(logits(model, make_prompt_cache(model), ids(30), 30), expected)
        with compressed_attention(model):
            cache = compress_cache(model, plan("identity"))
            assert np.array_equal(logits(model, cache, ids(30), 30), expected)
    install(model)
    install(model)
    try:
        assert np.array_equal(logits(model, compress_cache(model, plan("identity")), ids(30), 30), expected)
        calls: list[AttentionCall] = []
        cache = compress_cache(model, plan("identity"))
        with observe_attention(model, cache, calls.append):
            logits(model, cache, ids(8), 8)
        assert [call.cache for call in calls] == list(cache)
    finally:
        uninstall(model)
    assert module.scaled_dot_product_attention is original
    uninstall(model)
    assert module.scaled_dot_product_attention is original


def test_a_model_without_the_hook_is_noticed(folders: dict[str, Path]) -> None:
    model = loaded(folders["llama"])
    cache = compress_cache(model, plan("identity"))
    with pytest.raises(RuntimeError, match=r"run the model inside `with compressed_attention\(model\)`"):
        logits(model, cache, ids(20), 10)


@pytest.fixture(scope="module")
def talker(folders: dict[str, Path]) -> Iterator[tuple[Any, Any]]:
    model = loaded(folders["qwen2"])
    install(model)
    yield model, load_tokenizer(folders["qwen2"])
    uninstall(model)


def test_generation_of_mlx_lm_runs_on_it(talker: tuple[Any, Any]) -> None:
    model, tokenizer = talker
    prompt = ids(100)[0]

    def tokens(cache: Any, **options: Any) -> list[int]:
        steps = generate_step(prompt, model, max_tokens=40, prompt_cache=cache, prefill_step_size=32, **options)
        return [int(token) for token, _ in steps]

    expected = tokens(make_prompt_cache(model))
    assert tokens(compress_cache(model, plan("identity", 4, 9))) == expected
    cache = compress_cache(model, plan("turboquant-mse@4", 4, 9))
    assert len(tokens(cache, kv_bits=4, quantized_kv_start=0)) == 40  # which leaves a compressed cache alone
    assert kinds(cache) == ["CompressedKVCache"] * 2
    assert {entry.offset for entry in cache} == {140}
    fresh = compress_cache(model, plan("turboquant-mse@4", 4, 9))
    said = list(stream_generate(model, tokenizer, prompt.tolist(), max_tokens=10, prompt_cache=fresh))
    assert len(said) == 10 and all(math.isfinite(step.generation_tps) for step in said)


def test_speculative_generation_takes_tokens_back(talker: tuple[Any, Any], folders: dict[str, Path]) -> None:
    model, tokenizer = talker
    draft = loaded(folders["qwen2"])
    draft.update({"model": {"norm": {"weight": 1.3 * draft.model.norm.weight + 0.2}}})
    prompt = ids(90)[0].tolist()
    expected = [step.token for step in stream_generate(model, tokenizer, prompt, max_tokens=30)]
    cache = [*compress_cache(model, plan("identity", 4, 9)), *compress_cache(draft, plan("identity"))]
    options = {"draft_model": draft, "prompt_cache": cache, "num_draft_tokens": 3, "max_tokens": 30}
    assert [step.token for step in stream_generate(model, tokenizer, prompt, **options)] == expected


def test_a_prompt_cache_is_saved_and_goes_on_bit_for_bit(talker: tuple[Any, Any], tmp_path: Path) -> None:
    model, _ = talker
    cache = compress_cache(model, plan("turboquant-mse@4", 4, 9), only=[1])
    logits(model, cache, ids(100), 40)
    path = str(tmp_path / "prompt.safetensors")
    save_prompt_cache(path, cache)
    again = load_prompt_cache(path)
    assert [type(entry) for entry in again] == [KVCache, CompressedKVCache]
    assert np.array_equal(logits(model, again, ids(30), 7), logits(model, cache, ids(30), 7))
