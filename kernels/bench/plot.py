"""One figure an operation: time against size, both logarithmic. SVG by hand; PNG by matplotlib, where it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tqcli.kernels.bench.measure import Measured

_COLOURS = ("#c0392b", "#2c3e50", "#2980b9", "#27ae60", "#8e44ad", "#d68910", "#7f8c8d")
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 720, 440, 70, 40, 20, 50
Line = list[tuple[float, float, float, float]]
"""Elements, and microseconds: the median, the first quartile and the third."""


def plot(measured: Sequence[Measured], title: str, folder: Path) -> list[Path]:
    """Writes OPERATION.svg and, where matplotlib is installed, OPERATION.png to a folder; returns what was written."""
    lines = lines_of(measured)
    if not lines:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    svg = folder / f"{measured[0].operation}.svg"
    svg.write_text(svg_of(lines, title), encoding="utf-8")
    if find_spec("matplotlib") is None:
        return [svg]
    png = svg.with_suffix(".png")
    _write_png(lines, title, png)
    return [svg, png]


def lines_of(measured: Sequence[Measured]) -> dict[str, Line]:
    """What is drawn, by implementation."""
    lines: dict[str, Line] = {}
    for of in measured:
        for timed in of.timed:
            if timed.microseconds:
                first, half, third = timed.microseconds
                lines.setdefault(timed.implementation, []).append((of.elements, half, first, third))
    return lines


def svg_of(lines: dict[str, Line], title: str) -> str:
    """The figure as SVG text: a line an implementation, a bar between the quartiles at each size."""
    points = [point for line in lines.values() for point in line]
    x_ends = _decades([point[0] for point in points])
    y_ends = _decades([y for point in points for y in point[1:]])

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - x_ends[0]) / (x_ends[1] - x_ends[0]) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return (
            _HEIGHT - _BOTTOM - (math.log10(value) - y_ends[0]) / (y_ends[1] - y_ends[0]) * (_HEIGHT - _TOP - _BOTTOM)
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH / 2, 22, title, "middle", 14),
        _text(_WIDTH / 2, _HEIGHT - 12, "elements", "middle"),
        _text(12, _TOP - 8, "microseconds a call", "start"),
    ]
    for power in range(x_ends[0], x_ends[1] + 1):
        at = x(10**power)
        parts += [_line([(at, _TOP), (at, _HEIGHT - _BOTTOM)], "#dddddd")]
        parts += [_text(at, _HEIGHT - _BOTTOM + 18, _power(power), "middle")]
    for power in range(y_ends[0], y_ends[1] + 1):
        at = y(10**power)
        parts += [
            _line([(_LEFT, at), (_WIDTH - _RIGHT, at)], "#dddddd"),
            _text(_LEFT - 6, at + 4, _power(power), "end"),
        ]
    for n, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[n % len(_COLOURS)]
        parts.append(_line([(x(of[0]), y(of[1])) for of in line], colour, 2))
        for elements, half, first, third in line:
            parts.append(_line([(x(elements), y(first)), (x(elements), y(third))], colour, 4))
            parts.append(f'<circle cx="{x(elements):.1f}" cy="{y(half):.1f}" r="3" fill="{colour}"/>')
        parts.append(_text(_LEFT + 12, _TOP + 18 + 16 * n, name, "start", colour=colour))
    return "\n".join([*parts, "</svg>", ""])


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _power(power: int) -> str:
    return f"{10**power:,}".replace(",", " ") if 0 <= power <= 4 else f"1e{power}"


def _line(points: Sequence[tuple[float, float]], colour: str, width: int = 1) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int = 12, colour: str = "#222222") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
    return f"<text {place}>{escape(text)}</text>"


def _write_png(lines: dict[str, Line], title: str, file: Path) -> None:
    import_module("matplotlib").use("Agg")
    pyplot = import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(7.2, 4.4))
    for n, (name, line) in enumerate(lines.items()):
        elements, half, first, third = ([point[k] for point in line] for k in range(4))
        colour = _COLOURS[n % len(_COLOURS)]
        axes.loglog(elements, half, marker="o", markersize=3, color=colour, label=name)
        axes.fill_between(elements, first, third, color=colour, alpha=0.2)
    axes.set(title=title, xlabel="elements", ylabel="microseconds a call")
    axes.grid(True, color="#dddddd")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
