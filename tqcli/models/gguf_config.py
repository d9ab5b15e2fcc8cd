"""Translates the metadata of a GGUF file to the config.json of an mlx-lm folder."""

from __future__ import annotations

from typing import Any

import numpy as np

from tqcli.errors import InputError
from tqcli.models.gguf_file import GGUFFile

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
# Keys that change the model's arithmetic in ways that these mlx-lm architectures have no setting for.
_NOT_MAPPED = (
    "expert_count",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attention.scale",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
)
_LAYERS_OF_GEMMA3_27B = 62


def translate(file: GGUFFile) -> dict[str, Any]:
    """config.json for a llama, qwen2, qwen3 or gemma3 file.

    Raises `InputError` for another architecture, a missing key, or a setting that mlx-lm's model couldn't honour.
    """
    kind = file.architecture
    if kind not in ARCHITECTURES:
        raise InputError(
            f"{file.path} holds a model of the kind {kind!r}; GGUF files of {', '.join(ARCHITECTURES)} can be read: "
            "name an mlx-lm folder of this model instead"
        )

    def get(key: str, default: Any = None) -> Any:
        return file.metadata.get(f"{kind}.{key}", default)

    def need(key: str) -> Any:
        value = get(key)
        if not isinstance(value, (int, float)) or value <= 0:
            raise file.broken(f"{kind}.{key} is {value!r}")
        return value

    for key in _NOT_MAPPED:
        if get(key):
            raise _cant_honour(file, f"{kind}.{key} = {get(key)}")
    heads, width = need("attention.head_count"), need("embedding_length")
    head_dim = get("attention.key_length") or width // heads
    if get("attention.value_length", head_dim) != head_dim or get("rope.dimension_count", head_dim) != head_dim:
        raise _cant_honour(file, "keys, values and rotary embedding of unequal width")
    config: dict[str, Any] = {
        "model_type": "gemma3_text" if kind == "gemma3" else kind,
        "hidden_size": width,
        "num_hidden_layers": need("block_count"),
        "intermediate_size": need("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        # Stored as float32: 9.999999747e-06 was meant to be 1e-05.
        "rms_norm_eps": float(f"{need('attention.layer_norm_rms_epsilon'):.6g}"),
        "max_position_embeddings": need("context_length"),
        "rope_theta": get("rope.freq_base", 10000.0),
        "vocab_size": file.shape("token_embd.weight")[0],
        "tie_word_embeddings": "output.weight" not in file.names,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
    }
    if kind == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in file.names
        config["mlp_bias"] = "blk.0.ffn_up.bias" in file.names
    if kind == "gemma3":
        config |= _gemma3(config, get)
    elif get("attention.sliding_window"):
        raise _cant_honour(file, f"{kind}.attention.sliding_window = {get('attention.sliding_window')}")
    if scaling := _rope_scaling(file, config):
        config["rope_scaling"] = scaling
    return {key: value for key, value in config.items() if value is not None}


def _gemma3(config: dict[str, Any], get: Any) -> dict[str, Any]:
    width, heads, head_dim = (config[key] for key in ("hidden_size", "num_attention_heads", "head_dim"))
    largest = config["num_hidden_layers"] == _LAYERS_OF_GEMMA3_27B
    pattern = get("attention.sliding_window_pattern")
    return {
        "sliding_window": get("attention.sliding_window", 512),
        "sliding_window_pattern": pattern if isinstance(pattern, int) else 6,
        "rope_theta": get("rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": get("rope.freq_base_swa", get("rope.local.freq_base", 10000.0)),
        # The file doesn't say; gemma 3's report has 27B alone scaled by its width (arXiv 2503.19786).
        "query_pre_attn_scalar": width // heads if largest else head_dim,
    }


def _rope_scaling(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any] | None:
    prefix = f"{file.architecture}.rope.scaling"
    kind, factor = (file.metadata.get(f"{prefix}.{key}") for key in ("type", "factor"))
    if "rope_freqs.weight" in file.names:
        return _llama3_scaling(file, config)
    if kind in (None, "none") or not factor or factor == 1:
        return None
    original = file.metadata.get(f"{prefix}.original_context_length")
    if kind == "linear":
        return {"type": "linear", "factor": factor}
    if kind == "yarn" and original:
        return {"type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise _cant_honour(file, f"{prefix}.type = {kind}")


def _llama3_scaling(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any]:
    """Llama 3.1's rotary scaling, which a GGUF file holds as a table of divisors, one for each pair of channels.

    The table is recomputed from the settings that all of that family have, and refused if it differs.
    """
    table, dims, trained, low, high = file.read("rope_freqs.weight"), config["head_dim"], 8192, 1.0, 4.0
    factor = float(f"{table.max():.6g}")
    turns = trained / (2 * np.pi * config["rope_theta"] ** (np.arange(0, dims, 2) / dims))
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    if table.shape != smooth.shape or not np.allclose(table, 1 / ((1 - smooth) / factor + smooth), rtol=1e-3):
        raise _cant_honour(file, "rope_freqs.weight is not Llama 3.1's table")
    return {
        "type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": trained,
    }


def _cant_honour(file: GGUFFile, what: str) -> InputError:
    return InputError(
        f"{file.path} has a setting that can't be translated ({what}); name an mlx-lm folder of this model instead"
    )
