"""Captures windows of a text from a model into a folder; can be interrupted and resumed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from tqcli.capture.manifest import (
    CaptureManifest,
    DatasetRecord,
    LayerRecord,
    ModelRecord,
    ShardRecord,
    SkippedLayer,
    load_manifest,
)
from tqcli.capture.rotary import probe_rotary
from tqcli.capture.window import LayerCapture, capture_window, sample_positions
from tqcli.datasets import Text, TokenWindows, token_windows
from tqcli.environment import device_name
from tqcli.errors import InputError
from tqcli.models import LoadedModel
from tqcli.progress import progress
from tqcli.storage import MANIFEST, FileRecord, make_folder, verify, write_shard
from tqcli.version import __version__

CHUNK = 256
"""Tokens a prefill step: fastest on a CPU, where softmax over longer ones leaves the cache."""


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
) -> CaptureManifest:
    """Runs `windows` windows of `tokens` tokens through the model and writes what its caches were given to `out`.

    One window's keys, values and `queries` sampled queries are in memory at a time. A shard is written whole and
    renamed, then the manifest: whatever stops it, `resume` goes on after the last whole window, and the folder ends
    byte-equal to that of an uninterrupted run. Raises `InputError` if `out` holds something else or can't be written.
    """
    if queries < 1:
        raise InputError(f"--queries must be 1 or more, not {queries}")
    if chunk < 2:
        raise InputError(f"a prefill step must have 2 tokens or more, not {chunk}")
    drawn = token_windows(text, loaded.tokenizer, tokens, windows, seed)
    found = prepare(out, overwrite, resume)
    make_folder(out)
    manifest = _fresh_manifest(loaded, text, drawn, layers, queries, seed, chunk)
    if found is not None:
        manifest = _continue(out, manifest, found)
    for index in _with_progress(range(len(manifest.shards), windows), windows, tokens):
        positions = sample_positions(tokens, queries, seed, index)
        cache = _make_cache(loaded.model)
        captured = capture_window(loaded.model, cache, drawn.ids[index], positions, chunk)
        if not manifest.shards:
            records, skipped = _describe(loaded.model, cache, captured, layers)
            manifest = manifest.model_copy(update={"layers": records, "skipped": skipped})
        arrays = {"query_positions": mx.array(positions)}
        for record in manifest.layers:
            layer = captured[record.layer]
            arrays |= {f"layers.{record.layer}.{n}": getattr(layer, n) for n in ("keys", "values", "queries")}
        file = write_shard(out, f"window-{index:05d}.safetensors", arrays, {"format": "tq-capture"})
        shard = ShardRecord(
            file=file.file,
            bytes=file.bytes,
            sha256=file.sha256,
            window=index,
            document=drawn.documents[index],
            start=drawn.starts[index],
            token_ids=drawn.ids[index].tolist(),
        )
        manifest = manifest.model_copy(update={"shards": [*manifest.shards, shard]})
        manifest.save(out)
    return manifest


def _make_cache(model: Any) -> list[Any]:
    from mlx_lm.models.cache import make_prompt_cache

    return list(make_prompt_cache(model))


def _fresh_manifest(
    loaded: LoadedModel,
    text: Text,
    drawn: TokenWindows,
    layers: Sequence[int] | None,
    queries: int,
    seed: int,
    chunk: int,
) -> CaptureManifest:
    windows, tokens = drawn.ids.shape
    return CaptureManifest(
        tq_version=__version__,
        mlx_version=version("mlx"),
        backend=device_name(),
        model=ModelRecord(
            name=loaded.source.name,
            kind=loaded.source.kind,
            model_type=loaded.model_type,
            revision=loaded.revision,
            config_sha256=loaded.config_sha256,
            tokenizer_sha256=loaded.tokenizer_sha256,
            weights_sha256=loaded.weights_sha256,
            stored_dtype=loaded.stored_dtype,
            compute_dtype=loaded.compute_dtype,
        ),
        dataset=DatasetRecord(
            spec=text.spec,
            text_sha256=text.sha256,
            tokens_sha256=drawn.sha256,
            windows=windows,
            tokens=tokens,
            seed=seed,
            bos=drawn.bos,
        ),
        layers_asked=None if layers is None else list(layers),
        queries=queries,
        chunk=chunk,
        layers=[],
        skipped=[],
        shards=[],
    )


def _describe(
    model: Any, cache: list[Any], captured: dict[int, LayerCapture], layers: Sequence[int] | None
) -> tuple[list[LayerRecord], list[SkippedLayer]]:
    """Each layer as it was seen at work, and those that can't be captured."""
    if layers is not None and (beyond := [layer for layer in layers if layer >= len(cache)]):
        raise InputError(f"--layers names layer {beyond[0]}; the model has layers 0 to {len(cache) - 1}")
    blocks = list(model.layers)
    records, skipped = [], []
    for index in range(len(cache)) if layers is None else layers:
        kind = type(cache[index]).__name__
        if index not in captured:
            skipped.append(SkippedLayer(layer=index, reason=f"no attention call read its cache ({kind})"))
            continue
        if kind not in ("KVCache", "RotatingKVCache"):
            skipped.append(SkippedLayer(layer=index, reason=f"a {kind} doesn't hold plain keys and values"))
            continue
        seen = captured[index]
        window = getattr(cache[index], "max_size", None)
        # Where caches and blocks don't correspond (hybrid models), which block is whose isn't known.
        block = blocks[index] if len(blocks) == len(cache) else None
        records.append(
            LayerRecord(
                layer=index,
                kind="full" if window is None else "sliding",
                n_q_heads=seen.queries.shape[0],
                n_kv_heads=seen.keys.shape[0],
                head_dim=seen.keys.shape[-1],
                value_head_dim=seen.values.shape[-1],
                scale=seen.scale,
                window=window,
                rotary=None if block is None else probe_rotary(block, seen.keys.shape[-1]),
                dtype=str(seen.keys.dtype).rpartition(".")[2],
            )
        )
    if not records:
        reasons = "; ".join(sorted({s.reason for s in skipped})) or "no layer was asked for"
        raise InputError(f"nothing can be captured from this model: {reasons}")
    return records, skipped


def prepare(out: Path, overwrite: bool, resume: bool = False) -> CaptureManifest | None:
    """The manifest to go on from; None for a fresh start. Raises `InputError` if `out` is taken."""
    if overwrite:
        _remove(out)
    if not out.exists():
        return None
    if not out.is_dir():
        raise InputError(f"{out} is a file; choose another folder with --out")
    if not (out / MANIFEST).is_file():
        others = [path.name for path in out.iterdir() if not _is_own(path)]
        if others:
            raise InputError(f"{out} holds other files ({others[0]}); choose another folder with --out")
        return None
    found = load_manifest(out)
    if resume:
        return found
    state = "a capture" if found.complete else "an unfinished capture"
    raise InputError(f"{out} holds {state}; go on with --resume, replace it with --overwrite, or choose another --out")


def _continue(out: Path, fresh: CaptureManifest, found: CaptureManifest) -> CaptureManifest:
    """The found manifest cut to its leading good shards. Raises `InputError` if it is another run's."""
    asked, there = (_identity(m) for m in (fresh, found))
    for key, value in asked.items():
        if there[key] != value:
            raise InputError(
                f"{out} was captured with another {key} ({there[key]}, now {value}); "
                "repeat the first run's options, or use --overwrite"
            )
    good: list[ShardRecord] = []
    for shard in found.shards:
        try:
            verify(out, FileRecord(shard.file, shard.bytes, shard.sha256))
        except InputError as e:
            print(f"tq: {e}; captured again from window {shard.window}", file=sys.stderr)
            break
        good.append(shard)
    return found.model_copy(update={"shards": good})


def _identity(manifest: CaptureManifest) -> dict[str, Any]:
    """Everything that the shards' bytes depend on, flat."""
    document = manifest.model_dump(exclude={"layers", "skipped", "shards"})
    flat = {key: value for key, value in document.items() if not isinstance(value, dict)}
    for group in ("model", "dataset"):
        flat |= {f"{group} {key}": value for key, value in document[group].items()}
    return flat


def _remove(out: Path) -> None:
    """Removes a capture's own files and nothing else."""
    if not (out / MANIFEST).is_file():
        return
    load_manifest(out)  # refuses a folder of another kind
    for path in out.iterdir():
        if _is_own(path):
            path.unlink()


def _is_own(path: Path) -> bool:
    name = path.name.removeprefix(".partial-")
    return name == MANIFEST or (name.startswith("window-") and name.endswith(".safetensors"))


def _with_progress(indices: range, windows: int, tokens: int) -> Iterator[int]:
    """The indices, with a bar of tokens on stderr."""
    with progress(windows * tokens, "capture", "tok") as bar:
        bar.update(indices.start * tokens)
        for index in indices:
            yield index
            bar.update(tokens)
