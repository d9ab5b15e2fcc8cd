"""Arguments and options that several commands share, and their defaults."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tqcli.distributed import is_first
from tqcli.errors import InputError
from tqcli.streams import tell

_SUFFIXES = (".gguf", ".txt", ".jsonl", ".parquet")

if TYPE_CHECKING:
    from tqcli.capture.store import Capture
    from tqcli.codecs.spec import CodecPair
    from tqcli.models import LoadedModel

CaptureArgument = Annotated[
    Path | None, typer.Argument(metavar="CAPTURE", help="A folder that tq capture wrote. Default: the newest one.")
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="A short name, a folder, a .gguf file or a hub id. Default: smollm2-135m."),
]
DatasetOption = Annotated[
    str | None,
    typer.Option("--dataset", help="sample, a .txt, .jsonl or .parquet file, or a hub's name. Default: sample."),
]
DtypeOption = Annotated[
    str | None,
    typer.Option("--dtype", help="float32, float16 or bfloat16 to run in. Default: float32 on a CPU, else as stored."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
AlgoOption = Annotated[str | None, typer.Option("--algo", help="Codec, short for --codec ALGO@BITS.")]
BitsOption = Annotated[float | None, typer.Option("--bits", help="Bits an element, with --algo.")]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="An option of the codec, with --algo; may be repeated."),
]
SinksOption = Annotated[int, typer.Option("--sinks", help="Leading tokens that stay uncompressed.")]
RecentOption = Annotated[int, typer.Option("--recent", help="Most recent tokens that stay uncompressed.")]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        metavar="CAPTURE",
        help="A capture of another text, for codecs to learn means and codebooks from. "
        "Default: each cache's own first 64 tokens.",
    ),
]
LayerBitsOption = Annotated[
    str, typer.Option("--layer-bits", help="Other bits for some layers: 0:4,29:4/8 (keys/values).")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what tq wrote to that folder before.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on with what an earlier run of the same settings wrote to that folder.")
]


def _name_backend(backend: str | None) -> str | None:
    """Called for every command line with the option, given or not. Raises `InputError` for one that isn't here.

    Of TQ_BACKEND too: whether a command comes to an operation that looks at it depends on the codec.
    """
    from tqcli.kernels.runtime import set_backend
    from tqcli.kernels.runtime.backend import preferred

    set_backend(backend)
    preferred()
    return backend


BackendOption = Annotated[
    Literal["auto", "metal", "cuda", "mlx"] | None,
    typer.Option(
        "--backend",
        callback=_name_backend,
        help="What codes and decodes: the GPU's kernels or plain MLX operations. Default: TQ_BACKEND, else auto.",
    ),
]


def say(message: str) -> None:
    """One line for the user on stderr, once where several processes share the work."""
    if is_first():
        tell(message)


def named_folder(text: str) -> Path:
    """The folder of an option. Raises `InputError` for an empty name, which a path takes for the working folder."""
    if not text.strip():
        raise InputError("a folder's name is empty; name one, . for the working folder, or leave the option out")
    return Path(text)


def named_model(model: str | None) -> str:
    """The model that was named, or the default, which is then told on stderr."""
    from tqcli.models.packaged import DEFAULT_MODEL

    if model is None:
        say(f"no MODEL was named; using {DEFAULT_MODEL}")
    return model or DEFAULT_MODEL


def named_dataset(dataset: str | None) -> str:
    """The text that was named, or the sample, which is then told on stderr."""
    if dataset is None:
        say("no --dataset was named; using sample")
    return dataset or "sample"


def file_name(name: str) -> str:
    """A file name for a model or data set: the last part of a path or id, without the suffix of a file."""
    path = Path(name).expanduser()
    last = path.resolve().name if path.exists() else name.rstrip("/").rpartition("/")[2]
    last = Path(last).stem if last.endswith(_SUFFIXES) else last
    return re.sub(r"[^\w.-]+", "-", last).strip("-") or "unnamed"


def load_model(name: str, dtype: str | None) -> LoadedModel:
    """The model, ready to run; says so where it would run slowly for want of a BLAS."""
    from tqcli import blas
    from tqcli.models import load

    loaded = load(name, dtype)
    if loaded.compute_dtype == "float32" and (warning := blas.warning()):
        say(warning)
    return loaded


def chosen_capture(folder: Path | None) -> Capture:
    """The capture that was named, or the newest under captures/, which is then told on stderr."""
    from tqcli.capture.store import newest_capture, open_capture

    if folder is None:
        folder = newest_capture()
        say(f"using the newest capture, {folder}")
    return open_capture(folder)


def warn_of_waits(pairs: Iterable[CodecPair]) -> None:
    """Says which codecs take minutes to learn."""
    for pair in pairs:
        for tensor in ("keys", "values"):
            if patience := pair.of(tensor).build(tensor).patience:
                say(f"{pair}: {patience}")
                break


def chosen_calibration(folder: Path | None) -> Capture | None:
    """The calibration capture, if one is named."""
    from tqcli.capture.store import open_capture

    return None if folder is None else open_capture(folder)


def codec_of(algo: str, bits: float | None, options: list[str] | None) -> CodecPair:
    """The codec of --algo, --bits and --option."""
    from tqcli.codecs.spec import parse_codec

    if "@" in algo and bits is not None:
        raise InputError(f"--algo {algo} names its bits already; leave out --bits {bits:g}")
    if "|" in algo and (bits is not None or options):
        given = f"--bits {bits:g}" if bits is not None else f"--option {(options or [''])[0]}"
        raise InputError(f"--algo {algo!r} names two codecs; write bits and options inside it instead of {given}")
    name, comma, rest = algo.partition(",")
    text = algo if bits is None else f"{name}@{bits:g}{comma}{rest}"
    return parse_codec(",".join([text, *(options or [])]))


def chosen_codecs(
    codecs: list[str] | None, algo: str | None, bits: float | None, options: list[str] | None, default: list[str]
) -> list[CodecPair]:
    """The codecs of --codec, and that of --algo and --bits; `default` where none is named."""
    from tqcli.codecs.spec import parse_codec

    if algo is None and (bits is not None or options):
        raise InputError(f"--{'bits' if bits is not None else 'option'} goes with --algo; name one")
    chosen = [parse_codec(text) for text in codecs or []]
    if algo is not None:
        chosen.append(codec_of(algo, bits, options))
    if not chosen:
        say(f"no --codec was named; using {' and '.join(default)}")
        chosen = [parse_codec(text) for text in default]
    if len({str(codec) for codec in chosen}) < len(chosen):
        raise InputError(f"a codec is named twice among {', '.join(map(str, chosen))}; leave one out")
    return chosen
