"""Captures windows of a text from a model into a folder; can be interrupted, resumed and shared among processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.capture.geometry import describe_layers
from tqcli.capture.manifest import CaptureManifest, DatasetRecord, ModelRecord, ShardRecord
from tqcli.capture.together import agree, begin, gather_shards
from tqcli.capture.window import WindowCapture, capture_window, sample_positions
from tqcli.datasets import Text, TokenWindows, token_windows
from tqcli.distributed import ALONE, Group
from tqcli.environment import device_name
from tqcli.errors import InputError
from tqcli.manifests import Dtype
from tqcli.models import LoadedModel
from tqcli.progress import progress
from tqcli.resumable import window_file
from tqcli.storage import plain_path, write_shard
from tqcli.version import __version__

CHUNK = 256
"""Tokens a prefill step."""


def capture(
    loaded: LoadedModel,
    text: Text,
    out: Path,
    *,
    windows: int = 8,
    tokens: int = 1024,
    layers: Sequence[int] | None = None,
    queries: int = 64,
    seed: int = 0,
    chunk: int = CHUNK,
    resume: bool = False,
    overwrite: bool = False,
    on_tokens: Callable[[int], object] = lambda tokens: None,
    group: Group = ALONE,
) -> CaptureManifest:
    """Runs `windows` windows of `tokens` tokens through the model and writes what its caches were given to `out`.

    layers: those to capture, all if None. queries: positions a window whose queries are kept. chunk: tokens a prefill
    step, 3 or more. `on_tokens` is told the tokens of each step, and those of other processes when a round is done.
    group: the processes that take turns, each a window a round; all return the same.
    One window's keys, values and sampled queries are in a process's memory at a time. A shard is written whole and
    renamed, then the manifest, once a round: whatever stops it, `resume` goes on after the last whole round, and the
    folder ends byte-equal to that of an uninterrupted run of one process. Raises `InputError` if `out` holds something
    else or can't be written, if `resume` finds a capture that was made with other settings, and for a model of which
    nothing can be captured; see also `Group.gather`.
    """
    out = plain_path(out)
    asked = _check(loaded.model, layers, queries, chunk)
    drawn = token_windows(text, loaded.tokenizer, tokens, windows, seed)
    fresh = _begin(loaded, text, drawn, None if layers is None else asked, queries, seed, chunk)
    manifest = begin(group, out, fresh, overwrite, resume)
    first = len(manifest.shards)
    with progress((windows - first) * tokens, "capture", "tok") as bar:

        def advance(done: int) -> None:
            bar.update(done)
            on_tokens(done)

        for start in range(first, windows, group.size):
            manifest = _add_round(manifest, loaded.model, drawn, start, asked, out, advance, group)
    return manifest


def _check(model: Any, layers: Sequence[int] | None, queries: int, chunk: int) -> list[int]:
    """The layers to capture, sorted. Raises `InputError` for what can't be."""
    if queries < 1:
        raise InputError(f"--queries must be 1 or more, not {queries}")
    if chunk < 3:
        raise InputError(f"a prefill step must have 3 tokens or more, not {chunk}")
    count = len(model.layers)
    asked = sorted(set(range(count) if layers is None else layers))
    if outside := [layer for layer in asked if not 0 <= layer < count]:
        raise InputError(f"--layers names layer {outside[0]}; the model has layers 0 to {count - 1}")
    if not asked:
        raise InputError("--layers names no layer; leave it out to capture all")
    return asked


def _add_round(
    manifest: CaptureManifest,
    model: Any,
    drawn: TokenWindows,
    start: int,
    asked: list[int],
    out: Path,
    advance: Callable[[int], None],
    group: Group,
) -> CaptureManifest:
    """Captures a window in each process, from `start` on, and writes the shards and then, in process 0, the manifest.

    What it held in memory is free when it returns.
    """
    from mlx_lm.models.cache import make_prompt_cache

    index, dataset = start + group.rank, manifest.dataset
    undescribed = not manifest.layers
    shard = None
    if index < dataset.windows:
        ids = drawn.ids[index]
        positions = sample_positions(dataset.tokens, manifest.queries, dataset.seed, index)
        cache = list(make_prompt_cache(model))
        window = capture_window(
            model, cache, ids, positions, manifest.chunk, asked, ropes=undescribed, progress=advance
        )
    if undescribed:
        if group.rank == 0:
            records, skipped = describe_layers(model, cache, window, asked)
            manifest = manifest.model_copy(update={"layers": records, "skipped": skipped})
        manifest = agree(group, manifest)
    if index < dataset.windows:
        file = write_shard(out, window_file(index), _arrays(manifest, window, positions), {"format": manifest.format})
        shard = ShardRecord(
            file=file.file,
            bytes=file.bytes,
            sha256=file.sha256,
            window=index,
            document=drawn.documents[index],
            start=drawn.starts[index],
            token_ids=ids.tolist(),
        )
    written = gather_shards(group, shard)
    advance(dataset.tokens * sum(other.window != index for other in written))
    manifest = manifest.model_copy(update={"shards": [*manifest.shards, *written]})
    if group.rank == 0:
        manifest.save(out)
    return manifest


def _arrays(manifest: CaptureManifest, window: WindowCapture, positions: NDArray[np.int32]) -> dict[str, mx.array]:
    arrays = {"query_positions": mx.array(positions)}
    for record in manifest.layers:
        layer, name = window.layers[record.layer], f"layers.{record.layer}"
        arrays |= {f"{name}.keys": layer.keys, f"{name}.values": layer.values, f"{name}.queries": layer.queries}
    return arrays


def _begin(
    loaded: LoadedModel,
    text: Text,
    drawn: TokenWindows,
    layers: list[int] | None,
    queries: int,
    seed: int,
    chunk: int,
) -> CaptureManifest:
    """The manifest before the first window."""
    return CaptureManifest(
        tq_version=__version__,
        mlx_version=version("mlx"),
        backend=device_name(),
        model=model_record(loaded),
        dataset=dataset_record(text, drawn, seed),
        layers_asked=layers,
        queries=queries,
        chunk=chunk,
        layers=[],
        skipped=[],
        shards=[],
    )


def model_record(loaded: LoadedModel) -> ModelRecord:
    """What identifies a model in a manifest or a result."""
    return ModelRecord(
        name=loaded.source.name,
        kind=loaded.source.kind,
        model_type=loaded.model_type,
        revision=loaded.revision,
        config_sha256=loaded.config_sha256,
        tokenizer_sha256=loaded.tokenizer_sha256,
        weights_sha256=loaded.weights_sha256,
        stored_dtype=cast(Dtype, loaded.stored_dtype),
        compute_dtype=cast(Dtype, loaded.compute_dtype),
    )


def dataset_record(text: Text, drawn: TokenWindows, seed: int) -> DatasetRecord:
    """What identifies the windows of a text in a manifest or a result."""
    windows, tokens = drawn.ids.shape
    return DatasetRecord(
        spec=text.spec,
        text_sha256=text.sha256,
        tokens_sha256=drawn.sha256,
        windows=windows,
        tokens=tokens,
        seed=seed,
        bos=drawn.bos,
    )
