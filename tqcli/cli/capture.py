"""`tq capture`: keys, values and queries of a model on a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tqcli.cli.arguments import (
    DatasetOption,
    DtypeOption,
    JsonOption,
    ModelArgument,
    OverwriteOption,
    ResumeOption,
    file_name,
    load_model,
    named_dataset,
    named_model,
    say,
)
from tqcli.layers import parse_layers

if TYPE_CHECKING:
    from tqcli.capture.manifest import CaptureManifest


def capture(
    model: ModelArgument = None,
    dataset: DatasetOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write. Default: captures/MODEL-DATASET.")] = None,
    windows: Annotated[int, typer.Option("--windows", help="Windows of text.")] = 8,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens a window.")] = 1024,
    layers: Annotated[str | None, typer.Option("--layers", help="Layers, for example 0-3,7. Default: all.")] = None,
    queries: Annotated[int, typer.Option("--queries", help="Query positions kept of each window.")] = 64,
    seed: Annotated[int, typer.Option("--seed", help="Which windows and queries are drawn.")] = 0,
    dtype: DtypeOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Captures keys, values and sampled queries of every layer, exactly as the model caches them.

    Example: tq capture smollm2-135m --dataset book.txt --windows 4 --tokens 1024
    """
    from time import perf_counter

    from tqcli.capture.folder import check_out
    from tqcli.capture.run import capture as run
    from tqcli.datasets import load_text
    from tqcli.distributed import joined
    from tqcli.storage import plain_path

    name, spec = named_model(model), named_dataset(dataset)
    folder = plain_path(out or Path("captures") / f"{file_name(name)}-{file_name(spec)}")
    wanted = None if layers is None else parse_layers(layers)
    # Before anything that takes long.
    group = joined()
    if group.rank == 0:
        check_out(folder, overwrite, resume)
    group.gather()
    text = load_text(spec)
    loaded = load_model(name, dtype)
    done = 0

    def count(tokens: int) -> None:
        nonlocal done
        done += tokens

    started = perf_counter()
    try:
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
            on_tokens=count,
            group=group,
        )
    except KeyboardInterrupt:
        say(f"the windows that are whole are kept in {folder}; go on with the same command and --resume")
        raise
    context = loaded.config.get("max_position_embeddings")
    if isinstance(context, int) and tokens > context:
        say(f"windows of {tokens} tokens are longer than the {context} that {name} was made for")
    if group.rank:
        return
    if json:
        print(manifest.model_dump_json(indent=1, exclude={"shards": {"__all__": {"token_ids"}}}))
        return
    _summarise(manifest, folder, done, perf_counter() - started)


def _summarise(manifest: CaptureManifest, folder: Path, done: int, seconds: float) -> None:
    """Prints what was captured and how fast."""
    dataset = manifest.dataset
    size = sum(shard.bytes for shard in manifest.shards)
    rate = f", {done / seconds:.0f} tokens/s" if done else ", captured before"
    count = "1 window" if dataset.windows == 1 else f"{dataset.windows} windows"
    print(
        f"captured {count} of {dataset.tokens} tokens of {dataset.spec} from {manifest.model.name}: "
        f"{size / 1e6:.1f} MB{rate}"
    )
    shapes: dict[str, list[int]] = {}
    for r in manifest.layers:
        width = f"{r.head_dim}" if r.head_dim == r.value_head_dim else f"{r.head_dim}/{r.value_head_dim}"
        window = f", window {r.window}" if r.window else ""
        shape = f"{r.n_q_heads} query heads, {r.n_kv_heads} KV heads, head_dim {width}, {r.dtype}, {r.kind}{window}"
        shapes.setdefault(shape, []).append(r.layer)
    for shape, numbers in shapes.items():
        print(f"{_ranges(numbers)}: {shape}")
    for record in manifest.layers:
        for note in record.notes:
            print(f"layer {record.layer}: {note}")
    for skipped in manifest.skipped:
        print(f"layer {skipped.layer} skipped: {skipped.reason}")
    print(folder)


def _ranges(numbers: list[int]) -> str:
    """Sorted layer numbers as `--layers` reads them, with the word before."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    text = ",".join("-".join(map(str, part)) for part in parts)
    return f"layer{'s' if len(numbers) > 1 else ''} {text}"
