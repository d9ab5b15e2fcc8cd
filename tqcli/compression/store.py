"""Writes and reads an encoded folder: one shard a window, what they share once, the manifest last."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import mlx.core as mx

from tqcli.capture.store import Capture, Window
from tqcli.codecs.base import Encoded, keep_uncompressed
from tqcli.codecs.context import LayerContext, RotaryParameters, Tensor
from tqcli.codecs.describe import describe, rebuild
from tqcli.compression.manifest import EncodedLayer, EncodedManifest, EncodedShard
from tqcli.compression.plan import CompressionPlan
from tqcli.compression.tensor import RECENT, SINKS, EncodedTensor, Segments, decode_tensor
from tqcli.errors import InputError
from tqcli.manifests import FileEntry
from tqcli.storage import MANIFEST, FileRecord, read_json, read_shard, write_shard
from tqcli.version import __version__

SHARED = "shared.safetensors"
_UNCOMPRESSED = "uncompressed"
_OWN = re.compile(r"manifest\.json|shared\.safetensors|window-\d{5,}\.safetensors")


class EncodedWriter:
    """Fills an encoded folder window by window. Nothing counts until `finish` has written the manifest."""

    def __init__(self, capture: Capture, plan: CompressionPlan, out: Path, calibration: Capture | None = None) -> None:
        self.capture, self.plan, self.out, self.calibration = capture, plan, out, calibration
        self.shards: list[EncodedShard] = []
        self.shared: dict[str, mx.array] = {}
        self.disk: Counter[tuple[int, str]] = Counter()
        """Bytes of each tensor's own arrays in the shards."""
        self._users: dict[str, set[tuple[int, str]]] = {}
        self._arrays: dict[str, mx.array] = {}

    def add(self, layer: int, tensor: Tensor, x: mx.array, encoded: EncodedTensor | None, ctx: LayerContext) -> None:
        """Takes one tensor of the window in hand; x itself where it was not encoded."""
        if encoded is None:
            self._arrays[f"{layer}.{tensor}.{_UNCOMPRESSED}"] = keep_uncompressed(x, ctx)
            return
        self._arrays |= {f"{layer}.{tensor}.{name}": array for name, array in encoded.arrays.items()}
        self.shared |= encoded.coded.shared
        for key in encoded.coded.shared:
            self._users.setdefault(key, set()).add((layer, tensor))

    def end_window(self, window: Window) -> None:
        """Writes the window's shard."""
        name = f"window-{window.shard.window:05d}.safetensors"
        file = write_shard(self.out, name, self._arrays, {"format": "tq-encoded"})
        for array, size in _bytes_by_array(self.out / name).items():
            layer, tensor, _ = array.split(".", 2)
            self.disk[int(layer), tensor] += size
        self.shards.append(
            EncodedShard(
                file=file.file,
                bytes=file.bytes,
                sha256=file.sha256,
                window=window.shard.window,
                document=window.shard.document,
                start=window.shard.start,
            )
        )
        self._arrays = {}

    def finish(self, skipped: dict[tuple[int, Tensor], str]) -> EncodedManifest:
        """Writes what the shards share, and the manifest."""
        shared = None
        if self.shared:
            file = write_shard(self.out, SHARED, self.shared, {"format": "tq-encoded"})
            shared = FileEntry(file=file.file, bytes=file.bytes, sha256=file.sha256)
        source = self.capture.manifest
        rotaries: list[RotaryParameters] = []
        layers = []
        for record in source.layers:
            if record.rotary is not None and record.rotary not in rotaries:
                rotaries.append(record.rotary)
            layers.append(
                EncodedLayer(
                    **record.model_dump(exclude={"rotary"}),
                    rotary=None if record.rotary is None else rotaries.index(record.rotary),
                    keys=describe(self.plan.codec_of(record.layer, "keys")),
                    values=describe(self.plan.codec_of(record.layer, "values")),
                    skipped={name: reason for (layer, name), reason in skipped.items() if layer == record.layer},
                )
            )
        manifest = EncodedManifest(
            tq_version=__version__,
            codec=str(self.plan.codec),
            sinks=self.plan.sinks,
            recent=self.plan.recent,
            model=source.model,
            dataset=source.dataset,
            calibration=None if self.calibration is None else self.calibration.manifest.dataset,
            rotary=rotaries,
            layers=layers,
            skipped=source.skipped,
            shared=shared,
            shards=self.shards,
        )
        manifest.save(self.out)
        return manifest

    def bytes_of(self, tensors: Iterable[tuple[int, str]]) -> int:
        """Bytes on disk of these tensors' arrays, with those that they share among themselves alone; when finished."""
        group = set(tensors)
        shared = _bytes_by_array(self.out / SHARED) if self.shared else {}
        own = sum(self.disk[key] for key in group)
        return own + sum(size for key, size in shared.items() if self._users[key] <= group)

    def bytes_on_disk(self) -> int:
        """Size of every file of the folder."""
        return sum(path.stat().st_size for path in self.out.iterdir())


def decoded_windows(
    folder: Path, manifest: EncodedManifest, stages: int | None = None
) -> Iterator[tuple[EncodedShard, dict[tuple[int, Tensor], mx.array]]]:
    """Each shard with its decoded tensors, float32 [n_kv_heads, tokens, head_dim], by layer and tensor.

    stages: how many stages of a codec that has several are read; None for as many as it was written with.
    """
    shared: dict[str, mx.array] = {}
    if manifest.shared is not None:
        shared, _ = read_shard(folder, _record(manifest.shared))
    for shard in manifest.shards:
        arrays, _ = read_shard(folder, _record(shard))
        decoded: dict[tuple[int, Tensor], mx.array] = {}
        for layer in manifest.layers:
            tensors: tuple[Tensor, ...] = ("keys", "values")
            for tensor in tensors:
                prefix = f"{layer.layer}.{tensor}."
                own = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
                if not own:
                    raise InputError(f"{folder / shard.file} lacks the {tensor} of layer {layer.layer}; compress anew")
                decoded[layer.layer, tensor] = _decode(own, shared, manifest, layer, tensor, stages)
        yield shard, decoded


def _decode(
    own: dict[str, mx.array],
    shared: dict[str, mx.array],
    manifest: EncodedManifest,
    layer: EncodedLayer,
    tensor: Tensor,
    stages: int | None,
) -> mx.array:
    if _UNCOMPRESSED in own:
        return own[_UNCOMPRESSED].astype(mx.float32)
    try:
        codec = rebuild(layer.keys if tensor == "keys" else layer.values, tensor, stages)
    except InputError as e:
        if stages is not None:
            raise
        raise InputError(
            f"the {tensor} of layer {layer.layer} have a codec that this tq doesn't know ({e}); use tq "
            f"{manifest.tq_version}, which wrote them, or compress anew"
        ) from e
    shape = (layer.n_kv_heads, manifest.dataset.tokens, manifest.context(layer, tensor).head_dim)
    if wrong := [name for name, array in own.items() if array.ndim < 2 or array.shape[0] != layer.n_kv_heads]:
        raise InputError(f"{wrong[0]} of the {tensor} of layer {layer.layer} isn't of {shape[0]} heads; compress anew")
    exact = {name: own.pop(name) for name in (SINKS, RECENT) if name in own}
    segments = Segments.split(manifest.dataset.tokens, manifest.sinks, manifest.recent)
    coded = Encoded(own, segments.coded, shared)
    try:
        decoded = decode_tensor(codec, EncodedTensor(segments, exact, coded), manifest.context(layer, tensor))
    except (KeyError, ValueError, IndexError) as e:
        raise InputError(f"the {tensor} of layer {layer.layer} don't fit their codec: {e}; compress anew") from e
    if decoded.shape != shape:
        raise InputError(f"the {tensor} of layer {layer.layer} decode to {decoded.shape}, not {shape}; compress anew")
    return decoded


def check_out(out: Path, overwrite: bool) -> None:
    """Makes sure that `out` may be written: absent, empty, or an encoded folder that is to be replaced.

    Raises `InputError` with the remedy; changes nothing.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose another folder with --out")
    if not out.is_dir():
        return
    ours = (out / MANIFEST).is_file() and _is_encoded(out / MANIFEST)
    others = sorted(path.name for path in out.iterdir() if not (ours and is_own(path)))
    if others:
        raise InputError(f"{out} holds something else ({others[0]}); choose another folder with --out")
    if ours and not overwrite:
        raise InputError(f"{out} holds an encoded folder; replace it with --overwrite, or choose another --out")


def _is_encoded(path: Path) -> bool:
    try:
        document = read_json(path)
    except InputError:  # broken, so it can't be told whose it is
        return False
    return isinstance(document, dict) and document.get("format") == "tq-encoded"


def is_own(path: Path) -> bool:
    """Whether a file is one that an encoded folder has."""
    return path.is_file() and _OWN.fullmatch(path.name) is not None


def _record(entry: FileEntry) -> FileRecord:
    return FileRecord(entry.file, entry.bytes, entry.sha256)


def _bytes_by_array(path: Path) -> dict[str, int]:
    """Bytes that each array takes in a safetensors file: its data, and its entry in the header."""
    with path.open("rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    sizes = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            sizes[name] = end - start + len(json.dumps({name: entry}, separators=(",", ":"))) - 1
    return sizes
