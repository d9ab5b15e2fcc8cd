"""Numbers as text, the same in every kind of report."""

from __future__ import annotations

import math

from tqcli.report.schema import Metric

DASH = "–"
"""Where there is no number."""
_SCALES = {"same_top1": 100.0, "rms_delta_p": 100.0}
"""Shares that are shown in percent."""
_FEW, _MANY = 1e-4, 1e5
"""Outside of these a number has an exponent."""
_NEARLY = 1e-3
"""What a correlation that shows more decimals lacks to 1 at most."""


def figure(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent where that is short enough."""
    if value is None:
        return DASH
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    if not _FEW <= abs(value) < _MANY:
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{max(0, digits - 1 - int(exponent))}f}"


def byte_size(value: float | None) -> str:
    """Bytes in the largest decimal unit up to GB that leaves 1 or more."""
    if value is None or not math.isfinite(value):
        return figure(value)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def value_text(name: str, unit: str, value: float | None) -> str:
    """A metric's number as reports show it; its unit is with it only where it varies, as for bytes."""
    if value is None or not math.isfinite(value):
        return figure(value)
    if unit == "bytes":
        return byte_size(value)
    if unit == "%":
        return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"
    if name in _SCALES:
        return f"{_SCALES[name] * value:.2f}"
    if unit in ("bits/element", "x", "dB"):
        return f"{value:.3f}" if unit == "bits/element" else f"{value:.2f}"
    if unit == "layer":
        return f"{value:.0f}"
    if name in ("logit_correlation", "cosine", "topk_overlap"):
        return f"{value:.6f}" if 0 < 1 - value < _NEARLY else f"{value:.4f}"
    return figure(value)


def interval_text(name: str, unit: str, low: float | None, high: float | None) -> str:
    """`low to high`; empty where there is no interval."""
    if low is None or high is None:
        return ""
    return f"{value_text(name, unit, low)} to {value_text(name, unit, high)}"


def with_interval(name: str, metric: Metric) -> str:
    """The number with its interval in brackets, where it has one."""
    interval = interval_text(name, metric.unit, metric.ci_low, metric.ci_high)
    return value_text(name, metric.unit, metric.value) + (f" ({interval})" if interval else "")


def times(ratio: float | None) -> str:
    """How many times something is something else."""
    if ratio is None or math.isnan(ratio):
        return DASH
    return f"{ratio:.1f}x" if ratio < 100 else f"{figure(ratio)}x"
