"""`tq compress` and `tq decompress`: a capture to packed codes, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tqcli.cli.arguments import (
    BackendOption,
    BitsOption,
    CalibrationOption,
    CaptureArgument,
    JsonOption,
    LayerBitsOption,
    OptionOption,
    OverwriteOption,
    RecentOption,
    SinksOption,
    chosen_calibration,
    chosen_capture,
    codec_of,
    say,
    warn_of_waits,
)
from tqcli.errors import InputError

if TYPE_CHECKING:
    from tqcli.codecs.spec import CodecPair


def compress(
    capture: CaptureArgument = None,
    algo: Annotated[str, typer.Option("--algo", help="Codec, for example turboquant-mse.")] = "turboquant-mse",
    bits: BitsOption = None,
    value_algo: Annotated[
        str | None, typer.Option("--value-algo", help="Codec of the values. Default: as keys.")
    ] = None,
    value_bits: Annotated[
        float | None, typer.Option("--value-bits", help="Bits of the values. Default: as keys.")
    ] = None,
    option: OptionOption = None,
    layer_bits: LayerBitsOption = "",
    sinks: SinksOption = 0,
    recent: RecentOption = 0,
    calibration: CalibrationOption = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the codec's randomness. Default: 0.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write. Default: encoded/CAPTURE-CODEC.")] = None,
    overwrite: OverwriteOption = False,
    backend: BackendOption = None,
    json: JsonOption = False,
) -> None:
    """Compresses a capture to a folder of packed codes and tells, layer by layer, what that costs and saves.

    Example: tq compress --algo turboquant-mse --bits 4 --value-bits 2 --option scale=unbiased
    """
    from tqcli.compression.plan import CompressionPlan, parse_layer_bits
    from tqcli.evaluation.compress import compress as run
    from tqcli.report.terminal import print_compress

    if bits is None and "@" not in algo and algo == "turboquant-mse":
        say("no --bits was named; using 4")
        bits = 4
    options = [*(option or []), *([] if seed is None else [f"seed={seed}"])]
    pair = _pair(codec_of(algo, bits, options), algo, value_algo, value_bits)
    warn_of_waits([pair])
    plan = CompressionPlan(pair, parse_layer_bits(layer_bits), sinks, recent)
    source = chosen_capture(capture)
    folder = out or Path("encoded") / f"{source.folder.resolve().name}-{_file_name(str(pair))}"
    result = run(source, plan, folder, calibration=chosen_calibration(calibration), overwrite=overwrite)
    if json:
        print(result.to_json())
        return
    print_compress(result)
    print(folder)


def _pair(pair: CodecPair, algo: str, value_algo: str | None, value_bits: float | None) -> CodecPair:
    """The codecs of keys and values, where values may have their own."""
    from tqcli.codecs.spec import CodecPair, find_codec, parse_codec

    if value_algo is None and value_bits is None:
        return pair
    if "|" in algo or "/" in algo.partition(",")[0]:
        given = f"--value-algo {value_algo}" if value_algo is not None else f"--value-bits {value_bits:g}"
        raise InputError(f"--algo {algo!r} names the values' codec already; leave out {given}")
    if value_algo is None:
        return parse_codec(str(CodecPair(pair.keys, pair.values.with_bits(value_bits or 0))))
    if "@" in value_algo and value_bits is not None:
        raise InputError(f"--value-algo {value_algo} names its bits already; leave out --value-bits {value_bits:g}")
    name, comma, options = value_algo.partition(",")
    bits = value_bits
    if bits is None and "@" not in name and find_codec(name).bits_allowed:
        bits = pair.values.bits
    return parse_codec(f"{pair.keys} | {name}{'' if bits is None else f'@{bits:g}'}{comma}{options}")


def decompress(
    encoded: Annotated[Path, typer.Argument(help="A folder that tq compress wrote.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")],
    stages: Annotated[
        int | None, typer.Option("--stages", help="Stages of turboquant-rvq to decode: 1 or 2. Default: as compressed.")
    ] = None,
    overwrite: OverwriteOption = False,
    backend: BackendOption = None,
    json: JsonOption = False,
) -> None:
    """Decodes an encoded folder to a capture folder, without queries.

    Example: tq decompress encoded/smollm2-135m-sample-turboquant-mse@4 --out decoded
    """
    import json as json_module

    from tqcli.compression.decompress import decompress as run
    from tqcli.kernels.runtime import used
    from tqcli.report.backends import backend_lines

    before = used()
    manifest = run(encoded, out, stages=stages, overwrite=overwrite, on_clipped=say)
    backends = used(before)
    if json:
        document = manifest.model_dump(mode="json") | {"backends": [vars(use) for use in backends]}
        print(json_module.dumps(document, indent=1))
        return
    print(f"decoded {len(manifest.shards)} windows of {manifest.dataset.tokens} tokens from {manifest.decoded_from}")
    for line in backend_lines(backends):
        print(line)
    print(out)


def _file_name(codec: str) -> str:
    return codec.replace(" | ", "+").replace("/", "-").replace(",", "_")
