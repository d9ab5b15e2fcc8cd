"""`tq eval`: what codecs do to a capture, or to the predictions of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tqcli.cli.arguments import (
    AlgoOption,
    BackendOption,
    BitsOption,
    CalibrationOption,
    CaptureArgument,
    DatasetOption,
    DtypeOption,
    JsonOption,
    LayerBitsOption,
    ModelArgument,
    OptionOption,
    OverwriteOption,
    RecentOption,
    ResumeOption,
    SinksOption,
    chosen_calibration,
    chosen_capture,
    chosen_codecs,
    file_name,
    load_model,
    named_dataset,
    named_model,
    say,
    warn_of_waits,
)
from tqcli.errors import InputError

if TYPE_CHECKING:
    from tqcli.compression.plan import CompressionPlan

app = typer.Typer(help="Measure what codecs do to a capture.", no_args_is_help=True, rich_markup_mode=None)

_DEFAULT = ["turboquant-mse@4", "affine@4"]
CodecOption = Annotated[
    list[str] | None,
    typer.Option("--codec", help="A codec as name@bits[,key=value...] or name@kbits/vbits; may be repeated."),
]


@app.command()
def distortion(
    capture: CaptureArgument = None,
    codec: CodecOption = None,
    algo: AlgoOption = None,
    bits: BitsOption = None,
    option: OptionOption = None,
    sinks: SinksOption = 0,
    recent: RecentOption = 0,
    calibration: CalibrationOption = None,
    backend: BackendOption = None,
    json: JsonOption = False,
) -> None:
    """Compares decoded keys and values with the originals, layer by layer, beside each codec's theoretical error.

    Example: tq eval distortion --codec turboquant-mse@4 --codec affine@4
    """
    from tqcli.evaluation.distortion import evaluate_distortion
    from tqcli.report.terminal import print_distortion

    plans = _plans(codec, algo, bits, option, sinks, recent)
    result = evaluate_distortion(chosen_capture(capture), plans, chosen_calibration(calibration))
    print(result.to_json()) if json else print_distortion(result)


@app.command()
def attention(
    capture: CaptureArgument = None,
    codec: CodecOption = None,
    algo: AlgoOption = None,
    bits: BitsOption = None,
    option: OptionOption = None,
    sinks: SinksOption = 0,
    recent: RecentOption = 0,
    calibration: CalibrationOption = None,
    top_k: Annotated[int, typer.Option("--top-k", help="Keys of most weight that topk_overlap looks at.")] = 10,
    backend: BackendOption = None,
    json: JsonOption = False,
) -> None:
    """Compares what attention makes of coded keys and values with the uncompressed ones, for the captured queries.

    Example: tq eval attention --codec turboquant-mse@4 --codec qjl@4 --codec affine@4 --sinks 4
    """
    from tqcli.evaluation.attention import evaluate_attention
    from tqcli.report.terminal import print_attention

    plans = _plans(codec, algo, bits, option, sinks, recent)
    result = evaluate_attention(chosen_capture(capture), plans, chosen_calibration(calibration), top_k)
    print(result.to_json()) if json else print_attention(result)


@app.command()
def perplexity(
    model: ModelArgument = None,
    dataset: DatasetOption = None,
    codec: CodecOption = None,
    algo: AlgoOption = None,
    bits: BitsOption = None,
    option: OptionOption = None,
    layer_bits: LayerBitsOption = "",
    sinks: SinksOption = 4,
    recent: RecentOption = 32,
    calibration: CalibrationOption = None,
    windows: Annotated[int, typer.Option("--windows", help="Windows of text.")] = 8,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens a window.")] = 1024,
    stride: Annotated[
        int | None,
        typer.Option("--stride", help="Score this many tokens at the end of a window. Default: all but one."),
    ] = None,
    chunk: Annotated[int, typer.Option("--chunk", help="Tokens a prefill step.")] = 256,
    rechunk: Annotated[
        int | None, typer.Option("--rechunk", help="Also run in steps of so many tokens: the floor of float noise.")
    ] = None,
    cache_dtype: Annotated[
        str | None,
        typer.Option(
            "--cache-dtype", help="float32, float16 or bfloat16 for what stays uncompressed. Default: what it runs in."
        ),
    ] = None,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="Also compress one layer at a time.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Which windows are drawn.")] = 0,
    dtype: DtypeOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder to keep finished windows in. Default: one under runs/, named after the settings."
        ),
    ] = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    backend: BackendOption = None,
    json: JsonOption = False,
) -> None:
    """Runs a model with compressed caches and tells what that does to its predictions: perplexity and KL divergence.

    Example: tq eval perplexity smollm2-135m --codec turboquant-mse@4 --codec affine@4 --windows 4
    """
    from tqcli.compression.calibration import check_apart
    from tqcli.datasets import load_text
    from tqcli.distributed import joined
    from tqcli.evaluation.perplexity import PerplexityRun
    from tqcli.evaluation.perplexity_calibration import plan_states
    from tqcli.evaluation.perplexity_folder import PerplexityFolder, check_out
    from tqcli.evaluation.perplexity_result import perplexity_result
    from tqcli.evaluation.perplexity_together import begin_together, run_together
    from tqcli.kernels.runtime import used
    from tqcli.report.perplexity import print_perplexity
    from tqcli.storage import plain_path

    group = joined()
    plans = _plans(codec, algo, bits, option, sinks, recent, layer_bits)
    name, spec = named_model(model), named_dataset(dataset)
    if out is not None and group.rank == 0:  # Before anything that takes long.
        check_out(plain_path(out), overwrite, resume)
    elif resume and overwrite:
        raise InputError("--resume goes on with what --overwrite would remove; use one of them")
    text = load_text(spec)
    learned_from = chosen_calibration(calibration)
    loaded = load_model(name, dtype)
    before = used()
    states = plan_states(loaded, plans, learned_from)
    run = PerplexityRun(
        loaded,
        text,
        plans,
        windows=windows,
        tokens=tokens,
        chunk=chunk,
        stride=stride,
        seed=seed,
        rechunk=rechunk,
        per_layer=per_layer,
        cache_dtype=cache_dtype,
        states=states,
        learning=used(before),
    )
    if learned_from is not None:
        check_apart(run.drawn.ids, learned_from)
    if out is None:
        folder = PerplexityFolder.of_settings(f"perplexity-{file_name(name)}-{file_name(spec)}", run, learned_from)
        resume = not overwrite
    else:
        folder = PerplexityFolder(out, run, learned_from)
    begin_together(folder, group, overwrite, resume)
    if run.finished:
        say(f"{len(run.finished)} of {windows} windows are in {folder.path} already; --overwrite measures them again")
    try:
        run_together(run, group, folder)
    except KeyboardInterrupt:
        if not run.finished or group.size > 1:
            raise
        folder.add_missing()
        say(
            f"{len(run.finished)} of {run.windows} windows are finished, reported and kept in "
            f"{folder.path}; go on with the same command{' and --resume' if out else ''}"
        )
    if group.rank:
        return
    result = perplexity_result(run)
    if len(run.finished) == run.windows:
        folder.save_result(result)
    if json:
        print(result.to_json())
    else:
        print_perplexity(result)
        print(folder.path)
    if len(run.finished) < run.windows:
        raise typer.Exit(130)


@app.command()
def memory(
    capture: CaptureArgument = None,
    codec: CodecOption = None,
    algo: AlgoOption = None,
    bits: BitsOption = None,
    option: OptionOption = None,
    sinks: SinksOption = 0,
    recent: RecentOption = 0,
    calibration: CalibrationOption = None,
    backend: BackendOption = None,
    json: JsonOption = False,
) -> None:
    """Counts the bytes of a compressed cache: in live buffers, by formula, and projected to longer contexts.

    Example: tq eval memory --codec turboquant-mse@4 --codec affine@4 --sinks 4 --recent 32
    """
    from tqcli.evaluation.memory import evaluate_memory
    from tqcli.report.terminal import print_memory

    plans = _plans(codec, algo, bits, option, sinks, recent)
    result = evaluate_memory(chosen_capture(capture), plans, chosen_calibration(calibration))
    print(result.to_json()) if json else print_memory(result)


def _plans(
    codec: list[str] | None,
    algo: str | None,
    bits: float | None,
    option: list[str] | None,
    sinks: int,
    recent: int,
    layer_bits: str = "",
) -> list[CompressionPlan]:
    from tqcli.compression.plan import CompressionPlan, parse_layer_bits

    chosen = chosen_codecs(codec, algo, bits, option, _DEFAULT)
    warn_of_waits(chosen)
    return [CompressionPlan(pair, parse_layer_bits(layer_bits), sinks, recent) for pair in chosen]
