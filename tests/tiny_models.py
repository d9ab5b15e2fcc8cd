"""Writes small random-weight models and tokenizers as mlx-lm folders, so that tests run real code paths in no time."""

from __future__ import annotations

import json
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any

import tqcli  # noqa: F401  # before mlx.core: puts a fast BLAS in front

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SPECIAL = (BOS, EOS, PAD)
_LEARNT_FROM = "it is a truth universally acknowledged, that a single man in the possession of a good fortune"
_MERGES = 24

COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
"""Arguments that most of mlx-lm's architectures take, of a tiny model."""
LATENT: dict[str, Any] = {
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": None,
    "n_shared_experts": None,
    "first_k_dense_replace": 9,
}
"""Settings of multi-head latent attention, as deepseek_v3 has it."""


def write_tiny_model(
    folder: Path,
    model_type: str = "llama",
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    vocab: int = 320,
    key_bias_std: float = 0.0,
    sliding_window: int = 16,
    sliding_pattern: int = 2,
    bos: bool = False,
    dtype: str = "float16",
    seed: int = 0,
    **config: Any,
) -> Path:
    """Writes `folder` with seeded random weights: config.json, model.safetensors and a byte-level tokenizer.

    model_type: any that mlx-lm knows; llama, qwen2, qwen3 and gemma3_text take all of these sizes. `key_bias_std` sets
    the key projections' bias where there is one (qwen2). `sliding_window` and `sliding_pattern` (every n-th layer
    attends to everything) are gemma3_text's. `bos`: whether the tokenizer puts the BOS token first. `config` adds to
    config.json or overrides it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    full_config = {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "vocab_size": vocab,
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
        **({"sliding_window": sliding_window} if model_type.startswith("gemma3") else {}),
        **({"sliding_window_pattern": sliding_pattern} if model_type.startswith("gemma3") else {}),
        **({"query_pre_attn_scalar": head_dim} if model_type.startswith("gemma3") else {}),
        **config,
    }
    (folder / "config.json").write_text(json.dumps(full_config, indent=1))
    weights = _random_weights(full_config, key_bias_std, dtype, seed)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    write_byte_level_tokenizer(folder, bos=bos)
    return folder


def _random_weights(config: dict[str, Any], key_bias_std: float, dtype: str, seed: int) -> dict[str, mx.array]:
    architecture = import_module(f"mlx_lm.models.{config['model_type']}")
    model = architecture.Model(architecture.ModelArgs.from_dict(config))
    key = mx.random.key(seed)
    weights = {}
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    for name, value in sorted(parameters.items(), key=itemgetter(0)):
        key, own = mx.random.split(key)
        if name.endswith("k_proj.bias"):
            drawn = key_bias_std * mx.random.normal(value.shape, key=own)
        elif "norm" in name:
            drawn = value + 0.1 * mx.random.normal(value.shape, key=own)
        else:
            drawn = mx.random.normal(value.shape, scale=value.shape[-1] ** -0.5, key=own)
        weights[name] = drawn.astype(getattr(mx, dtype))
    return weights


def write_byte_level_tokenizer(folder: Path, *, bos: bool = False) -> None:
    """Writes tokenizer.json and tokenizer_config.json: all bytes, a few merges, BOS, EOS and PAD; under 320 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(SPECIAL) + 256 + _MERGES,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_LEARNT_FROM], trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
