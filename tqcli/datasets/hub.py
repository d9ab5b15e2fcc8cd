"""Reads a data set of a hub through the `datasets` library, which also finds what it has downloaded before."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tqcli.datasets.document import Document
from tqcli.datasets.files import COLUMN, check_columns, checked
from tqcli.errors import InputError


def load_rows(spec: str, name: str, config: str | None, split: str) -> Iterator[Document]:
    """One document a row, from its text column. Raises `InputError` if the data set can't be had."""
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        with _quiet_hub():
            rows = datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError, ImportError, DatasetsError) as e:
        raise InputError(f"can't load the data set {spec}: {_reason(e)}; name a local .txt file, or sample") from e
    check_columns(spec, list(rows.column_names))
    for number, value in enumerate(rows[COLUMN]):
        if (text := checked(f"row {number} of {spec}", value)) is not None:
            yield Document(f"{name}:{number}", text)


def _reason(error: Exception) -> str:
    """Why, in one line and without addresses."""
    if isinstance(error, ConnectionError):
        return "the hub can't be reached (no network, or offline mode)"
    text = re.sub(r"https?://\S+", "the hub", " ".join(str(error).split()))
    return text[:200].rstrip(". ") or type(error).__name__


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Keeps the hub library's lines about each retry off the screen: one line at the end says it all."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
