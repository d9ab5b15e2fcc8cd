"""Decodes an encoded folder into a capture folder, without queries."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from tqcli.capture.folder import check_out
from tqcli.capture.manifest import CaptureManifest, ShardRecord
from tqcli.codecs.describe import has_stages
from tqcli.compression.manifest import EncodedManifest, load_encoded_manifest
from tqcli.compression.store import decoded_windows
from tqcli.environment import device_name
from tqcli.errors import InputError
from tqcli.progress import progress
from tqcli.storage import plain_path, staged_folder, write_shard
from tqcli.version import __version__


def decompress(encoded: Path, out: Path, *, stages: int | None = None, overwrite: bool = False) -> CaptureManifest:
    """Writes the decoded keys and values of `encoded`, in the dtype that they were captured in, as a capture at `out`.

    stages: 1 to decode codecs of two stages by their first alone. Raises `InputError` for a damaged folder, one
    without such a codec, or an `out` that can't be written.
    """
    source, out = load_encoded_manifest(encoded), plain_path(out)
    texts = {text for layer in source.layers for text in (layer.keys, layer.values)}
    if stages is not None and not any(map(has_stages, texts)):
        raise InputError(f"{encoded} is coded by {source.codec}, which has no stages; leave out --stages {stages}")
    check_out(out, overwrite)
    with staged_folder(out) as folder:
        return _decompress(encoded, source, folder, stages)


def _decompress(encoded: Path, source: EncodedManifest, out: Path, stages: int | None) -> CaptureManifest:
    shards: list[ShardRecord] = []
    with progress(len(source.shards), "decompress", "window") as bar:
        for shard, decoded in decoded_windows(encoded, source, stages):
            arrays = {"query_positions": mx.zeros((0,), dtype=mx.int32)}
            for layer in source.layers:
                dtype: mx.Dtype = getattr(mx, layer.dtype)
                name = f"layers.{layer.layer}"
                arrays[f"{name}.keys"] = decoded[layer.layer, "keys"].astype(dtype)
                arrays[f"{name}.values"] = decoded[layer.layer, "values"].astype(dtype)
                arrays[f"{name}.queries"] = mx.zeros((layer.n_q_heads, 0, layer.head_dim), dtype=dtype)
            file = write_shard(out, shard.file, arrays, {"format": "tq-capture"})
            shards.append(
                ShardRecord(
                    file=file.file,
                    bytes=file.bytes,
                    sha256=file.sha256,
                    window=shard.window,
                    document=shard.document,
                    start=shard.start,
                    token_ids=[],
                )
            )
            bar.update()
    manifest = CaptureManifest(
        tq_version=__version__,
        mlx_version=version("mlx"),
        backend=device_name(),
        model=source.model,
        dataset=source.dataset,
        decoded_from=source.codec if stages is None else f"{source.codec} (stages={stages})",
        layers_asked=[layer.layer for layer in source.layers],
        queries=0,
        chunk=0,
        layers=[source.layer_record(layer) for layer in source.layers],
        skipped=source.skipped,
        shards=shards,
    )
    manifest.save(out)
    return manifest
