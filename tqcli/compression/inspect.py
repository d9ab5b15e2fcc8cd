"""What a capture or an encoded folder holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tqcli.capture.manifest import LayerRecord, load_manifest
from tqcli.compression.manifest import load_encoded_manifest
from tqcli.errors import InputError
from tqcli.storage import MANIFEST, FileRecord, read_json, verify


def inspect_folder(folder: Path) -> dict[str, Any]:
    """A flat description of the folder. Every file's size and sha256 is verified first.

    Raises `InputError` for another kind of folder, a broken manifest, and a missing, truncated or changed file.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; name a capture or an encoded folder")
    if not (folder / MANIFEST).is_file():
        raise InputError(f"{folder} holds no {MANIFEST}; name a folder that tq capture or tq compress wrote")
    document = read_json(folder / MANIFEST)
    kind = document.get("format") if isinstance(document, dict) else None
    if kind == "tq-encoded":
        return _encoded(folder)
    return _capture(folder)


def _capture(folder: Path) -> dict[str, Any]:
    m = load_manifest(folder)
    files = [FileRecord(s.file, s.bytes, s.sha256) for s in m.shards]
    done = f"{len(m.shards)} of {m.dataset.windows}" + ("" if m.complete else " (unfinished: go on with --resume)")
    return {
        "kind": "capture",
        **({"decoded from": m.decoded_from} if m.decoded_from else {}),
        **_common(m.model.name, m.model.model_type, m.model.compute_dtype, m.dataset.spec, m.dataset.seed),
        "windows": done,
        "tokens a window": m.dataset.tokens,
        "queries a window": m.queries,
        **_layers(m.layers),
        "skipped layers": len(m.skipped),
        "made by": f"tq {m.tq_version}, mlx {m.mlx_version}, {m.backend}",
        **_verified(folder, files),
    }


def _encoded(folder: Path) -> dict[str, Any]:
    m = load_encoded_manifest(folder)
    files = [FileRecord(s.file, s.bytes, s.sha256) for s in [*m.shards, *([m.shared] if m.shared else [])]]
    records = [m.layer_record(layer) for layer in m.layers]
    codecs = {name: Counter(getattr(layer, name) for layer in m.layers) for name in ("keys", "values")}
    return {
        "kind": "encoded",
        "codec": m.codec,
        **{name: "; ".join(f"{n} layers: {text}" for text, n in codecs[name].items()) for name in codecs},
        "sinks, recent": f"{m.sinks}, {m.recent}",
        **_common(m.model.name, m.model.model_type, m.model.compute_dtype, m.dataset.spec, m.dataset.seed),
        **({"calibrated on": f"{m.calibration.spec} (seed {m.calibration.seed})"} if m.calibration else {}),
        "windows": len(m.shards),
        "tokens a window": m.dataset.tokens,
        **_layers(records),
        "uncompressed tensors": sum(len(layer.skipped) for layer in m.layers),
        "made by": f"tq {m.tq_version}",
        **_verified(folder, files),
    }


def _common(model: str, model_type: str, dtype: str, dataset: str, seed: int) -> dict[str, Any]:
    return {"model": f"{model} ({model_type}, run in {dtype})", "dataset": f"{dataset} (seed {seed})"}


def _layers(records: Iterable[LayerRecord]) -> dict[str, Any]:
    shapes = Counter(
        f"{r.kind}, {r.n_q_heads} query and {r.n_kv_heads} KV heads, head_dim {r.head_dim}, {r.dtype}"
        + (f", window {r.window}" if r.window else "")
        + ("" if r.rotary else ", rotary parameters unknown")
        for r in records
    )
    return {"layers": "; ".join(f"{count}: {shape}" for shape, count in shapes.items())}


def _verified(folder: Path, files: list[FileRecord]) -> dict[str, Any]:
    for record in files:
        verify(folder, record)
    total = sum(record.bytes for record in files) + (folder / MANIFEST).stat().st_size
    return {"bytes": total, "checksums": f"{len(files)} files verified"}
