"""Geometry of a picture with effective bits across and a logarithmic measure upwards: ticks, shapes, free places.

Everything is in the units of the SVG's view box; what draws it is templates/plot.svg.j2.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from itertools import pairwise, product

from tqcli.report.figures import figure

CHARACTER, LINE = 7.3, 15.0
"""Width that a character of a label is taken to have, and the height of its line."""
SHAPES = ("circle", "square", "triangle", "diamond", "inverted", "cross", "plus")
_RADIUS = 4.5
_LEAST, _MOST, _LARGEST = sys.float_info.min, sys.float_info.max, sys.float_info.max_10_exp
"""Ends of any axis, and the largest power of ten that is a number."""
_DECADES = 7.0
"""More of them than this no picture has: what lies lower is told in words."""

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class Tick:
    """A line of the grid with its number."""

    at: float
    label: str


@dataclass(frozen=True)
class Label:
    """Text in the picture; `whole` is what was cut."""

    x: float
    y: float
    text: str
    whole: str
    cls: str = ""


@dataclass(frozen=True)
class Line:
    """A path of straight pieces."""

    points: list[Point]
    cls: str

    @property
    def d(self) -> str:
        """As SVG has it."""
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in self.points)


@dataclass(frozen=True)
class Marker:
    """One codec's point, with what its tooltip says."""

    d: str
    cls: str
    title: str


@dataclass
class Plot:
    """A picture, ready to be drawn."""

    ident: str
    title: str
    description: str
    x_label: str
    y_label: str
    width: float
    height: float
    frame: Box
    x_ticks: list[Tick] = field(default_factory=list)
    y_ticks: list[Tick] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences under it."""


@dataclass(frozen=True)
class Scale:
    """From bits to x and from a value above 0 to y, both within the frame."""

    frame: Box
    bits: tuple[float, float]
    values: tuple[float, float]

    @classmethod
    def around(cls, frame: Box, bits: list[float], values: list[float], floors: list[float]) -> Scale:
        """A scale that shows these finite bits and values, and of the floors those that leave it readable."""
        low, high = min(values), max(values)
        shown = [floor for floor in floors if floor > 0 and math.log10(high / floor) <= _DECADES]
        low = max(min([low, *shown]) / 1.5, _LEAST)
        high = min(max(max([high, *shown]) * 1.5, 2 * low), _MOST)
        left, right = math.floor(min(bits) * 2 - 0.2) / 2, math.ceil(max(bits) * 2 + 0.2) / 2
        return cls(frame, (left, max(right, left + 1)), (low, high))

    def x(self, bits: float) -> float:
        """Position across."""
        left, _, right, _ = self.frame
        return left + (right - left) * (bits - self.bits[0]) / (self.bits[1] - self.bits[0])

    def y(self, value: float) -> float:
        """Position downwards; what lies outside is at the edge."""
        _, top, _, bottom = self.frame
        low, high = self.values
        if value <= low or math.isnan(value):
            return bottom
        return top if value >= high else top + (bottom - top) * self._share(value)

    def inside(self, value: float) -> bool:
        """Whether a value has a place of its own."""
        return self.values[0] <= value <= self.values[1]

    def _share(self, value: float) -> float:
        low, high = map(math.log10, self.values)
        return (high - math.log10(value)) / (high - low)

    def x_ticks(self) -> list[Tick]:
        """Whole bits, fewer of them where there are many."""
        low, high = self.bits
        step = max(1, math.ceil((high - low) / 10))
        return [Tick(self.x(n), str(n)) for n in range(math.ceil(low), math.floor(high) + 1) if n % step == 0]

    def y_ticks(self) -> list[Tick]:
        """Powers of ten, with 2 and 5 times them where there are few."""
        low, high = map(math.log10, self.values)
        factors = (1, 2, 5) if high - low < 2.2 else (1,)
        every = [f * 10.0**n for n in range(math.floor(low), min(math.ceil(high), _LARGEST) + 1) for f in factors]
        return [Tick(self.y(v), figure(v, 1)) for v in every if self.values[0] <= v <= self.values[1]]


def marker_path(shape: str, x: float, y: float) -> str:
    """The outline of a marker around a point."""
    r = _RADIUS
    if shape == "circle":
        return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z"
    outlines: dict[str, list[Point]] = {
        "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        "triangle": [(0, -1.15), (1.1, 0.9), (-1.1, 0.9)],
        "inverted": [(0, 1.15), (1.1, -0.9), (-1.1, -0.9)],
        "diamond": [(0, -1.3), (1.2, 0), (0, 1.3), (-1.2, 0)],
        "plus": _star([(-0.4, -1.2), (0.4, -1.2), (0.4, -0.4)]),
        "cross": _star([(0, -0.5), (0.6, -1.1), (1.1, -0.6)]),
    }
    return Line([(x + r * dx, y + r * dy) for dx, dy in outlines[shape]], "").d + "z"


def _star(arm: list[Point]) -> list[Point]:
    """An arm at all four quarter turns."""
    turns = ((1, 0, 0, 1), (0, -1, 1, 0), (-1, 0, 0, -1), (0, 1, -1, 0))
    return [(a * x + b * y, c * x + d * y) for a, b, c, d in turns for x, y in arm]


class Places:
    """Finds places for labels where they cover neither each other nor markers nor lines."""

    def __init__(self, area: Box) -> None:
        self._area = area
        self._taken: list[Box] = []
        self._lines: list[tuple[Point, Point]] = []
        self.leaders: list[Line] = []
        """From points to labels that lie somewhat off."""
        self.column: list[tuple[float, str, str, Point | None]] = []
        """What found no place: the height where it would be, text, whole text, and the point that it names."""

    def take(self, point: Point) -> None:
        """Keeps labels off a marker."""
        x, y = point
        self._taken.append((x - 7, y - 7, x + 7, y + 7))

    def cross(self, points: list[Point]) -> None:
        """Keeps labels off a line."""
        self._lines += list(pairwise(points))

    def name(self, text: str, whole: str, points: list[Point], cls: str = "") -> Label | None:
        """A label beside one of these points, else near the first with a line to it.

        None, and a place in the column, where there is no room.
        """
        width = CHARACTER * len(text)
        for x, y in points:
            for left, middle in (
                (x + 13, y),
                (x - width / 2, y - 14),
                (x - width / 2, y + 15),
                (x - width - 13, y),
                (x + 7, y - 12),
                (x + 7, y + 12),
                (x - width - 5, y - 12),
                (x - width - 5, y + 12),
            ):
                if box := self._take(left, middle, width):
                    return Label(box[0] + 1, middle + 4, text, whole, cls)
        x, y = points[0]
        for across, down in product((24, 48, 80), (-26, 26, -44, 44, -66, 66, -90, 90)):
            for left, end in ((x + across, x + across - 3), (x - across - width, x - across + 3)):
                leader = ((x, y), (end, y + down))
                if self._clear(*leader) and (box := self._take(left, y + down, width)):
                    self.leaders.append(Line(list(leader), "leader"))
                    self._lines.append(leader)
                    return Label(box[0] + 1, y + down + 4, text, whole, cls)
        self.column.append((points[0][1], text, whole, points[0]))
        return None

    def beside(self, x: float, top: float, bottom: float) -> tuple[list[Label], list[Line]]:
        """The labels of the column from x on, one under the other, and lines to what they name."""
        waiting = sorted(self.column, key=lambda item: item[0])
        taken = sorted((box[1], box[3]) for box in self._taken if box[2] > x - 2)
        heights: list[float] = []
        at = top
        for wanted, *_ in waiting:
            at = max(at, min(wanted, bottom - LINE))
            for low, high in taken:
                if low - LINE / 2 < at < high + LINE / 2:
                    at = high + LINE / 2
            heights.append(at)
            at += LINE
        labels = [Label(x, y + 4, text, whole) for y, (_, text, whole, _) in zip(heights, waiting, strict=True)]
        leaders = [
            Line([point, (x - 12, y), (x - 3, y)], "leader")
            for y, (*_, point) in zip(heights, waiting, strict=True)
            if point is not None
        ]
        return labels, leaders

    def _take(self, left: float, middle: float, width: float) -> Box | None:
        """The box of a label there, taken from now on; None where it isn't free."""
        box = (left - 1, middle - LINE / 2, left + width + 1, middle + LINE / 2)
        if not self._free(box):
            return None
        self._taken.append(box)
        return box

    def _clear(self, start: Point, end: Point) -> bool:
        """Whether a line covers nothing but what is around its start."""
        x, y = start
        return not any(
            _meets(start, end, box) for box in self._taken if not (box[0] <= x <= box[2] and box[1] <= y <= box[3])
        )

    def _free(self, box: Box) -> bool:
        left, top, right, bottom = box
        area = self._area
        if left < area[0] or right > area[2] or top < area[1] or bottom > area[3]:
            return False
        if any(left < b[2] and b[0] < right and top < b[3] and b[1] < bottom for b in self._taken):
            return False
        return not any(_meets(one, other, box) for one, other in self._lines)


def cut(text: str, longest: int = 32) -> str:
    """Text that is short enough for a label, with an ellipsis in the middle if it was longer."""
    if len(text) <= longest:
        return text
    head = (longest - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (longest - 1 - head) :]}"


def _meets(one: Point, other: Point, box: Box) -> bool:
    """Whether a straight piece touches a box (Liang and Barsky's clipping)."""
    (x, y), dx, dy = one, other[0] - one[0], other[1] - one[1]
    first, last = 0.0, 1.0
    for step, room in ((-dx, x - box[0]), (dx, box[2] - x), (-dy, y - box[1]), (dy, box[3] - y)):
        if step == 0:
            if room < 0:
                return False
            continue
        share = room / step
        if step < 0:
            first = max(first, share)
        else:
            last = min(last, share)
    return first <= last
