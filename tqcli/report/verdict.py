"""What a run comes to, in sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tqcli.report.compared import Compared, best_within, compared, judged, judged_by, overlap, ratio_of, within
from tqcli.report.figures import figure, value_text, with_interval
from tqcli.report.run import RunResult
from tqcli.report.tables import count_gates

_NAMES = {"kl_mean": "a mean KL", "attention_error": "an attention error", "relative_mse": "a relative MSE"}


@dataclass(frozen=True)
class Verdict:
    """The first thing that a report says."""

    status: Literal["failed", "inconclusive", "passed", "incomplete", "measured"]
    sentences: list[str]
    """Gates, failed steps, and what was found, as far as there is any."""


def verdict(result: RunResult) -> Verdict:
    """Gates count most, then failed steps; the finding is told in any case."""
    sentences = [text for text in (_gates(result), _failures(result), finding(result)) if text]
    counts = count_gates(result)
    if counts["fail"]:
        return Verdict("failed", sentences)
    if result.failures:
        return Verdict("incomplete", sentences)
    if counts["inconclusive"]:
        return Verdict("inconclusive", sentences)
    if result.gates:
        return Verdict("passed", sentences)
    return Verdict("measured", sentences or ["Nothing was measured."])


def _gates(result: RunResult) -> str:
    counts = count_gates(result)
    if not counts:
        return ""
    words = {"fail": "failed", "inconclusive": "inconclusive", "pass": "passed"}
    verbs = {"inconclusive": "is " if counts["inconclusive"] == 1 else "are "}
    parts = [f"{counts[key]} {verbs.get(key, '')}{word}" for key, word in words.items() if counts[key]]
    of = len(result.gates)
    if len(parts) > 1:
        return f"Of {of} gates, {', '.join(parts[:-1])} and {parts[-1]}."
    word = parts[0].partition(" ")[2]
    return f"The only gate {word}." if of == 1 else f"All {of} gates {word}."


def _failures(result: RunResult) -> str:
    failed = [f.step + (f" of {f.codec}" if f.codec else "") for f in result.failures]
    if not failed:
        return ""
    shown = ", ".join(failed[:3]) + (f" and {len(failed) - 3} more" if len(failed) > 3 else "")
    return f"{len(failed)} step{'s' if len(failed) > 1 else ''} failed: {shown}."


def finding(result: RunResult) -> str:
    """Which codec is best at about the control's bytes or fewer, with numbers; empty where nothing can be said."""
    codecs, by = compared(result), judged_by(result)
    control = next((codec for codec in codecs if codec.control), None)
    if by is None:
        return _smallest(codecs)
    if control is None or control.bits is None or judged(control, by) is None or control.floor:
        ranked = [codec for codec in codecs if not codec.floor and judged(codec, by)] or [
            codec for codec in codecs if judged(codec, by)
        ]
        best = min(ranked, key=lambda codec: _least(codec, by), default=None)
        if best is None:
            return f"No codec has {_NAMES[by[1]]} that is a finite number."
        among = "" if len(ranked) < 2 else f", the least of {len(ranked)} codecs"
        return f"{best.name} has {_NAMES[by[1]]} of {_told(best, by)}{among}."
    others = [codec for codec in codecs if codec is not control]
    best = best_within(others, control.bits, by)
    size = f"At about the bytes of the control {control.name} or fewer"
    against = f"against the control's {_told(control, by)}"
    if best is None and any(codec.total(*by) for codec in within(others, control.bits)):
        return f"{size}, none is better: none has {_NAMES[by[1]]} that is a finite number, {against}."
    if best is None:
        error = _NAMES[by[1]].partition(" ")[2]
        return f"No codec has about the bytes of the control {control.name} or fewer; its {error} is " + (
            f"{_told(control, by)}."
        )
    mine, its = judged(best, by), judged(control, by)
    if overlap(mine, its):
        return f"{size}, none is clearly better: {best.name} has {_NAMES[by[1]]} of {_told(best, by)}, {against}."
    ratio = ratio_of(its, mine)
    if _least(best, by) > _least(control, by):
        return f"{size}, none is better: the best, {best.name}, has {_NAMES[by[1]]} of {_told(best, by)}, {against}."
    less = f": {ratio:.3g} times less" if ratio is not None else ""
    return f"{size}, {best.name} is best: {_NAMES[by[1]]} of {_told(best, by)}, {against}{less}."


def _smallest(codecs: list[Compared]) -> str:
    sized = [codec for codec in codecs if codec.bits is not None]
    if not sized:
        return ""
    ratio = sized[0].size("ratio")
    less = f", {ratio.value:.2f} times less than 16 bits" if ratio and ratio.value else ""
    return f"{sized[0].name} takes the fewest bytes: {figure(sized[0].bits, 4)} effective bits{less}."


def _told(codec: Compared, by: tuple[str, str]) -> str:
    metric = judged(codec, by)
    bits = "" if codec.bits is None else f" at {value_text('', 'bits/element', codec.bits)} effective bits"
    if metric is None:
        return "–" + bits
    return with_interval(by[1], metric) + (f" {metric.unit}" if metric.unit != "1" else "") + bits


def _least(codec: Compared, by: tuple[str, str]) -> float:
    metric = judged(codec, by)
    return float("inf") if metric is None or metric.value is None else metric.value
