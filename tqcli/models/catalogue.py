"""Facts about models, read without loading or fetching them: what `tq models list` and `tq models show` print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tqcli.errors import InputError
from tqcli.models.cached import origin
from tqcli.models.fetching import local_folder
from tqcli.models.packaged import PACKAGED, is_pulled, pulled_folder
from tqcli.models.source import ModelSource, resolve
from tqcli.storage import read_json


def packaged_models() -> list[dict[str, Any]]:
    """One row for each short name: upstream, licence, parameters, sizes in bytes, and the folder if it is here."""
    return [
        {
            "name": model.name,
            "upstream": model.upstream,
            "licence": model.licence,
            "parameters": model.parameters,
            "weights": model.quantisation,
            "download_bytes": model.wheel_bytes,
            "folder_bytes": model.folder_bytes,
            "here": is_pulled(model.name),
            "folder": str(pulled_folder(model.name)) if is_pulled(model.name) else None,
        }
        for model in PACKAGED.values()
    ]


def describe(name: str) -> dict[str, Any]:
    """What is known of a model without fetching it: source, provenance, and its shape where it is on disk.

    Raises `InputError` for a name that isn't a model, or a broken file or folder.
    """
    source = resolve(name)
    facts: dict[str, Any] = {"name": source.name, "kind": source.kind, "revision": source.revision}
    if source.kind == "packaged":
        facts |= next(row for row in packaged_models() if row["name"] == name)
        facts |= {key: getattr(PACKAGED[name], key) for key in ("requirement", "wheel_sha256", "gguf_sha256")}
    if source.kind == "gguf":
        return facts | _of_gguf(source)
    folder = local_folder(source)
    facts |= {"here": folder is not None, "folder": None if folder is None else str(folder)}
    return facts if folder is None else facts | _of_folder(folder)


def _of_gguf(source: ModelSource) -> dict[str, Any]:
    from tqcli.models.gguf_config import translate
    from tqcli.models.gguf_file import GGUFFile

    if source.path is None:
        raise ValueError("a GGUF source has a path")
    file = GGUFFile(source.path)
    facts = {
        "here": True,
        "file": str(source.path),
        "file_bytes": source.path.stat().st_size,
        "licence": file.metadata.get("general.license"),
        "weights": "dequantised from " + ", ".join(sorted(file.quantisations())),
    }
    return facts | _shape(translate(file))


def _of_folder(folder: Path) -> dict[str, Any]:
    from tqcli.models.loading import stored_dtype_of

    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise InputError(f"{folder / 'config.json'} is not a model's config: it is no JSON object; copy the model anew")
    weights = sorted(folder.glob("model*.safetensors"))
    facts = {
        "folder_bytes": sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
        "stored_dtype": stored_dtype_of(weights, config) if weights else None,
    }
    made_from = origin(folder)
    return facts | ({"made_from": made_from} if made_from else {}) | _shape(config)


def _shape(config: dict[str, Any]) -> dict[str, Any]:
    text = config.get("text_config")
    inner = config | text if isinstance(text, dict) else config
    heads, width = inner.get("num_attention_heads"), inner.get("hidden_size")
    head_dim = inner.get("head_dim") or (width // heads if isinstance(width, int) and heads else None)
    return {
        "model_type": config.get("model_type"),
        "layers": inner.get("num_hidden_layers"),
        "n_q_heads": heads,
        "n_kv_heads": inner.get("num_key_value_heads", heads),
        "head_dim": head_dim,
        "hidden_size": width,
        "vocabulary": inner.get("vocab_size"),
        "context": inner.get("max_position_embeddings"),
        "sliding_window": inner.get("sliding_window"),
    }
