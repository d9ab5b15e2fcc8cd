"""The result of `tq eval perplexity` as tables on a terminal."""

from __future__ import annotations

from tqcli.report.schema import CodecResult, Metrics, Result
from tqcli.report.terminal import new_table, number, print_remarks, print_table, size

_SMALL_KL = 1e-4
"""Below it five decimals tell too little."""


def print_perplexity(result: Result) -> None:
    """One row a codec, sorted by bytes, under the uncompressed model's; then one a layer, where that was asked for."""
    model, data, settings = result.model, result.dataset, result.settings
    print(
        f"{model['name']} ({model['model_type']}, run in {model['compute_dtype']}) on {data['spec']}: "
        f"{settings['windows']} windows of {data['tokens']} tokens, {settings['scored_tokens']} scored; "
        f"{settings['sinks']} sinks, {settings['recent']} recent tokens uncompressed, in {settings['cache_dtype']}; "
        f"steps of {settings['chunk']}; {result.environment.device}"
        + (f"; shared by {settings['processes']} processes" if settings["processes"] > 1 else "")
    )
    floors = ("KL\nre-chunked",) if settings["rechunk"] else ()
    heads = ("perplexity", "change %", "95 % interval", "KL\nmean", "95 % interval", "KL\n99.9 %", "KL\nmedian")
    shown = new_table(
        "codec",
        "effective\nbits",
        "cache\nresident",
        *heads,
        *floors,
        "same\ntop-1 %",
        "RMS\nΔp %",
        "bits per\nbyte",
        "tokens/s",
    )
    base = result.baseline
    shown.add_row(
        "uncompressed",
        "",
        size(base, "bytes_resident"),
        number(base, "ppl", ".3f"),
        *[""] * 6,
        *([number(base, "kl_mean_rechunked", ".1e")] if floors else []),
        "",
        "",
        number(base, "bits_per_byte", ".4f"),
        number(base, "tokens_per_second", ".0f"),
    )
    shown.add_section()
    for codec in sorted(result.codecs, key=lambda codec: codec.total["bytes_resident"].value or 0):
        shown.add_row(*_row(codec, bool(floors)))
    print_table(shown)
    print(
        "Perplexity: of the scored tokens. KL: of the next token's distribution, uncompressed against coded, in nats."
    )
    print("Same top-1: tokens whose likeliest successor stays. Δp: change of the right token's probability. Intervals:")
    print("paired bootstrap over windows. tokens/s: reading, without the output head.")
    if floors:
        steps = f"steps of {settings['rechunk']} tokens from that in steps of {settings['chunk']}"
        print(f"Re-chunked: mean KL of a run in {steps}: float noise, which flips codes.")
        print("identity and fp16 are floors as well: of the cache itself, and of 16 bits.")
    layers = {row.layer for codec in result.codecs for row in codec.layers}
    if layers:
        by_layer = new_table(
            "layer", *[f"{c.codec}\n{what}" for c in result.codecs for what in ("KL mean", "change %")]
        )
        rows = [{row.layer: row.metrics for row in codec.layers} for codec in result.codecs]
        for layer in sorted(layers):
            cells = [
                number(codec.get(layer, {}), name, form)
                for codec in rows
                for name, form in (("kl_mean", ".2e"), ("ppl_delta_percent", "+.3f"))
            ]
            by_layer.add_row(str(layer), *cells)
        print_table(by_layer)
        print("Each layer compressed alone.")
    print_remarks(result)


def _row(codec: CodecResult, floors: bool) -> list[str]:
    total = codec.total
    return [
        codec.codec.replace(" | ", "\n| "),
        number(total, "bits_effective", ".3f"),
        size(total, "bytes_resident"),
        number(total, "ppl", ".3f"),
        number(total, "ppl_delta_percent", "+.2f"),
        _interval(total, "ppl_delta_percent", "+.2f"),
        number(total, "kl_mean", _kl_form(total, "kl_mean", ".5f")),
        _interval(total, "kl_mean", _kl_form(total, "kl_mean", ".5f")),
        number(total, "kl_p99_9", _kl_form(total, "kl_p99_9", ".3f")),
        number(total, "kl_p50", _kl_form(total, "kl_p50", ".5f")),
        *([number(total, "kl_mean_rechunked", ".1e")] if floors else []),
        number(total, "same_top1", ".2%").rstrip("%"),
        number(total, "rms_delta_p", ".2%").rstrip("%"),
        number(total, "bits_per_byte", ".4f"),
        number(total, "tokens_per_second", ".0f"),
    ]


def _kl_form(metrics: Metrics, name: str, usual: str) -> str:
    """Decimals as usual, an exponent for a divergence of which they would show nothing."""
    return ".1e" if 0 < (metrics[name].value or 0) < _SMALL_KL else usual


def _interval(metrics: Metrics, name: str, form: str) -> str:
    metric = metrics.get(name)
    if metric is None or metric.ci_low is None or metric.ci_high is None:
        return "-"
    return f"{metric.ci_low:{form}} - {metric.ci_high:{form}}"
