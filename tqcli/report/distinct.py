"""Numbers as text, with as many digits as tell them apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

_FEWEST, _MOST = 3, 17


def figures(values: Sequence[float], unit: str = "") -> list[str]:
    """Numbers as text, with the fewest significant digits, three or more, at which different ones look different.

    Bytes are whole, with a comma every three digits.
    """
    different = len(set(values))
    for digits in range(_FEWEST, _MOST + 1):
        shown = [_shown(value, digits, unit) for value in values]
        if len(set(shown)) == different:
            return shown
    return [_shown(value, _MOST, unit) for value in values]


def with_unit(text: str, unit: str) -> str:
    """A number with its unit behind it; nothing for plain numbers."""
    return text if unit in ("", "1") else f"{text} {unit}"


def _shown(value: float, digits: int, unit: str) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if unit == "bytes" and value == round(value):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"
