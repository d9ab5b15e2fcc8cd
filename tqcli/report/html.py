"""A run's report as one HTML file that needs neither network nor scripts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.resources import files

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from tqcli.report.compared import compared
from tqcli.report.figures import DASH, figure, value_text
from tqcli.report.foretold import foretold_table
from tqcli.report.layers import Block, StripRow, blocks
from tqcli.report.pictures import distortion_pictures, divergence_picture
from tqcli.report.run import RunResult
from tqcli.report.tables import (
    codecs_table,
    environment_table,
    failures_table,
    gates_table,
    memory_table,
    metrics_table,
    settings_table,
    summary_table,
    worst_table,
)
from tqcli.report.terminal import remark_lines
from tqcli.report.verdict import verdict

SHADES = 20
"""Steps of a heat strip's scale; report.css has a colour for each."""
_FEW_LAYERS = 40
"""Up to so many, every layer's number is shown above its cell; else every tenth."""


@dataclass(frozen=True)
class HeatCell:
    """One layer of one codec."""

    cls: str
    text: str
    title: str


@dataclass(frozen=True)
class HeatRow:
    """One codec's layers."""

    name: str
    control: bool
    cells: list[HeatCell]


@dataclass(frozen=True)
class Heat:
    """One measure's strips, ready to be drawn."""

    title: str
    layers: list[tuple[int, bool]]
    """Each layer, and whether its number is shown."""
    rows: list[HeatRow]
    ends: tuple[str, str, str] | None
    """The least, middle and largest value of the colour scale; None where it has none."""


def to_html(result: RunResult) -> str:
    """The whole document."""
    codecs = compared(result)
    found = blocks(result, codecs)
    first = verdict(result)
    divergence = divergence_picture(result, codecs)
    return _template().render(
        run=result,
        verdict=first,
        failures=failures_table(result),
        gates=gates_table(result),
        foretold=foretold_table(result),
        summary=summary_table(result, codecs) if codecs else None,
        pictures=([divergence] if divergence else []) + distortion_pictures(result, codecs),
        heats=[_heat(block) for block in found],
        worst=worst_table(found),
        memory=memory_table(result, codecs),
        codecs=codecs_table(result),
        metrics=metrics_table(result),
        settings=settings_table(result),
        environment=environment_table(result),
        remarks=[("run", result.notes)] * bool(result.notes)
        + [(measure, lines) for measure, of in result.measures.items() if (lines := list(remark_lines(of)))],
        recipe=yaml.safe_dump(result.recipe, sort_keys=False, allow_unicode=True),
        shades=range(SHADES),
    )


def _template() -> Template:
    loader = PackageLoader("tqcli.report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = files("tqcli.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    environment.globals["style"] = Markup(style)  # ours, with nothing of the run in it
    return environment.get_template("report.html.j2")


def _heat(block: Block) -> Heat:
    few = len(block.layers) <= _FEW_LAYERS
    layers = [(layer, few or layer % 10 == 0) for layer in block.layers]
    rows = [
        HeatRow(row.codec.name, row.codec.control, [_cell(block, row, layer) for layer in block.layers])
        for row in block.rows
    ]
    return Heat(block.strip.title, layers, rows, _ends(block))


def _cell(block: Block, row: StripRow, layer: int) -> HeatCell:
    strip = block.strip
    value = row.values.get(layer)
    text = value_text(strip.metric, strip.unit, value) if value is not None else _why_not(row, layer)
    worst = row.worst is not None and row.worst.layer == layer and len(row.values) > 1
    cls = _shade(block, value) + (" w" if worst else "")
    return HeatCell(cls, text, f"layer {layer}: {text}" + (", the worst" if worst else ""))


def _why_not(row: StripRow, layer: int) -> str:
    return DASH if layer in row.values else "skipped"


def _shade(block: Block, value: float | None) -> str:
    """The class of a cell: its shade, or that it has no value, or an infinite one."""
    if value is None or math.isnan(value):
        return "none"
    bad = block.strip.badness(value)
    if math.isinf(bad):
        return "inf" if bad > 0 else "h0"
    if block.low is None or block.high is None or bad <= block.low:
        return "h0"
    share = math.log(bad / block.low) / math.log(block.high / block.low)
    return f"h{min(SHADES - 1, int(share * SHADES))}"


def _ends(block: Block) -> tuple[str, str, str] | None:
    if block.low is None or block.high is None:
        return None
    low, high = block.low, block.high
    return f"{figure(low, 2)} or less", figure(math.sqrt(low) * math.sqrt(high), 2), figure(high, 2)
