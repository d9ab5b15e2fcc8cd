"""Loads a model with mlx-lm and records what identifies it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx

from tqcli.errors import InputError
from tqcli.models.cached import origin, recorded_sha256
from tqcli.models.fetching import fetch
from tqcli.models.source import ModelSource, resolve
from tqcli.storage import read_json, sha256_bytes, sha256_file

DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, with what identifies it. Hashes are hex sha256."""

    source: ModelSource
    path: Path
    """The mlx-lm folder that it was loaded from."""
    model: Any
    """The mlx-lm model, an `mlx.nn.Module`."""
    tokenizer: Any
    """mlx-lm's TokenizerWrapper."""
    config: dict[str, Any]
    """config.json as it is on disk."""
    revision: str | None
    """The hub's commit, or the GGUF file's sha256 for a packaged model or a GGUF file; None for a folder."""
    config_sha256: str
    tokenizer_sha256: str
    """Over the lines "NAME SHA256" of the tokenizer's files."""
    weights_sha256: str
    """Over the lines "NAME SHA256" of the safetensors files."""
    stored_dtype: str
    """dtype of the weights on disk, which a cache of this model would have: float16, bfloat16 or float32."""
    compute_dtype: str
    """dtype that the model runs in here."""

    @property
    def model_type(self) -> str:
        """The architecture as config.json names it."""
        return str(self.config["model_type"])


def load(name: str, dtype: str | None = None) -> LoadedModel:
    """Loads a model by short name, folder, `.gguf` file or hub id, fetching or converting it first where needed.

    dtype: "float32", "float16" or "bfloat16" to run in. Left out, float32 on a CPU, where MLX's 16-bit matrix products
    use no BLAS and are 40 times slower, and the stored dtype elsewhere. Raises `InputError` if it can't be loaded.
    """
    if dtype is not None and dtype not in DTYPES.values():
        raise InputError(f"dtype must be one of {', '.join(DTYPES.values())}, not {dtype!r}")
    source = resolve(name)
    path = fetch(source)
    config, weights = _check(path)
    stored_dtype = stored_dtype_of(weights, config)
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    compute_dtype = dtype or ("float32" if on_cpu else stored_dtype)
    model, tokenizer = _load(name, path, compute_dtype)
    return LoadedModel(
        source=source,
        path=path,
        model=model,
        tokenizer=tokenizer,
        config=config,
        revision=_revision(source, path),
        config_sha256=sha256_file(path / "config.json"),
        tokenizer_sha256=_hash_files([path / file for file in _TOKENIZER_FILES]),
        weights_sha256=_hash_files(weights),
        stored_dtype=stored_dtype,
        compute_dtype=compute_dtype,
    )


def _check(path: Path) -> tuple[dict[str, Any], list[Path]]:
    """config.json and the weight files of a folder that has all that a model needs."""
    config = read_json(path / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{path / 'config.json'} names no model_type; name a folder that mlx-lm can load")
    weights = sorted(path.glob("model*.safetensors"))
    if not weights:
        raise InputError(f"{path} holds no model*.safetensors: its weights are missing; copy the whole model there")
    index = path / "model.safetensors.index.json"
    listed = read_json(index) if index.is_file() else {}
    weight_map = listed.get("weight_map", {}) if isinstance(listed, dict) else None
    if not isinstance(weight_map, dict):
        raise InputError(f"{index} is broken: it lists no weights; copy the whole model there")
    if missing := sorted(set(weight_map.values()) - {file.name for file in weights}):
        raise InputError(f"{path} lacks {missing[0]}, which {index.name} lists; copy the whole model there")
    if not any((path / file).is_file() for file in _VOCABULARIES):
        raise InputError(f"{path} holds no tokenizer.json: its tokenizer is missing; copy the whole model there")
    return config, weights


def _load(name: str, path: Path, dtype: str) -> tuple[Any, Any]:
    from mlx_lm.utils import load_model, load_tokenizer

    try:
        model, config = load_model(path, lazy=True)
        tokenizer = load_tokenizer(path, eos_token_ids=config.get("eos_token_id"))
        model.set_dtype(getattr(mx, dtype))
        mx.eval(model.parameters())
    except (Exception, SystemExit) as e:  # tokenizers raises nothing narrower; one architecture of mlx-lm exits
        raise InputError(f"can't load the model {name}: {_reason(e)}; name another folder, or smollm2-135m") from e
    return model, tokenizer


def _reason(error: BaseException) -> str:
    """The first line of an error; of its cause where that line only leads to it."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if text.endswith(":") and error.__cause__ is not None:
        return _reason(error.__cause__)
    text = text[:160].rstrip(".: ")
    return f"config.json lacks {text}" if isinstance(error, KeyError) else text


def _revision(source: ModelSource, path: Path) -> str | None:
    if source.kind == "hub":
        return path.name
    made_from = origin(path) if source.kind in ("packaged", "gguf") else None
    return made_from.get("gguf_sha256") if made_from else None


def _hash_files(paths: list[Path]) -> str:
    """One hash over names and contents of those files that exist."""
    lines = [f"{path.name} {recorded_sha256(path) or sha256_file(path)}\n" for path in paths if path.is_file()]
    return sha256_bytes("".join(lines).encode())


def stored_dtype_of(weights: list[Path], config: dict[str, Any]) -> str:
    """The float dtype that most of the stored numbers have; config.json's word where none is a plain float.

    In a quantised model those are its scales, biases and norms: what it computes, and so caches, in.
    """
    found: Counter[str] = Counter()
    for path in weights:
        try:
            with path.open("rb") as f:
                header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            header.pop("__metadata__", None)
            for tensor in header.values():
                found[tensor["dtype"]] += prod(tensor["shape"])
        except (OSError, OverflowError, MemoryError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise InputError(f"{path} is not a whole safetensors file; copy the model anew") from e
    floats = [DTYPES[kind] for kind, _ in found.most_common() if kind in DTYPES]
    said = str(config.get("dtype") or config.get("torch_dtype"))
    return floats[0] if floats else said if said in DTYPES.values() else "float16"
