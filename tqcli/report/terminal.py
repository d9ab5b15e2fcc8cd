"""Results as tables on a terminal."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tqcli.report.backends import backend_lines
from tqcli.report.figures import byte_size
from tqcli.report.schema import CodecResult, LayerResult, Metrics, Result

_DASH = "-"


def print_compress(result: Result) -> None:
    """One row a tensor of each layer, the totals, what was skipped and why."""
    codec = result.codecs[0]
    _print_basis(result)
    table = new_table("layer", "tensor", "codec", "center", *_BITS, *_ERROR, "on disk", "resident", "fp16", "ratio")
    for row in codec.layers:
        table.add_row(str(row.layer), row.tensor, row.codec, row.center or _DASH, *_compress_cells(row.metrics))
    table.add_section()
    for name, metrics in codec.by_tensor.items():
        table.add_row("all", name, "", "", *_compress_cells(metrics))
    table.add_row("all", "both", codec.codec, "", *_compress_cells(codec.total))
    print_table(table)
    print("Effective bits and ratio: of the bytes on disk, of all files in the total. Resident: of the live buffers.")
    print_remarks(result)


def print_distortion(result: Result) -> None:
    """One row a layer with the error of each codec's keys and values, then a summary of the codecs by bytes."""
    _print_basis(result)
    codecs = _by_bytes(result)
    names = [f"{_own(codec, tensor)}\n{tensor}" for codec in codecs for tensor in ("keys", "values")]
    table = new_table("layer", *names, title="Relative MSE of decoded vectors, ||x - x'||² / ||x||²")
    rows = [{(row.layer, row.tensor): row for row in codec.layers} for codec in codecs]
    for layer in sorted({layer for codec in rows for layer, _ in codec}):
        cells = [_mse(codec.get((layer, tensor))) for codec in rows for tensor in ("keys", "values")]
        table.add_row(str(layer), *cells)
    table.add_section()
    for label, reduce in (("median", statistics.median), ("worst", max)):
        cells = [_reduced(codec, tensor, reduce) for codec in codecs for tensor in ("keys", "values")]
        table.add_row(label, *cells)
    print_table(table)
    summary = new_table(
        "codec",
        "tensor",
        "center",
        *_BITS,
        "relative MSE",
        "95 % interval",
        "theory",
        "cosine",
        "worst",
        "ip bias",
        "ip slope",
        "d·variance",
        "theory",
        "ratio",
    )
    for codec in codecs:
        for tensor in codec.by_tensor:
            summary.add_row(
                _own(codec, tensor), tensor, _center(codec, tensor), *_distortion_cells(codec.by_tensor[tensor])
            )
    print_table(summary)
    print("Effective bits: all bytes of a tensor's live buffers. Theory: the codec's own expectation, scaled by the")
    print("energy left after centring. Worst: the largest error of one vector, relative to that vector.")
    print("Intervals: bootstrap over windows. ip: estimated against exact products of keys with captured queries, over")
    print("their norms; the variance times head_dim.")
    print_remarks(result)


def print_attention(result: Result) -> None:
    """One row a layer with the divergence of each codec's weights, then a summary of the codecs by bytes."""
    _print_basis(result)
    settings = result.settings
    codecs = _by_bytes(result)
    heads = [codec.codec.replace(" | ", "\n| ") for codec in codecs]
    table = new_table("layer", *heads, title="KL divergence of attention weights, nats")
    rows = [{row.layer: row.metrics for row in codec.layers} for codec in codecs]
    for layer in sorted({layer for codec in rows for layer in codec}):
        table.add_row(str(layer), *[_four(codec.get(layer, {}), "attention_kl") for codec in rows])
    print_table(table)
    measures = {"attention_kl": "KL", "attention_error": "output error", "logit_correlation": "logit corr."}
    kinds = [f"{text}\n{kind}" for text in measures.values() for kind in ("mean", "median", "worst (layer)")]
    bits = ("effective\nbits", "of\nkeys", "of\nvalues", "ratio")
    summary = new_table("codec", "center", *bits, *kinds, f"top-{settings['top_k']}\noverlap")
    for codec in codecs:
        sizes = [codec.total, codec.by_tensor["keys"], codec.by_tensor["values"]]
        center = ", ".join(sorted({row.center for row in codec.layers if row.center})) or _DASH
        summary.add_row(
            codec.codec.replace(" | ", "\n| "),
            center,
            *[number(size, "bits_effective", ".3f") for size in sizes],
            number(codec.total, "ratio", ".2f"),
            *[cell for name in measures for cell in _mean_median_worst(codec.total, name)],
            number(codec.total, "topk_overlap", ".3f"),
        )
    print_table(summary)
    print(
        f"Over {settings['queries']} of {settings['queries_captured']} captured query positions, those from "
        f"{settings['first_position']} on, and all heads; mean, median and worst are over layers."
    )
    print("KL: of the attention weights, exact against coded. Output error: ||o - o'||² / ||o||².")
    print("Logit corr.: of exact and coded logits within a query. Effective bits: all bytes of keys and values.")
    print_remarks(result)


def print_memory(result: Result) -> None:
    """One row a codec: bytes of one window, and projections."""
    _print_basis(result)
    tokens = result.dataset["tokens"]
    projected = sorted(
        int(key.rpartition("_")[2]) for key in result.codecs[0].total if key.startswith("bytes_nominal_")
    )
    heads = [f"{n // 1024}k tokens\nby formula" for n in projected]
    table = new_table(
        "codec", *_BITS, f"{tokens} tokens\nresident", "by formula", "fp16", "ratio", "peak while\nencoding", *heads
    )
    for codec in sorted(result.codecs, key=lambda c: c.total["bytes_resident"].value or 0):
        total = codec.total
        table.add_row(
            codec.codec,
            *_bits(total),
            *(size(total, name) for name in ("bytes_resident", "bytes_nominal", "bytes_fp16")),
            number(total, "ratio", ".2f"),
            size(total, "peak_bytes"),
            *(size(total, f"bytes_nominal_{n}") for n in projected),
        )
    fp16 = result.codecs[0].total
    table.add_section()
    table.add_row(
        "fp16",
        "16",
        "16.00",
        "",
        "",
        size(fp16, "bytes_fp16"),
        "1.00",
        "",
        *(size(fp16, f"bytes_fp16_{n}") for n in projected),
    )
    print_table(table)
    print(f"One cache of all captured layers. Resident: the live buffers of a {tokens}-token window, measured.")
    layers = new_table(
        "layer", "tensor", *[codec.codec for codec in result.codecs], "fp16", title=f"Resident, {tokens} tokens"
    )
    rows = [{(row.layer, row.tensor): row.metrics for row in codec.layers} for codec in result.codecs]
    for key in sorted({key for codec in rows for key in codec}):
        any_row = next(codec[key] for codec in rows if key in codec)
        cells = [size(codec[key], "bytes_resident") if key in codec else "skipped" for codec in rows]
        layers.add_row(str(key[0]), key[1], *cells, size(any_row, "bytes_fp16"))
    print_table(layers)
    print_remarks(result)


_BITS = ("bits", "effective")
_ERROR = ("relative MSE", "theory")


def _print_basis(result: Result) -> None:
    model, data, settings = result.model, result.dataset, result.settings
    if settings.get("decoded_from"):
        print(
            f"These vectors were decoded from {settings['decoded_from']}: errors below are on top of that codec's own."
        )
    print(
        f"{model['name']} ({model['model_type']}, run in {model['compute_dtype']}) on {data['spec']}: "
        f"{data['windows']} windows of {data['tokens']} tokens; {settings['sinks']} sinks, {settings['recent']} recent "
        f"tokens uncompressed; {result.environment.device}"
    )
    if calibration := settings.get("calibration"):
        learned = calibration["dataset"]
        print(
            f"Calibrated on {calibration['capture']}: {learned['windows']} windows of {learned['tokens']} tokens of "
            f"{learned['spec']}, seed {learned['seed']}"
        )


def _error(metrics: Metrics, name: str) -> str:
    """An error with five decimals, or two digits where those would be zeros."""
    value = metrics[name].value if name in metrics else None
    return _DASH if value is None else f"{value:.5f}" if value == 0 or value >= 1e-4 else f"{value:.1e}"


def print_remarks(result: Result) -> None:
    """Which back-ends were taken, what was left out, both with the reason, and what else is to be known."""
    for line in remark_lines(result):
        print(line)


def remark_lines(result: Result) -> Iterator[str]:
    """The lines of `print_remarks`."""
    yield from backend_lines(result.backends)
    for skipped in result.skipped_layers:
        yield f"not captured: layer {skipped.layer}: {skipped.reason}"
    for note in result.notes:
        yield f"note: {note}"
    for codec in result.codecs:
        for reason, tensors in _by_reason(codec).items():
            yield f"{codec.codec} skipped {tensors}: {reason}"
        for note in codec.notes:
            yield f"{codec.codec}: {note}"


def _by_reason(codec: CodecResult) -> dict[str, str]:
    reasons: dict[str, list[str]] = {}
    for skipped in codec.skipped:
        reasons.setdefault(skipped.reason, []).append(f"{skipped.tensor} of layer {skipped.layer}")
    return {r: t[0] if len(t) == 1 else f"{t[0]} and {len(t) - 1} more" for r, t in reasons.items()}


def _compress_cells(metrics: Metrics) -> list[str]:
    return [
        *_bits(metrics),
        _error(metrics, "relative_mse"),
        _error(metrics, "relative_mse_theory"),
        *(size(metrics, name) for name in ("bytes_disk", "bytes_resident", "bytes_fp16")),
        number(metrics, "ratio", ".2f"),
    ]


def _distortion_cells(metrics: Metrics) -> list[str]:
    mse = metrics.get("relative_mse")
    interval = _DASH
    if mse is not None and mse.ci_low is not None and mse.ci_high is not None:
        interval = " - ".join(f"{v:.5f}" if v >= 1e-4 else f"{v:.1e}" for v in (mse.ci_low, mse.ci_high))
    return [
        *_bits(metrics),
        _error(metrics, "relative_mse"),
        interval,
        _error(metrics, "relative_mse_theory"),
        number(metrics, "cosine", ".4f"),
        number(metrics, "worst_vector", ".3f"),
        number(metrics, "ip_bias", ".1e"),
        number(metrics, "ip_slope", ".4f"),
        _error(metrics, "ip_variance_d"),
        _error(metrics, "ip_variance_d_theory"),
        number(metrics, "ratio", ".2f"),
    ]


def _mean_median_worst(metrics: Metrics, name: str) -> list[str]:
    worst = metrics.get(f"{name}_worst_layer")
    layer = "" if worst is None or worst.value is None else f" ({worst.value:.0f})"
    return [_four(metrics, name), _four(metrics, f"{name}_median"), _four(metrics, f"{name}_worst") + layer]


def _four(metrics: Metrics, name: str) -> str:
    """Four decimals, or two digits where those would be zeros."""
    value = metrics[name].value if name in metrics else None
    return _DASH if value is None else f"{value:.4f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"


def _bits(metrics: Metrics) -> list[str]:
    return [number(metrics, "bits_nominal", ".4g"), number(metrics, "bits_effective", ".3f")]


def _mse(row: LayerResult | None) -> str:
    return "skipped" if row is None else _error(row.metrics, "relative_mse")


def _reduced(codec: CodecResult, tensor: str, reduce: Callable[[Iterable[float]], float]) -> str:
    metrics = [row.metrics["relative_mse"].value for row in codec.layers if row.tensor == tensor]
    values = [value for value in metrics if value is not None]
    return f"{reduce(values):.5f}" if values else _DASH


def _by_bytes(result: Result) -> list[CodecResult]:
    return sorted(result.codecs, key=lambda codec: codec.total["bytes_nominal"].value or 0)


def _own(codec: CodecResult, tensor: str) -> str:
    """The one of a pair of codecs that codes this tensor."""
    return codec.codec.split(" | ")[0 if tensor == "keys" else -1]


def _center(codec: CodecResult, tensor: str) -> str:
    return ", ".join(sorted({row.center for row in codec.layers if row.tensor == tensor and row.center})) or _DASH


def number(metrics: Metrics, name: str, form: str) -> str:
    """A metric's value in a format; a dash where there is none."""
    metric = metrics.get(name)
    return _DASH if metric is None or metric.value is None else format(metric.value, form)


def size(metrics: Metrics, name: str) -> str:
    """A metric's bytes with a unit; a dash where there are none."""
    metric = metrics.get(name)
    return _DASH if metric is None or metric.value is None else byte_size(metric.value)


def new_table(*columns: str, title: str | None = None) -> Table:
    """An empty table of the common look; names to the left, numbers to the right."""
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        left = column in ("layer", "tensor", "codec", "center", "operation", "kernel", "file")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    return table


def print_table(shown: Table) -> None:
    """Prints the `table_text`."""
    print(table_text(shown))


def table_text(shown: Table) -> str:
    """A table at its own width, whatever the terminal's: a cut number is worse than a long line.

    Cells are no markup: nothing in a name is taken for a colour or a picture.
    """
    title = [] if shown.title is None else [str(shown.title)]
    shown.title = None
    out = StringIO()
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "force_terminal": on_terminal}
    width = Console(file=out, width=10_000, **plain).measure(shown).maximum
    Console(file=out, width=width, **plain).print(shown)
    return "\n".join([*title, out.getvalue().rstrip("\n")])
