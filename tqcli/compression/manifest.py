"""The manifest of an encoded folder: all that is needed to decode it, apart from the arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tqcli.capture.manifest import DatasetRecord, LayerRecord, ModelRecord, SkippedLayer
from tqcli.codecs.context import LayerContext, RotaryParameters, Tensor
from tqcli.errors import InputError
from tqcli.storage import MANIFEST, read_json, write_json

FORMAT = "tq-encoded"
VERSION = 1


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(_Strict):
    """A file of the folder, with its size in bytes and hex sha256."""

    file: str
    bytes: int
    sha256: str


class EncodedShard(FileEntry):
    """One window."""

    window: int
    document: str
    start: int


class EncodedLayer(_Strict):
    """One layer: its shape, and the codec of its keys and of its values with every option."""

    layer: int
    kind: Literal["full", "sliding"]
    n_q_heads: int
    n_kv_heads: int
    head_dim: int
    value_head_dim: int
    scale: float
    window: int | None
    rotary: int | None
    """Index in the manifest's `rotary`: most models have one for all layers."""
    dtype: str
    notes: list[str] = []
    keys: str
    values: str
    skipped: dict[Literal["keys", "values"], str]
    """Tensors that stayed uncompressed, with the reason."""


class EncodedManifest(_Strict):
    """`manifest.json` of an encoded folder, written last."""

    format: Literal["tq-encoded"] = "tq-encoded"
    version: Literal[1] = 1
    tq_version: str
    codec: str
    """As the user wrote it."""
    sinks: int
    recent: int
    model: ModelRecord
    dataset: DatasetRecord
    rotary: list[RotaryParameters]
    layers: list[EncodedLayer]
    skipped: list[SkippedLayer]
    shared: FileEntry | None
    """Rotations, codebooks and the like, which all shards use."""
    shards: list[EncodedShard]

    def save(self, folder: Path) -> None:
        """Writes `manifest.json`, whole and renamed, without indentation: its bytes are counted."""
        write_json(folder / MANIFEST, json.loads(self.model_dump_json()), indent=None)

    def layer_record(self, layer: EncodedLayer) -> LayerRecord:
        """The layer as a capture records it."""
        fields = layer.model_dump(exclude={"keys", "values", "skipped", "rotary"})
        return LayerRecord(**fields, rotary=None if layer.rotary is None else self.rotary[layer.rotary])

    def context(self, layer: EncodedLayer, tensor: Tensor) -> LayerContext:
        """What a codec is told about one tensor."""
        return LayerContext(
            layer=layer.layer,
            tensor=tensor,
            head_dim=layer.head_dim if tensor == "keys" else layer.value_head_dim,
            n_q_heads=layer.n_q_heads,
            n_kv_heads=layer.n_kv_heads,
            scale=layer.scale,
            window=layer.window,
            rotary=None if layer.rotary is None else self.rotary[layer.rotary],
            capture_dtype=layer.dtype,
            cache_dtype=self.model.stored_dtype,
        )


def load_encoded_manifest(folder: Path) -> EncodedManifest:
    """Reads and validates the manifest of an encoded folder. Raises `InputError` in one line if it is not one."""
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder} holds no {MANIFEST}: not an encoded folder; make one with: tq compress")
    document = read_json(path)
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise InputError(
            f"{folder} is not an encoded folder ({MANIFEST} says format {found!r}); name one of tq compress"
        )
    if document.get("version") != VERSION:
        raise InputError(f"{path} has version {document.get('version')!r}, this tq reads {VERSION}: compress anew")
    try:
        return EncodedManifest.model_validate(document)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path} is broken at {where}: {first['msg']}; compress anew") from e
