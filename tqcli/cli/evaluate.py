"""`tq eval`: what codecs do to a capture, measured without writing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tqcli.cli.arguments import (
    AlgoOption,
    BitsOption,
    CalibrationOption,
    CaptureArgument,
    JsonOption,
    OptionOption,
    RecentOption,
    SinksOption,
    chosen_calibration,
    chosen_capture,
    chosen_codecs,
)

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
def memory(
    capture: CaptureArgument = None,
    codec: CodecOption = None,
    algo: AlgoOption = None,
    bits: BitsOption = None,
    option: OptionOption = None,
    sinks: SinksOption = 0,
    recent: RecentOption = 0,
    calibration: CalibrationOption = None,
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
    codec: list[str] | None, algo: str | None, bits: float | None, option: list[str] | None, sinks: int, recent: int
) -> list[CompressionPlan]:
    from tqcli.compression.plan import CompressionPlan

    chosen = chosen_codecs(codec, algo, bits, option, _DEFAULT)
    return [CompressionPlan(pair, sinks=sinks, recent=recent) for pair in chosen]
