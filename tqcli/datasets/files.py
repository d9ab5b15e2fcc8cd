"""Reads local files as documents: `.txt`, `.jsonl` and `.parquet`, the first two also gzipped."""

from __future__ import annotations

import difflib
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from tqcli.datasets.document import Document
from tqcli.errors import InputError

COLUMN = "text"
"""The column or key that holds a row's text."""
_SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet")


def is_readable(path: Path) -> bool:
    """Whether the name ends as a file that can be read here does."""
    return path.name.lower().endswith(_SUFFIXES)


def read_file(path: Path) -> Iterator[Document]:
    """The documents of one file. Raises `InputError` if it can't be read or has no text where it should be."""
    if not path.exists():
        near = _neighbour(path)
        raise InputError(f"the file {path} doesn't exist; {f'did you mean {near}?' if near else 'check the path'}")
    name = path.name.lower()
    if name.endswith(".parquet"):
        yield from _parquet(path)
    elif name.endswith((".jsonl", ".jsonl.gz")):
        yield from _jsonl(path)
    else:
        yield Document(path.name, _text(path))


def _neighbour(path: Path) -> Path | None:
    """The readable file beside `path` whose name is nearest."""
    try:
        names = [file.name for file in path.parent.iterdir() if is_readable(file)]
    except OSError:
        return None
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return path.with_name(near[0]) if near else None


def _text(path: Path) -> str:
    """The whole file, without a byte order mark; any line end becomes one newline."""
    try:
        if path.suffix.lower() == ".gz":
            with gzip.open(path, "rt", encoding="utf-8-sig") as f:
                return f.read()
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        raise InputError(f"{path} is not UTF-8 text (byte {e.start}); convert it first, for example with iconv") from e
    except (OSError, EOFError, zlib.error) as e:
        reason = getattr(e, "strerror", None) or e
        raise InputError(f"can't read {path}: {reason}; check the file and its permissions") from e


def _jsonl(path: Path) -> Iterator[Document]:
    # Not splitlines: a JSON string may hold U+2028 and its like unescaped.
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise InputError(f"line {number} of {path} is not JSON; write one object a line") from e
        if not isinstance(row, dict):
            raise InputError(f"line {number} of {path} is not a JSON object; write one object a line, with {COLUMN!r}")
        check_columns(f"line {number} of {path}", list(row))
        if (text := checked(f"line {number} of {path}", row[COLUMN])) is not None:
            yield Document(f"{path.name}:{number}", text)


def _parquet(path: Path) -> Iterator[Document]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            check_columns(str(path), file.schema_arrow.names)
            texts = file.read(columns=[COLUMN]).column(COLUMN).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as e:
        reason = (str(e).strip().splitlines() or [type(e).__name__])[0].rstrip(".")
        raise InputError(f"can't read {path}: {reason}; check that it is a whole Parquet file") from e
    for number, value in enumerate(texts):
        if (text := checked(f"row {number} of {path}", value)) is not None:
            yield Document(f"{path.name}:{number}", text)


def check_columns(where: str, columns: list[str]) -> None:
    """Raises `InputError` if there is no column of text."""
    if COLUMN not in columns:
        found = ", ".join(map(repr, columns[:8])) or "nothing"
        raise InputError(f"{where} has no column {COLUMN!r}, only {found}; rename the one that holds the text")


def checked(where: str, value: object) -> str | None:
    """The text of a row, None where it is null. Raises `InputError` if it is something else."""
    if value is None or isinstance(value, str):
        return value
    kind = type(value).__name__
    raise InputError(f"the column {COLUMN!r} in {where} holds {kind}, not text; name a file whose {COLUMN!r} is text")
