"""Converts a GGUF file to an mlx-lm folder: 16-bit weights, config.json and a tokenizer, from the file alone."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.errors import InputError
from tqcli.models.cached import make_once
from tqcli.models.gguf_config import translate
from tqcli.models.gguf_file import GGUFFile
from tqcli.models.gguf_tokenizer import write_tokenizer
from tqcli.paths import cache_folder
from tqcli.storage import sha256_file, write_json

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
_GEMMA3_BLOCK = _BLOCK | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_IN_CONFIG = {"rope_freqs.weight"}


def converted_folder(gguf: Path) -> Path:
    """The mlx-lm folder of a GGUF file in the cache, made at the first call for these contents."""
    try:
        digest = sha256_file(gguf)
    except OSError as e:
        raise InputError(f"can't read {gguf}: {e.strerror}") from e
    folder = cache_folder() / "models" / f"gguf-{digest[:16]}"

    def make(part: Path, _scratch: Path) -> dict[str, Any]:
        print(f"tq: converting {gguf} into {folder}, once", file=sys.stderr)
        return {"name": gguf.name, "gguf_sha256": digest} | convert(gguf, part)

    make_once(folder, make)
    return folder


def convert(gguf: Path, folder: Path) -> dict[str, Any]:
    """Fills an empty folder from a GGUF file of a llama, qwen2, qwen3 or gemma3 model; returns what it was made from.

    Each tensor is dequantised in float32 and rounded once: to bfloat16 if the file holds that, else to float16. Raises
    `InputError` for a broken file, or one that can't be translated faithfully.
    """
    file = GGUFFile(gguf)
    config = translate(file)
    write_tokenizer(file, folder)
    stored = "bfloat16" if "BF16" in file.quantisations() else "float16"
    weights: dict[str, mx.array] = {}
    for name, array in tensors(file, config):
        weights[name] = mx.array(array).astype(getattr(mx, stored))
        if not mx.isfinite(weights[name]).all().item():
            raise file.broken(f"{name} holds numbers that are not finite in {stored}")
    try:
        mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    except RuntimeError as e:
        raise OSError(str(e)) from e
    write_json(folder / "config.json", config | {"torch_dtype": stored})
    return {"quantisations": sorted(file.quantisations()), "stored_dtype": stored}


def tensors(file: GGUFFile, config: dict[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every tensor by its mlx-lm name, in float32, with what llama.cpp's converter changes undone.

    Raises `InputError` for a tensor that isn't known or has another shape than the metadata say.
    """
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    table = _GEMMA3_BLOCK if file.architecture == "gemma3" else _BLOCK
    for name in file.names:
        if name in _IN_CONFIG:
            continue
        array = file.read(name)
        part = name.split(".")[-2] if "." in name else name
        if file.architecture == "llama" and part in heads:
            if array.shape[0] != heads[part] * config["head_dim"]:
                raise file.broken(f"{name} has {array.shape[0]} rows for {heads[part]} heads")
            array = halves_from_pairs(array, heads[part])
        if file.architecture == "gemma3" and part.endswith("norm"):
            array = array - 1  # stored as 1 + w
        yield _mlx_name(file, name, table), np.ascontiguousarray(array)


def halves_from_pairs(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Puts the rows of each head back from interleaved pairs, as llama.cpp rotates, to halves, as mlx-lm does.

    rows: [heads * head_dim, ...]. Rows 2i and 2i + 1 of a head become rows i and i + head_dim / 2.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _mlx_name(file: GGUFFile, name: str, table: dict[str, str]) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{suffix}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match is None or match[2] not in table:
        raise InputError(
            f"{file.path} has a tensor that {file.architecture} models don't have here ({name}); "
            "name an mlx-lm folder of this model instead"
        )
    return f"model.layers.{match[1]}.{table[match[2]]}.{suffix}"
