"""Writes small captures of random tensors, for tests that need no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tqcli  # noqa: F401  # before mlx.core: puts a fast BLAS in front

# isort: split
import mlx.core as mx
import numpy as np

from tqcli.capture.manifest import CaptureManifest
from tqcli.storage import MANIFEST, write_json, write_shard


def write_capture(
    folder: Path,
    *,
    head_dim: int = 64,
    value_head_dim: int | None = None,
    windows: int = 2,
    tokens: int = 128,
    kv_heads: int = 2,
    q_heads: int = 6,
    layers: int = 2,
    stored_dtype: str = "float16",
    dtype: str = "float32",
    shift: float = 1.0,
    window: int | None = None,
    queries: int = 8,
    last_queries: bool = False,
    seed: int = 0,
) -> Path:
    """Gaussian keys with a shared mean of `shift`, values and queries, as `tq capture` would have written them.

    window: length of a sliding window in tokens. The queries stand at the first positions, or at the last ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    width = value_head_dim or head_dim
    rng = np.random.default_rng([head_dim, tokens, seed])
    shards = []
    for number in range(windows):
        sampled = min(queries, tokens)
        first = tokens - sampled if last_queries else 0
        arrays: dict[str, mx.array] = {"query_positions": mx.arange(first, first + sampled, dtype=mx.int32)}
        for layer in range(layers):
            for name, heads, count, size, mean in (
                ("keys", kv_heads, tokens, head_dim, shift),
                ("values", kv_heads, tokens, width, 0.0),
                ("queries", q_heads, sampled, head_dim, 0.0),
            ):
                x = (rng.standard_normal((heads, count, size)) + mean).astype(np.float32)
                arrays[f"layers.{layer}.{name}"] = mx.array(x).astype(getattr(mx, dtype))
        file = write_shard(folder, f"window-{number:05d}.safetensors", arrays, {"format": "tq-capture"})
        shards.append(
            {
                **vars(file),
                "window": number,
                "document": "made",
                "start": 0,
                "token_ids": rng.integers(0, 50_000, tokens).tolist(),
            }
        )
    write_json(folder / MANIFEST, _manifest(locals(), width, shards))
    return folder


def _manifest(of: dict[str, Any], width: int, shards: list[dict[str, Any]]) -> dict[str, Any]:
    pairs = of["head_dim"] // 2
    layer = {
        "kind": "sliding" if of["window"] else "full",
        "n_q_heads": of["q_heads"],
        "n_kv_heads": of["kv_heads"],
        "head_dim": of["head_dim"],
        "value_head_dim": width,
        "scale": of["head_dim"] ** -0.5,
        "window": of["window"],
        "rotary": {"frequencies": [10000.0 ** (-i / pairs) for i in range(pairs)], "interleaved": False},
        "dtype": of["dtype"],
    }
    document = {
        "tq_version": "0",
        "mlx_version": "0",
        "backend": "cpu",
        "model": {
            "name": "made",
            "kind": "folder",
            "model_type": "made",
            "revision": None,
            "config_sha256": "0",
            "tokenizer_sha256": "0",
            "weights_sha256": "0",
            "stored_dtype": of["stored_dtype"],
            "compute_dtype": of["dtype"],
        },
        "dataset": {
            "spec": "made",
            "text_sha256": "0",
            "tokens_sha256": "0",
            "windows": of["windows"],
            "tokens": of["tokens"],
            "seed": 0,
            "bos": False,
        },
        "layers_asked": None,
        "queries": of["queries"],
        "chunk": 256,
        "layers": [{"layer": index, **layer} for index in range(of["layers"])],
        "skipped": [],
        "shards": shards,
    }
    return CaptureManifest.model_validate(document).model_dump(mode="json")
