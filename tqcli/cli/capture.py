"""`tq capture`: keys, values and queries of a model on a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tqcli.cli.arguments import JsonOption, OverwriteOption, parse_layers, say


def capture(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="A short name, a folder, a .gguf file or a hub id. Default: smollm2-135m."
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", help="sample, a .txt, .jsonl or .parquet file, or a hub's name. Default: sample."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write. Default: captures/MODEL-DATASET.")] = None,
    windows: Annotated[int, typer.Option("--windows", help="Windows of text.")] = 8,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens a window.")] = 1024,
    layers: Annotated[str | None, typer.Option("--layers", help="Layers, for example 0-3,7. Default: all.")] = None,
    queries: Annotated[int, typer.Option("--queries", help="Query positions kept of each window.")] = 64,
    seed: Annotated[int, typer.Option("--seed", help="Which windows and queries are drawn.")] = 0,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", help="float32, float16 or bfloat16 to run in. Default: float32 on a CPU, else as stored."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished capture.")] = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Captures keys, values and sampled queries of every layer, exactly as the model caches them.

    Example: tq capture smollm2-135m --dataset book.txt --windows 4 --tokens 1024
    """
    from time import perf_counter

    from tqcli import blas
    from tqcli.capture.run import capture as run
    from tqcli.datasets import load_text
    from tqcli.models import load
    from tqcli.models.packaged import DEFAULT_MODEL

    if model is None:
        say(f"no MODEL was named; using {DEFAULT_MODEL}")
    if dataset is None:
        say("no --dataset was named; using sample")
    name, spec = model or DEFAULT_MODEL, dataset or "sample"
    folder = out or Path("captures") / f"{_short(name)}-{_short(spec)}"
    wanted = None if layers is None else parse_layers(layers)
    text = load_text(spec)
    loaded = load(name, dtype)
    if loaded.compute_dtype == "float32" and (warning := blas.warning()):
        say(warning)
    started = perf_counter()
    manifest = run(
        loaded,
        text,
        folder,
        windows=windows,
        tokens=tokens,
        layers=wanted,
        queries=queries,
        seed=seed,
        resume=resume,
        overwrite=overwrite,
    )
    seconds = perf_counter() - started
    if json:
        print(manifest.model_dump_json(indent=1, exclude={"shards": {"__all__": {"token_ids"}}}))
        return
    size = sum(shard.bytes for shard in manifest.shards)
    shape = f"{windows} windows of {tokens} tokens, {len(manifest.layers)} layers"
    print(f"captured {shape}, {size / 1e6:.0f} MB in {seconds:.1f} s")
    for skipped in manifest.skipped:
        print(f"skipped layer {skipped.layer}: {skipped.reason}")
    print(folder)


def _short(name: str) -> str:
    """A file name for a model or data set: the last part of a path or id, without its suffix."""
    path = Path(name).expanduser()
    last = path.resolve().name if path.exists() else name.rpartition("/")[2].replace(":", "-")
    return Path(last).stem if last.endswith((".gguf", ".txt", ".jsonl", ".parquet")) else last
