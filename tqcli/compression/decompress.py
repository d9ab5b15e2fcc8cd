"""Decodes an encoded folder into a capture folder, without queries."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np

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


def decompress(
    encoded: Path,
    out: Path,
    *,
    stages: int | None = None,
    overwrite: bool = False,
    on_clipped: Callable[[str], None] = lambda message: None,
) -> CaptureManifest:
    """Writes the decoded keys and values of `encoded`, in the dtype that they were captured in, as a capture at `out`.

    stages: 1 to decode codecs of two stages by their first alone. `on_clipped` is told in one line of elements that
    the captured dtype can't hold; they become its largest. Raises `InputError` for a damaged folder, one
    without such a codec, or an `out` that can't be written.
    """
    source, out = load_encoded_manifest(encoded), plain_path(out)
    texts = {text for layer in source.layers for text in (layer.keys, layer.values)}
    if stages is not None and not any(map(has_stages, texts)):
        raise InputError(f"{encoded} is coded by {source.codec}, which has no stages; leave out --stages {stages}")
    check_out(out, overwrite)
    with staged_folder(out) as folder:
        return _decompress(encoded, source, folder, stages, on_clipped)


def _decompress(
    encoded: Path, source: EncodedManifest, out: Path, stages: int | None, on_clipped: Callable[[str], None]
) -> CaptureManifest:
    shards: list[ShardRecord] = []
    with progress(len(source.shards), "decompress", "window") as bar:
        for shard, decoded in decoded_windows(encoded, source, stages):
            arrays = {"query_positions": mx.zeros((0,), dtype=mx.int32)}
            for layer in source.layers:
                dtype: mx.Dtype = getattr(mx, layer.dtype)
                name = f"layers.{layer.layer}"
                for tensor in ("keys", "values"):
                    x, clipped = _fitted(decoded[layer.layer, tensor], dtype)
                    arrays[f"{name}.{tensor}"] = x
                    if clipped:
                        on_clipped(f"{clipped} elements of the {tensor} of {name} are beyond {layer.dtype}: clipped")
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


def _fitted(x: mx.array, dtype: mx.Dtype) -> tuple[mx.array, int]:
    """X in another float dtype, with finite elements beyond it at its largest, and how many those are."""
    largest = mx.finfo(dtype).max
    beyond = int(np.count_nonzero(np.array((mx.abs(x) > largest) & mx.isfinite(x))))
    return (mx.clip(x, -largest, largest) if beyond else x).astype(dtype), beyond
