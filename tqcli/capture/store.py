"""Reads a capture folder: verified shards, one window in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
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
        """[n_q_heads, sampled, head_dim], after the rotary embedding, at `query_positions`.

        Raises `InputError` for NaN or inf, naming the place.
        """
        return self._finite(layer, "queries")

    @property
    def query_positions(self) -> NDArray[np.int32]:
        """[sampled] positions within the window."""
        return np.array(self.arrays["query_positions"])

    def _finite(self, layer: int, tensor: str) -> mx.array:
        x = self.arrays[f"layers.{layer}.{tensor}"]
        # One number tells of any NaN or inf: a product with 0 is NaN there, and so is the sum.
        if x.size and mx.isnan(mx.sum(x.astype(mx.float32) * 0)).item():
            values = np.array(x.astype(mx.float32))
            head, token, _ = np.argwhere(~np.isfinite(values))[0]
            raise InputError(
                f"{self.folder / self.shard.file} (window {self.shard.window}) holds NaN or inf in the {tensor} of "
                f"layer {layer}, head {head}, token {token}; capture with another --dtype, or without it (--layers)"
            )
        return x


@dataclass(frozen=True)
class Capture:
    """A capture folder that has been checked to be one, and complete."""

    folder: Path
    manifest: CaptureManifest
    check: bool = True
    """Whether a shard's sha256 is verified when it is first opened."""
    _verified: set[str] = field(default_factory=set, repr=False, compare=False)

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

    def windows(self) -> Iterator[Window]:
        """Each window in turn. Raises `InputError` for a shard that is missing, damaged or not as the manifest says.

        Hold on to none of them: what was read of a window stays in memory as long as it does.
        """
        for shard in self.manifest.shards:
            yield self._open(shard)

    def _open(self, shard: ShardRecord) -> Window:
        record = FileRecord(shard.file, shard.bytes, shard.sha256)
        arrays, _ = read_shard(self.folder, record, self.check and shard.file not in self._verified)
        self._verified.add(shard.file)
        self._check_shapes(shard, arrays)
        return Window(self.folder, shard, arrays)

    def _check_shapes(self, shard: ShardRecord, arrays: dict[str, mx.array]) -> None:
        path = self.folder / shard.file
        for name, (shape, dtype) in self._expected().items():
            if name not in arrays:
                raise InputError(f"{path} lacks {name}, which the manifest names; capture anew")
            found = arrays[name].shape, _dtype_name(arrays[name])
            if found != (shape, dtype):
                raise InputError(
                    f"{path}: {name} is {found[1]} {found[0]}, by the manifest {dtype} {shape}; capture anew"
                )

    def _expected(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of every array of a shard, by name."""
        tokens = self.manifest.dataset.tokens
        sampled = min(self.manifest.queries, tokens)
        expected: dict[str, tuple[tuple[int, ...], str]] = {"query_positions": ((sampled,), "int32")}
        for r in self.manifest.layers:
            expected |= {
                f"layers.{r.layer}.keys": ((r.n_kv_heads, tokens, r.head_dim), r.dtype),
                f"layers.{r.layer}.values": ((r.n_kv_heads, tokens, r.value_head_dim), r.dtype),
                f"layers.{r.layer}.queries": ((r.n_q_heads, sampled, r.head_dim), r.dtype),
            }
        return expected


def _dtype_name(x: mx.array) -> str:
    return str(x.dtype).rpartition(".")[2]


def open_capture(folder: Path, check: bool = True) -> Capture:
    """Opens a complete capture; its shards are verified when they are read, unless `check` is False.

    Raises `InputError` for another kind of folder, a broken or an unfinished one.
    """
    manifest = load_manifest(folder)
    if not manifest.complete:
        raise InputError(
            f"{folder} holds {len(manifest.shards)} of {manifest.dataset.windows} windows; "
            f"finish it: repeat the tq capture of {manifest.model.name} on {manifest.dataset.spec} with --resume"
        )
    return Capture(folder, manifest, check)


def newest_capture(parent: Path = CAPTURES) -> Path:
    """The folder under `parent` whose manifest is newest. Raises `InputError` if there is none."""
    manifests = [path for path in parent.glob(f"*/{MANIFEST}") if path.is_file()]
    if not manifests:
        raise InputError(f"there is no capture under {parent}/; make one with: tq capture")
    return max(manifests, key=lambda path: path.stat().st_mtime_ns).parent
