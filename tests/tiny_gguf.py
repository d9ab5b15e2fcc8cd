"""Writes tiny mlx-lm models as GGUF files, in the conventions of llama.cpp's converter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from numpy.typing import NDArray

_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}


def write_gguf(
    folder: Path,
    target: Path,
    *,
    weights: str = "F16",
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[np.float32]] | None = None,
) -> Path:
    """Writes the model in `folder` to `target`. `weights`: F16, BF16, or Q8_0 for the matrices.

    `keys` adds to the metadata or overrides it, None takes one away; `tensors` adds some under GGUF names.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = config["model_type"].removesuffix("_text")
    writer = GGUFWriter(target, architecture)
    metadata = _model_keys(config, architecture) | _tokenizer_keys(folder, config["vocab_size"]) | dict(keys or {})
    for key, value in metadata.items():
        _add(writer, key, value)
    original = cast(dict[str, mx.array], mx.load(str(folder / "model.safetensors")))
    for name, array in original.items():
        rows = _as_llama_cpp(name, np.array(array.astype(mx.float32)), config, architecture)
        if rows.ndim == 1:
            writer.add_tensor(_gguf_name(name, architecture), rows)
        else:
            kind = GGMLQuantizationType[weights]
            writer.add_tensor(_gguf_name(name, architecture), quantize(rows, kind), raw_dtype=kind)
    for name, rows in (tensors or {}).items():
        writer.add_tensor(name, rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if value is None or key == "general.architecture":
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _model_keys(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    keys = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.sliding_window": config.get("sliding_window"),
        "rope.freq_base": config["rope_theta"],
    }
    if architecture == "gemma3":
        keys["attention.sliding_window_pattern"] = config["sliding_window_pattern"]
    return {f"{architecture}.{key}": value for key, value in keys.items()}


def _tokenizer_keys(folder: Path, size: int) -> dict[str, Any]:
    """A byte-level tokenizer, filled up with unused tokens as converters do."""
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token["content"]: token["id"] for token in document["added_tokens"]}
    types = [TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens]
    unused = [f"[PAD{index}]" for index in range(len(tokens), size)]
    bos, eos, padding = special.values()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens + unused,
        "tokenizer.ggml.token_type": [int(kind) for kind in types] + [int(TokenType.UNUSED)] * len(unused),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in document["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": bos,
        "tokenizer.ggml.eos_token_id": eos,
        "tokenizer.ggml.padding_token_id": padding,
        "tokenizer.ggml.add_bos_token": document["post_processor"] is not None,
    }


def _as_llama_cpp(
    name: str, rows: NDArray[np.float32], config: dict[str, Any], architecture: str
) -> NDArray[np.float32]:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    part = name.split(".")[-2]
    if architecture == "llama" and part in heads:
        head_dim = config["head_dim"]
        within = np.arange(head_dim).reshape(2, head_dim // 2).T.ravel()  # 0, d/2, 1, d/2 + 1, ...
        order = np.concatenate([head * head_dim + within for head in range(heads[part])])
        return np.take(rows, order, axis=0)
    if architecture == "gemma3" and part.endswith("norm"):
        return rows + 1
    return rows


def _gguf_name(name: str, architecture: str) -> str:
    parts = dict(_PARTS)
    if architecture == "gemma3":
        parts |= {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"}
        parts["post_feedforward_layernorm"] = "post_ffw_norm"
    else:
        parts["post_attention_layernorm"] = "ffn_norm"
    stem, _, suffix = name.removeprefix("model.").rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{suffix}"
    _, layer, part = stem.split(".", 2)
    return f"blk.{layer}.{parts[part]}.{suffix}"
