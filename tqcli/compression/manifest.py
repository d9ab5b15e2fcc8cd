"""The manifest of an encoded folder: all that is needed to decode it, apart from the arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, model_validator

from tqcli.capture.manifest import DatasetRecord, LayerRecord, LayerShape, ModelRecord, SkippedLayer
from tqcli.codecs.context import LayerContext, RotaryParameters, Tensor
from tqcli.manifests import FileEntry, Strict, check_rotary, check_series, read_manifest
from tqcli.storage import MANIFEST, write_json


class EncodedShard(FileEntry):
    """One window."""

    window: int
    document: str
    start: int


class EncodedLayer(LayerShape):
    """One layer: its shape, and the codec of its keys and of its values with every option."""

    rotary: int | None
    """Index in the manifest's `rotary`: most models have one for all layers."""
    keys: str
    values: str
    skipped: dict[Literal["keys", "values"], str]
    """Tensors that stayed uncompressed, with the reason."""


class EncodedManifest(Strict):
    """`manifest.json` of an encoded folder, written last."""

    format: Literal["tq-encoded"] = "tq-encoded"
    version: Literal[1] = 1
    tq_version: str
    codec: str
    """As the user wrote it."""
    sinks: NonNegativeInt
    recent: NonNegativeInt
    model: ModelRecord
    dataset: DatasetRecord
    calibration: DatasetRecord | None = None
    """The text that codecs learned from beforehand; null where each cache's own first tokens served."""
    rotary: list[RotaryParameters]
    layers: list[EncodedLayer]
    skipped: list[SkippedLayer]
    shared: FileEntry | None
    """Rotations, codebooks and the like, which all shards use."""
    shards: list[EncodedShard]

    @model_validator(mode="after")
    def _consistent(self) -> EncodedManifest:
        check_series([shard.window for shard in self.shards], [layer.layer for layer in self.layers])
        for layer in self.layers:
            if layer.rotary is not None and not 0 <= layer.rotary < len(self.rotary):
                raise ValueError(f"layer {layer.layer} names rotary {layer.rotary} of {len(self.rotary)}")
            check_rotary(None if layer.rotary is None else self.rotary[layer.rotary], layer.head_dim)
        return self

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
    return read_manifest(folder, EncodedManifest, "an encoded folder", "tq compress")
