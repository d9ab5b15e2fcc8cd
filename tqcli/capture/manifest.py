"""The manifest of a capture folder: what was captured, from which model and text, and which shards are complete."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import FiniteFloat, model_validator

from tqcli.codecs.context import RotaryParameters
from tqcli.manifests import Count, Dtype, FileEntry, Strict, check_rotary, check_series, read_manifest
from tqcli.storage import MANIFEST, write_json

FORMAT = "tq-capture"


class ModelRecord(Strict):
    """The model that a capture was taken from. Hashes are hex sha256."""

    name: str
    kind: Literal["packaged", "gguf", "folder", "hub"]
    model_type: str
    revision: str | None
    config_sha256: str
    tokenizer_sha256: str
    weights_sha256: str
    stored_dtype: Dtype
    """dtype of the weights on disk, for example "float16": what a cache of this model would normally hold."""
    compute_dtype: Dtype
    """dtype that the model ran in here."""


class DatasetRecord(Strict):
    """The text that a capture was taken on. Hashes are hex sha256."""

    spec: str
    text_sha256: str
    tokens_sha256: str
    """Of the little-endian int32 token ids of all windows, in order."""
    windows: Count
    tokens: Count
    seed: int
    bos: bool


class LayerShape(Strict):
    """What both kinds of manifest say of a layer."""

    layer: int
    kind: Literal["full", "sliding"]
    n_q_heads: Count
    n_kv_heads: Count
    head_dim: Count
    value_head_dim: Count
    scale: FiniteFloat
    window: Count | None
    dtype: Dtype | Literal["float64"]
    """dtype of keys and values as cached, and of the shards."""
    notes: tuple[str, ...] = ()
    """What the other fields can't say of how the layer attends."""


class LayerRecord(LayerShape):
    """One layer that was captured."""

    rotary: RotaryParameters | None


class SkippedLayer(Strict):
    """A layer that holds nothing to capture, and why."""

    layer: int
    reason: str


class ShardRecord(FileEntry):
    """One completed window: a safetensors file with its size in bytes and hex sha256."""

    window: int
    document: str
    start: int
    """Index of the window's first token among its document's tokens, BOS not counted."""
    token_ids: list[int]


class CaptureManifest(Strict):
    """`manifest.json` of a capture. It holds no times, so that the same run gives the same bytes."""

    format: Literal["tq-capture"] = "tq-capture"
    version: Literal[1] = 1
    tq_version: str
    mlx_version: str
    backend: str
    """Device and BLAS that the model ran on, for example "cpu (OpenBLAS 0.3.31)"."""
    model: ModelRecord
    dataset: DatasetRecord
    decoded_from: str | None = None
    """The codec, where keys and values were decoded from an encoded folder; such a capture has no queries."""
    layers_asked: list[int] | None
    """The layers that were asked for; null for all."""
    queries: int
    """Sampled query positions a window."""
    chunk: int
    """Tokens a prefill step."""
    layers: list[LayerRecord]
    skipped: list[SkippedLayer]
    shards: list[ShardRecord]

    @model_validator(mode="after")
    def _consistent(self) -> CaptureManifest:
        check_series([shard.window for shard in self.shards], [record.layer for record in self.layers])
        for record in self.layers:
            check_rotary(record.rotary, record.head_dim)
        return self

    @property
    def complete(self) -> bool:
        """Whether every window has its shard."""
        return len(self.shards) == self.dataset.windows

    def save(self, folder: Path) -> None:
        """Writes `manifest.json`, whole and renamed."""
        write_json(folder / MANIFEST, self.model_dump(mode="json"))


def load_manifest(folder: Path) -> CaptureManifest:
    """Reads and validates the manifest of a capture folder. Raises `InputError` in one line if it is not one."""
    return read_manifest(folder, CaptureManifest, "a capture", "tq capture")
