"""Mistakes that change nothing that matters, and why: of tq's own bodies in harmless.yaml, of others in their specs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1)]


class Harmless(BaseModel):
    """A mistake as the list of what wasn't noticed tells it, and the reason why it is harmless."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Text | None = None
    """Name of the body or header; None for any."""
    change: Text
    """What was done, such as `stride <= D`."""
    code: str = ""
    """The line as it stands, without blanks at its ends; empty for a grid."""
    why: Text

    def fits(self, file: str, change: str, code: str) -> bool:
        """Whether it is this mistake."""
        return self.file in (None, file) and (self.change, self.code) == (change, code)


@cache
def own() -> tuple[Harmless, ...]:
    """Of tq's own bodies."""
    table = yaml.safe_load(Path(__file__).with_name("harmless.yaml").read_text(encoding="utf-8")) or []
    return tuple(Harmless.model_validate(entry) for entry in table)


def reason(known: Sequence[Harmless], file: str, change: str, code: str) -> str | None:
    """Why a mistake is harmless; None if that isn't known."""
    return next((entry.why for entry in known if entry.fits(file, change, code)), None)
