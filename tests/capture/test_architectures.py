"""Architectures that differ in what their layers cache and how they attend, as tiny random models."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from small_models import some_ids
from tiny_models import COMMON, LATENT

from tqcli.capture.geometry import describe_layers
from tqcli.capture.manifest import LayerRecord, SkippedLayer
from tqcli.capture.window import capture_window
from tqcli.errors import InputError

# isort: split
import mlx.core as mx
import numpy as np

TOKENS = 40
LINEAR_ATTENTION: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 32,
    "moe_intermediate_size": 32,
    "mlp_only_layers": [],
    "partial_rotary_factor": 0.5,
}
STATE_SPACE: dict[str, Any] = {
    "hybrid_override_pattern": ["M", "*", "-", "*"],
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "n_groups": 1,
    "mlp_bias": False,
    "attention_bias": False,
    "mamba_proj_bias": False,
    "use_bias": False,
    "use_conv_bias": True,
    "layer_norm_epsilon": 1e-5,
    "mamba_hidden_act": "silu",
    "mlp_hidden_act": "relu2",
    "time_step_limit": (0.0, 1e9),
}
MIXTURE: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 1}
CHUNKED: dict[str, Any] = {
    "attention_bias": False,
    "attention_chunk_size": 32,
    "interleave_moe_layer_step": 1,
    "intermediate_size_mlp": 64,
    "rope_scaling": None,
    "use_qk_norm": False,
    **MIXTURE,
}


def described(model_type: str, tokens: int = TOKENS, **config: Any) -> tuple[list[LayerRecord], list[SkippedLayer]]:
    from mlx_lm.models.cache import make_prompt_cache

    architecture = import_module(f"mlx_lm.models.{model_type}")
    model = architecture.Model(architecture.ModelArgs.from_dict(COMMON | {"model_type": model_type} | config))
    cache = list(make_prompt_cache(model))
    ids = some_ids(tokens, COMMON["vocab_size"])
    window = capture_window(model, cache, ids, np.arange(0, tokens, 5, dtype=np.int32), 16)
    return describe_layers(model, cache, window, list(range(len(model.layers))))


def reasons(skipped: list[SkippedLayer]) -> dict[int, str]:
    return {layer.layer: layer.reason for layer in skipped}


def test_layers_without_a_rotary_embedding_are_told_from_those_with_one() -> None:
    layers, _ = described("smollm3", no_rope_layer_interval=2)
    assert [layer.rotary is not None for layer in layers] == [True, False, True, False]
    assert all(layer.notes == () for layer in layers)


def test_a_rotary_embedding_that_a_layer_has_but_does_not_use_is_not_recorded() -> None:
    """Cohere's second generation turns the keys of its sliding layers only, and in interleaved pairs."""
    layers, _ = described("cohere2", sliding_window=16, sliding_window_pattern=2, logit_scale=1.0)
    assert [layer.window for layer in layers] == [16, None, 16, None]
    assert [layer.rotary is not None for layer in layers] == [True, False, True, False]
    assert layers[0].rotary is not None and layers[0].rotary.interleaved


def test_a_partial_interleaved_rotary_embedding() -> None:
    layers, _ = described("glm4", partial_rotary_factor=0.5, attention_bias=False, rope_traditional=True)
    assert layers[0].rotary is not None
    assert (layers[0].rotary.dims, layers[0].rotary.interleaved) == (8, True)


def test_keys_that_are_normalised_after_the_rotary_embedding_are_noted() -> None:
    layers, _ = described("hunyuan_v1_dense", use_qk_norm=True)
    assert layers[0].rotary is None
    assert layers[0].notes == ("its cached keys are not the output of its rotary embedding",)


def test_learned_sinks_are_noted() -> None:
    layers, _ = described(
        "gpt_oss",
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_scaling=None,
        **MIXTURE,
    )
    assert [(layer.kind, layer.window) for layer in layers] == [("sliding", 16), ("full", None)] * 2
    assert layers[0].notes == ("its softmax counts a learned sink logit a head",)


def test_linear_attention_layers_are_skipped() -> None:
    layers, skipped = described("qwen3_next", **LINEAR_ATTENTION)
    assert [layer.layer for layer in layers] == [1, 3]
    reason = "no attention over keys and values was seen (its cache: ArraysCache)"
    assert reasons(skipped) == {0: reason, 2: reason}


def test_layers_are_numbered_by_the_models_blocks_where_some_have_no_cache() -> None:
    layers, skipped = described("nemotron_h", **STATE_SPACE)
    assert [layer.layer for layer in layers] == [1, 3]
    reason = "no attention over a cache of its own was seen"
    assert reasons(skipped) == {0: reason, 2: reason}


def test_keys_and_values_beside_a_state_in_one_layer_are_captured() -> None:
    layers, skipped = described("falcon_h1")
    assert [layer.layer for layer in layers] == [0, 1, 2, 3]
    assert skipped == []


def test_two_head_dims_and_layers_that_read_anothers_cache() -> None:
    layers, skipped = described(
        "gemma4_text",
        num_kv_shared_layers=2,
        sliding_window=16,
        global_head_dim=32,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=128,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    assert [(layer.layer, layer.head_dim, layer.window) for layer in layers] == [(0, 16, 16), (1, 32, None)]
    assert sorted(reasons(skipped)) == [2, 3]


def test_attention_within_chunks_is_captured_in_windows_that_fit_one() -> None:
    config = {"text_config": COMMON | {"model_type": "llama4_text"} | CHUNKED}
    layers, skipped = described("llama4", tokens=33, **config)
    assert [layer.layer for layer in layers] == [3]
    assert reasons(skipped)[0] == "it attends within chunks of 32 tokens; capture windows of --tokens 32 or fewer"
    layers, skipped = described("llama4", tokens=32, **config)
    assert [layer.layer for layer in layers] == [0, 1, 2, 3]


def test_latent_attention_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"deepseek_v3: its cache doesn't hold the keys .* 1 x 32 a token"):
        described("deepseek_v3", **LATENT)


def test_an_architecture_with_attention_of_its_own_is_refused() -> None:
    with pytest.raises(InputError, match="the architecture gemma2 doesn't use mlx-lm's common attention function"):
        described("gemma2")


def test_a_window_holds_no_more_memory_than_its_tensors() -> None:
    """What attention saw is copied out of the caches step by step: no activations stay alive."""
    from mlx_lm.models.cache import make_prompt_cache

    architecture = import_module("mlx_lm.models.llama")
    model = architecture.Model(architecture.ModelArgs.from_dict(COMMON | {"model_type": "llama", "hidden_size": 512}))
    mx.eval(model.parameters())
    before = mx.get_active_memory()
    cache = list(make_prompt_cache(model))
    window = capture_window(model, cache, some_ids(512, 128), np.arange(8, dtype=np.int32), 64, ropes=False)
    kept = [x for layer in window.layers.values() for x in (layer.keys, layer.values, layer.queries)]
    del cache
    # The caches stay with the window's record: once more what was kept, and the mask.
    assert mx.get_active_memory() - before < 2.2 * sum(x.nbytes for x in kept)
