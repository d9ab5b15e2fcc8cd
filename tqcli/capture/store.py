"""Reads a capture folder: verified shards, one window in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.capture.manifest import CaptureManifest, LayerRecord, ShardRecord, load_manifest
from tqcli.codecs.context import LayerContext, Tensor
from tqcli.errors import InputError
from tqcli.storage import MANIFEST, FileRecord, read_shard

CAPTURES = Path("captures")


@dataclass(frozen=True)
class Window:
    """One window of a capture. Tensors are read from disk when asked for."""

    folder: Path
    shard: ShardRecord
    arrays: dict[str, mx.array]

    def keys(self, layer: int) -> mx.array:
        """[n_kv_heads, tokens, head_dim] as cached. Raises `InputError` for NaN or inf, naming the place."""
        return self._finite(layer, "keys")

    def values(self, layer: int) -> mx.array:
        """[n_kv_heads, tokens, value_head_dim] as cached. Raises `InputError` for NaN or inf, naming the place."""
        return self._finite(layer, "values")

    def tensor(self, layer: int, tensor: Tensor) -> mx.array:
        """Keys or values."""
        return self._finite(layer, tensor)

    def queries(self, layer: int) -> mx.array:
        """[n_q_heads, sampled, head_dim], after the rotary embedding, at `query_positions`."""
        return self.arrays[f"layers.{layer}.queries"]

    @property
    def query_positions(self) -> NDArray[np.int32]:
        """[sampled] positions within the window."""
        return np.array(self.arrays["query_positions"])

    def _finite(self, layer: int, tensor: Tensor) -> mx.array:
        x = self.arrays[f"layers.{layer}.{tensor}"]
        # One number tells of any NaN or inf: it survives a sum of x * 0.
        if x.size and not mx.isfinite(mx.sum(x.astype(mx.float32) * 0)).item():
            values = np.array(x.astype(mx.float32))
            head, token, _ = np.argwhere(~np.isfinite(values))[0]
            raise InputError(
                f"{self.folder / self.shard.file} holds NaN or inf in the {tensor} of layer {layer}, head {head}, "
                f"token {token}: the model overflowed there; capture with another dtype, or leave the layer out"
            )
        return x


@dataclass(frozen=True)
class Capture:
    """A capture folder that has been checked to be one, and complete."""

    folder: Path
    manifest: CaptureManifest

    @cached_property
    def layers(self) -> dict[int, LayerRecord]:
        """What was captured, by layer."""
        return {record.layer: record for record in self.manifest.layers}

    def context(self, layer: int, tensor: Tensor) -> LayerContext:
        """What a codec is told about one tensor; positions are those of a whole window."""
        record, tokens = self.layers[layer], self.manifest.dataset.tokens
        return LayerContext(
            layer=layer,
            tensor=tensor,
            head_dim=record.head_dim if tensor == "keys" else record.value_head_dim,
            n_q_heads=record.n_q_heads,
            n_kv_heads=record.n_kv_heads,
            scale=record.scale,
            window=record.window,
            rotary=record.rotary,
            positions=np.arange(tokens),
            capture_dtype=record.dtype,
            cache_dtype=self.manifest.model.stored_dtype,
        )

    def windows(self, check: bool = True) -> Iterator[Window]:
        """Each window in turn, its shard's hash verified first unless `check` is False."""
        for shard in self.manifest.shards:
            record = FileRecord(shard.file, shard.bytes, shard.sha256)
            arrays, _ = read_shard(self.folder, record, check)
            self._check_shapes(shard, arrays)
            yield Window(self.folder, shard, arrays)

    def _check_shapes(self, shard: ShardRecord, arrays: dict[str, mx.array]) -> None:
        tokens = self.manifest.dataset.tokens
        for record in self.manifest.layers:
            for tensor, width in (("keys", record.head_dim), ("values", record.value_head_dim)):
                name, shape = f"layers.{record.layer}.{tensor}", (record.n_kv_heads, tokens, width)
                if name not in arrays:
                    raise InputError(f"{self.folder / shard.file} lacks {name}, which the manifest names; capture anew")
                if arrays[name].shape != shape:
                    raise InputError(
                        f"{self.folder / shard.file}: {name} has shape {arrays[name].shape}, "
                        f"the manifest says {shape}; capture anew"
                    )


def open_capture(folder: Path) -> Capture:
    """Opens a complete capture. Raises `InputError` for another kind of folder, a broken or an unfinished one."""
    manifest = load_manifest(folder)
    if not manifest.complete:
        raise InputError(
            f"{folder} holds {len(manifest.shards)} of {manifest.dataset.windows} windows; "
            f"finish it with: tq capture {manifest.model.name} --out {folder} --resume and the options of the first run"
        )
    return Capture(folder, manifest)


def newest_capture(parent: Path = CAPTURES) -> Path:
    """The folder under `parent` whose manifest is newest. Raises `InputError` if there is none."""
    manifests = [path for path in parent.glob(f"*/{MANIFEST}") if path.is_file()]
    if not manifests:
        raise InputError(f"there is no capture under {parent}/; make one with: tq capture")
    return max(manifests, key=lambda path: path.stat().st_mtime_ns).parent
