"""The tables of a run's report, as data that the terminal, Markdown and HTML show alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tqcli.report.compared import Compared, judged_by, standing
from tqcli.report.definitions import DEFINITIONS, is_derived
from tqcli.report.figures import DASH, byte_size, figure, interval_text, times, value_text
from tqcli.report.layers import Block, Strip, StripRow
from tqcli.report.run import GateResult, RunResult
from tqcli.report.schema import Metric

_COMPARED = {"value": "", "ratio": "ratio to", "difference": "difference from"}
_COUNTED = {"cosine": "vectors", "ip_bias": "pairs", "ip_slope": "pairs"}
"""What n counts; windows if not here."""


@dataclass(frozen=True)
class Cell:
    """One cell: its text, what stands smaller beside it, and how it is set off."""

    text: str
    more: str = ""
    bar: float | None = None
    """Share of the full width of a bar behind it, 0 to 1."""
    mark: str = ""
    """good, bad or doubtful; the text says so as well."""


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows."""

    caption: str
    heads: list[str]
    rows: list[list[Cell]]
    numeric: frozenset[int] = frozenset()
    """Columns of numbers."""
    notes: list[str] = field(default_factory=list)
    """Sentences under it."""


_COLUMNS = (
    ("perplexity", "kl_mean", None, "mean KL, nats"),
    ("perplexity", "ppl_delta_percent", None, "perplexity change, %"),
    ("perplexity", "same_top1", None, "same top-1, %"),
    ("attention", "attention_error", None, "attention error"),
    ("attention", "logit_correlation", None, "logit correlation"),
    ("distortion", "relative_mse", "keys", "keys: relative MSE"),
    ("distortion", "relative_mse", "values", "values: relative MSE"),
)


def summary_table(result: RunResult, codecs: list[Compared]) -> Table:
    """One row a codec, fewest effective bits first."""
    by = judged_by(result)
    columns = [column for column in _COLUMNS if any(_of(codec, column) for codec in codecs)]
    heads = ["codec", "effective bits", "ratio", *(["at its bytes"] if by else []), *(column[3] for column in columns)]
    rows = []
    for codec in codecs:
        row = [_name_cell(codec)]
        row += [_metric_cell(size, codec.size(size)) for size in ("bits_effective", "ratio")]
        if by:
            word = standing(codec, codecs, by)
            row.append(Cell(word or DASH, mark="good" if word == "best" else ""))
        row += [_metric_cell(column[1], _of(codec, column)) for column in columns]
        rows.append(row)
    numeric = frozenset({1, 2, *range(len(heads) - len(columns), len(heads))})
    return Table("Codecs by effective bits", heads, rows, numeric, _summary_notes(result))


def _summary_notes(result: RunResult) -> list[str]:
    by = judged_by(result)
    notes = ["Beside the numbers: their 95 % intervals."] if any(m.ci_low is not None for m in _totals(result)) else []
    if by:
        notes.append(
            f"At its bytes: best has the least {by[1]} of all codecs with so many effective bits or fewer (2 % more "
            "count as the same); level means that the intervals overlap; floors code nothing."
        )
    basis = next((m for m in ("perplexity", "attention", "distortion", "memory") if m in result.measures), None)
    if basis:
        held = result.measures[basis].settings.get("cache_dtype")
        raw = f", with sinks and recent tokens in {held}" if held else ""
        notes.append(f"Effective bits and ratio count every byte of the caches that {basis} was measured on{raw}.")
    return notes


def _totals(result: RunResult) -> Iterable[Metric]:
    return (metric for of in result.measures.values() for codec in of.codecs for metric in codec.total.values())


def _of(codec: Compared, column: tuple[str, str, str | None, str]) -> Metric | None:
    measure, metric, tensor, _ = column
    return codec.tensors.get((measure, tensor), {}).get(metric) if tensor else codec.total(measure, metric)


def _name_cell(codec: Compared) -> Cell:
    return Cell(codec.name, "control" if codec.control else "")


def _metric_cell(name: str, metric: Metric | None) -> Cell:
    if metric is None:
        return Cell(DASH)
    interval = interval_text(name, metric.unit, metric.ci_low, metric.ci_high)
    return Cell(value_text(name, metric.unit, metric.value), interval)


def gates_table(result: RunResult) -> Table | None:
    """One row a gate, failures first; None without gates."""
    if not result.gates:
        return None
    order = ("fail", "inconclusive", "pass")
    rows = [_gate_row(gate) for gate in sorted(result.gates, key=lambda gate: order.index(gate.verdict))]
    return Table("Gates", ["gate", "codec", "where", "value", "bound", "verdict", "reason"], rows, frozenset({3, 4}))


def _gate_row(gate: GateResult) -> list[Cell]:
    compared = f"{_COMPARED[gate.compare]} {gate.against}" if gate.against else ""
    name = gate.metric if gate.compare != "ratio" else ""
    interval = interval_text(name, gate.unit, gate.ci_low, gate.ci_high)
    sign = "at most" if gate.kind == "max" else "at least"
    marks = {"fail": "bad", "pass": "good", "inconclusive": "doubtful"}
    return [
        Cell(gate.metric, compared),
        Cell(gate.codec),
        Cell(f"{gate.measure}, {gate.where}"),
        Cell(value_text(name, gate.unit, gate.value), interval),
        Cell(f"{sign} {value_text(name, gate.unit, gate.bound)}"),
        Cell(gate.verdict, mark=marks[gate.verdict]),
        Cell(gate.reason),
    ]


def failures_table(result: RunResult) -> Table | None:
    """One row a step that failed; None without."""
    rows = [[Cell(f.step), Cell(f.codec or "all"), Cell(f.error)] for f in result.failures]
    return Table("Steps that failed", ["step", "codec", "error"], rows) if rows else None


def worst_table(blocks: list[Block]) -> Table | None:
    """One row a codec, one column a metric: the worst layer, and the worst head where heads were measured."""
    names = sorted(
        {row.codec.name: row.codec for block in blocks for row in block.rows}.values(),
        key=lambda codec: (codec.bits is None, codec.bits or 0),
    )
    rows = [
        [_name_cell(codec)]
        + [
            next((_worst_cell(block.strip, row) for row in block.rows if row.codec is codec), Cell(DASH))
            for block in blocks
        ]
        for codec in names
    ]
    heads = ["codec", *(block.strip.title for block in blocks)]
    note = (
        "Beside each: how many times the median layer's error it is (of a correlation, what it lacks to 1), and the "
        "worst head. Layers and heads count from 0."
    )
    return Table("Worst layers and heads", heads, rows, frozenset(), [note]) if rows else None


def _worst_cell(strip: Strip, row: StripRow) -> Cell:
    worst = row.worst
    if worst is None:
        return Cell(DASH)
    more = [] if worst.over_median is None else [f"{times(worst.over_median)} the median"]
    if worst.head:
        layer, head, value = worst.head
        more.append(f"head {head} of layer {layer}: {value_text(strip.metric, strip.unit, value)}")
    return Cell(f"layer {worst.layer}: {value_text(strip.metric, strip.unit, worst.value)}", "; ".join(more))


def memory_table(result: RunResult, codecs: list[Compared]) -> Table | None:
    """One row a codec, one column a context length; None where memory wasn't measured."""
    memory = result.measures.get("memory")
    sized = [codec for codec in codecs if "memory" in codec.totals]
    if memory is None or not sized:
        return None
    names = {name for codec in sized for name in codec.totals["memory"]}
    lengths = sorted(int(n.rpartition("_")[2]) for n in names if n.startswith("bytes_nominal_"))
    tokens = memory.dataset.get("tokens")
    endings = ["", *(f"_{length}" for length in lengths)]
    rows = []
    for codec in sized:
        of = codec.totals["memory"]
        rows.append([_name_cell(codec)])
        for ending in endings:
            size, fp16 = (_number(of.get(f"{kind}{ending}")) for kind in ("bytes_nominal", "bytes_fp16"))
            rows[-1].append(Cell(byte_size(size), bar=size / fp16 if size is not None and fp16 else None))
    first = sized[0].totals["memory"]
    uncoded = [byte_size(_number(first.get(f"bytes_fp16{ending}"))) for ending in endings]
    rows.append([Cell("uncompressed, 16 bits"), *(Cell(text, bar=1.0) for text in uncoded)])
    heads = ["codec", f"{tokens:,} tokens" if isinstance(tokens, int) else "as captured"]
    heads += [f"{length // 1024}k tokens" if length % 1024 == 0 else f"{length} tokens" for length in lengths]
    note = "One cache, bytes by formula; longer contexts than the captured one are arithmetic, not runs. Bars: of fp16."
    return Table("Bytes of a cache", heads, rows, frozenset(range(1, len(heads))), [note])


def metrics_table(result: RunResult) -> Table | None:
    """How each number was got: a row a metric, more where measures have it of other numbers of samples."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for measure, of in result.measures.items():
        metrics: dict[str, list[Metric]] = {}
        for codec in of.codecs:
            for group in (codec.total, *codec.by_tensor.values()):
                for name, metric in group.items():
                    if not is_derived(name):
                        metrics.setdefault(name, []).append(metric)
        for name, every in metrics.items():
            interval = "95 %, over windows" if any(m.ci_low is not None for m in every) else "none"
            found.setdefault((name, every[0].unit, _count(name, every), interval), []).append(measure)
    rows = [
        [Cell(name), Cell(DEFINITIONS.get(name, DASH)), Cell(unit), Cell(n), Cell(interval), Cell(", ".join(measures))]
        for (name, unit, n, interval), measures in found.items()
    ]
    heads = ["metric", "what it is", "unit", "n", "interval", "measure"]
    note = "Endings: _median, _worst and _worst_layer are over layers; the mean over layers has no ending."
    return Table("How each number was got", heads, rows, notes=[note]) if rows else None


def _count(name: str, metrics: list[Metric]) -> str:
    counts = sorted({metric.n for metric in metrics if metric.n is not None})
    if not counts:
        return DASH
    several = f" to {counts[-1]:,}" if len(counts) > 1 else ""
    what = _COUNTED.get(name, "window" if counts == [1] else "windows")
    return f"{counts[0]:,}{several} {what}"


def codecs_table(result: RunResult) -> Table | None:
    """What each codec was run with."""
    rows = [
        [Cell(c.name), Cell(c.codec), Cell(str(c.sinks)), Cell(str(c.recent)), Cell(c.layer_bits or DASH)]
        for c in result.codecs
    ]
    heads = ["name", "codec", "sinks", "recent tokens", "layer bits"]
    return Table("Codecs as run", heads, rows, frozenset({2, 3})) if rows else None


def environment_table(result: RunResult) -> Table:
    """Versions, device, hashes of model and text."""
    rows = [[Cell(name), Cell(str(value))] for name, value in result.environment.model_dump().items()]
    for name, record in (("model", result.model), ("dataset", result.dataset), ("calibration", result.calibration)):
        rows += [[Cell(f"{name}: {key}"), Cell(_plain(value))] for key, value in (record or {}).items()]
    return Table("Environment", ["what", "value"], rows)


def settings_table(result: RunResult) -> Table | None:
    """What each measure was run with; on which text and with which versions where those aren't the run's."""
    rows = []
    for measure, of in result.measures.items():
        settings = dict(of.settings)
        learned = settings.get("calibration")
        if isinstance(learned, dict) and learned.get("dataset") == result.calibration:
            settings["calibration"] = learned.get("capture")
        text = "the run's" if of.dataset == result.dataset else _plain(of.dataset)
        made = "the run's" if of.environment == result.environment else _plain(of.environment.model_dump())
        rows.append([Cell(measure), Cell(_plain(settings)), Cell(text), Cell(made)])
    return Table("Settings of the measures", ["measure", "settings", "text", "environment"], rows) if rows else None


def count_gates(result: RunResult) -> Counter[str]:
    """Gates by verdict."""
    return Counter(gate.verdict for gate in result.gates)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_plain(of)}" for key, of in value.items() if of is not None) or DASH
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) or DASH
    if isinstance(value, float):
        return figure(value, 6)
    return DASH if value is None else str(value)


def _number(metric: Metric | None) -> float | None:
    return metric.value if metric else None
