"""The rate-distortion pictures of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tqcli.report.compared import Compared, Family, families
from tqcli.report.figures import figure, value_text, with_interval
from tqcli.report.plot import LINE, SHAPES, Line, Marker, Places, Plot, Point, Scale, cut, marker_path
from tqcli.report.run import RunResult
from tqcli.report.schema import Metric, Metrics

_COLOURS = 8
_MOST_BITS = 1000
"""More an element, or none that is a number, has no place on an axis."""
_LEFT, _TOP, _BOTTOM, _RIGHT = 76.0, 14.0, 46.0, 256.0


@dataclass(frozen=True)
class _Measured:
    """A family's point: one codec with its bits and the measure."""

    codec: Compared
    bits: float
    metric: Metric
    theory: float | None = None
    rechunked: float | None = None

    @property
    def value(self) -> float:
        return self.metric.value if self.metric.value is not None else math.nan


def divergence_picture(result: RunResult, codecs: list[Compared]) -> Plot | None:
    """Effective bits against mean KL with the floors; None where no codec has both."""
    measure = result.measures.get("perplexity")
    if measure is None:
        return None
    found = _points(families(codecs), lambda codec: codec.totals.get("perplexity", {}), "kl_mean")
    floors = [
        (codec.name, metric.value)
        for codec in codecs
        if codec.floor and (metric := codec.total("perplexity", "kl_mean")) and metric.value is not None
    ]
    rechunked = measure.baseline.get("kl_mean_rechunked")
    if rechunked and rechunked.value is not None:
        floors.append(("uncompressed, re-chunked", rechunked.value))
    picture = _picture(
        "kl",
        "Mean KL divergence over effective bits",
        "mean KL, nats",
        found,
        "kl_mean",
        floors,
        900,
    )
    if picture and any(point.rechunked for _, points in found for point in points):
        picture.notes.append("Short bars: a codec's own floor, the mean KL between runs in steps of other lengths.")
    return picture


def distortion_pictures(result: RunResult, codecs: list[Compared]) -> list[Plot]:
    """Effective bits against relative MSE, of keys and of values, with the bound and the codecs' own theory."""
    if "distortion" not in result.measures:
        return []
    plots = []
    for tensor in ("keys", "values"):
        found = _points(families(codecs, tensor), partial(_distortion, tensor), "relative_mse")
        title = f"{tensor.capitalize()}: relative MSE over effective bits"
        plot = _picture(f"mse-{tensor}", title, "relative MSE", found, "relative_mse", [], 900, bound=True)
        if plot:
            plots.append(plot)
    return plots


def _distortion(tensor: str, codec: Compared) -> Metrics:
    return codec.tensors.get(("distortion", tensor), {})


def _points(
    of_families: list[Family], of: Callable[[Compared], Metrics], metric: str
) -> list[tuple[Family, list[_Measured]]]:
    """By family, what has bits and a value; nothing of what codes nothing."""
    found = []
    for family in of_families:
        points = []
        for codec in family.members:
            metrics = of(codec)
            bits, value = metrics.get("bits_effective"), metrics.get(metric)
            if not bits or bits.value is None or not value or value.value is None:
                continue
            if not abs(bits.value) <= _MOST_BITS:
                continue
            theory, again = metrics.get(f"{metric}_theory"), metrics.get(f"{metric}_rechunked")
            points.append(
                _Measured(codec, bits.value, value, theory.value if theory else None, again.value if again else None)
            )
        if points:
            found.append((family, sorted(points, key=lambda point: point.bits)))
    return found


def _picture(
    ident: str,
    title: str,
    y_label: str,
    found: list[tuple[Family, list[_Measured]]],
    metric: str,
    floors: list[tuple[str, float]],
    width: float,
    bound: bool = False,
) -> Plot | None:
    every = [point for _, points in found for point in points]
    placed = [point for point in every if 0 < point.value < math.inf]
    if not placed:
        return None
    height = max(420.0, _TOP + _BOTTOM + LINE * (len(found) + len(floors) + 2))
    frame = (_LEFT, _TOP, width - _RIGHT, height - _BOTTOM)
    scale = Scale.around(frame, [p.bits for p in every], [p.value for p in placed], [value for _, value in floors])
    plot = Plot(ident, title, "", "effective bits an element", y_label, width, height, frame)
    plot.x_ticks, plot.y_ticks = scale.x_ticks(), scale.y_ticks()
    places = Places((_LEFT, 2.0, width - 2, height - _BOTTOM - 2))
    _rules(plot, places, scale, floors)
    limit = _bound(plot, places, scale) if bound else []
    for index, (family, points) in enumerate(found):
        _draw(plot, places, scale, index, family, points, metric)
    named = [
        places.name(
            cut(text := family.label + (" (control)" if family.control else "")),
            text,
            [(scale.x(p.bits), scale.y(p.value)) for p in reversed(points)],
        )
        for family, points in found
    ]
    if limit:
        named.append(places.name("bound 4^-b", "Shannon's bound for Gaussian vectors", limit))
    plot.labels += [label for label in named if label]
    plot.lines += places.leaders
    labels, leaders = places.beside(width - _RIGHT + 14, _TOP + LINE / 2, height - _BOTTOM)
    plot.labels += labels
    plot.lines += leaders
    values, bits = [point.value for point in placed], [point.bits for point in every]
    plot.description = (
        f"{len(every)} codecs from {min(bits):.2f} to {max(bits):.2f} effective bits; "
        f"{y_label} from {figure(min(values))} to {figure(max(values))}. The numbers are in the table of codecs."
    )
    for point in every:
        if point.value == 0:
            plot.notes.append(f"{point.codec.name} is exact: 0, at the lower edge.")
        elif not math.isfinite(point.value):
            plot.notes.append(f"{point.codec.name}: {figure(point.value)}, at the edge.")
    return plot


def _rules(plot: Plot, places: Places, scale: Scale, floors: list[tuple[str, float]]) -> None:
    """Floors as horizontal lines, those at one height with one label; those below the picture in words."""
    left, _, right, _ = scale.frame
    shown: dict[int, list[tuple[str, float]]] = {}
    for name, value in floors:
        if scale.inside(value):
            shown.setdefault(round(scale.y(value) / 8), []).append((name, value))
        else:
            plot.notes.append(f"Below the picture: {name}, {figure(value)}.")
    for group in shown.values():
        y = scale.y(group[0][1])
        points = [(left, y), (right, y)]
        plot.lines.append(Line(points, "floor"))
        places.cross(points)
        text = f"{', '.join(name for name, _ in group)}: {figure(group[0][1], 2)}"
        places.column.append((y, cut(text), text, None))


def _bound(plot: Plot, places: Places, scale: Scale) -> list[Point]:
    """Draws Shannon's bound for a Gaussian source, 4^-b, as far as it lies in the picture; points on it."""
    low, high = (-math.log(value, 4) for value in reversed(scale.values))
    start, end = max(low, scale.bits[0]), min(high, scale.bits[1])
    plot.notes.append(
        "Bound: 4^-b, the least relative MSE at which b bits an element can describe Gaussian vectors (Shannon). "
        "The error is relative to all of a vector's energy: codecs that take out a mean can lie below."
    )
    if start >= end:
        plot.notes.append("Here the bound lies outside of the picture.")
        return []
    steps = 8
    along = [start + (end - start) * step / steps for step in range(steps + 1)]
    points = [(scale.x(bits), scale.y(4.0**-bits)) for bits in along]
    plot.lines.append(Line(points, "floor"))
    places.cross(points)
    return points[1:-1]


def _draw(
    plot: Plot,
    places: Places,
    scale: Scale,
    index: int,
    family: Family,
    points: list[_Measured],
    metric: str,
) -> None:
    colour = f"c{index % _COLOURS}" + (" control" if family.control else "")
    shape = SHAPES[index % len(SHAPES)]
    at = [(scale.x(point.bits), scale.y(point.value)) for point in points]
    if len(at) > 1:
        plot.lines.append(Line(at, f"{colour} curve"))
        places.cross(at)
    theory = [
        (scale.x(p.bits), scale.y(p.theory)) for p in points if p.theory and p.theory > 0 and scale.inside(p.theory)
    ]
    if len(theory) > 1:
        plot.lines.append(Line(theory, f"{colour} theory"))
    elif theory:
        (x, y), *_ = theory
        plot.lines.append(Line([(x - 9, y), (x + 9, y)], f"{colour} theory"))
        places.cross([(x - 9, y), (x + 9, y)])
    for point, (x, y) in zip(points, at, strict=True):
        places.take((x, y))
        whisker = _whisker(scale, point, x, colour)
        plot.lines += whisker
        for line in whisker[:1]:
            places.cross(line.points)
        if point.rechunked and scale.inside(point.rechunked):
            again = scale.y(point.rechunked)
            plot.lines.append(Line([(x - 7, again), (x + 7, again)], f"{colour} again"))
            places.cross([(x - 7, again), (x + 7, again)])
        bits = value_text("", "bits/element", point.bits)
        told = f"{point.codec.name}: {bits} effective bits, {with_interval(metric, point.metric)}"
        if point.theory is not None:
            told += f", theory {figure(point.theory)}"
        plot.markers.append(Marker(marker_path(shape, x, y), colour, told))


def _whisker(scale: Scale, point: _Measured, x: float, colour: str) -> list[Line]:
    low, high = point.metric.ci_low, point.metric.ci_high
    if low is None or high is None:
        return []
    bottom, top = scale.y(low), scale.y(high)
    return [
        Line([(x, bottom), (x, top)], f"{colour} whisker"),
        *(Line([(x - 3, y), (x + 3, y)], f"{colour} whisker") for y in (bottom, top)),
    ]
