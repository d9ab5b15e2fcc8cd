"""Reads text: the built-in sample, a local file, or a data set of a hub."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tqcli.errors import InputError

SAMPLE = "sample"
_HUB_SPEC = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]*))?(?::([\w.\[\]:%+-]+))?")
_COLUMN = "text"


@dataclass(frozen=True)
class Document:
    """One text. Windows of tokens never run from one document into the next."""

    name: str
    text: str


@dataclass(frozen=True)
class Text:
    """What a `--dataset` names."""

    spec: str
    documents: tuple[Document, ...]

    @property
    def sha256(self) -> str:
        """Hex sha256 over names and contents in order, each preceded by its length in bytes."""
        digest = hashlib.sha256()
        for document in self.documents:
            for part in (document.name.encode(), document.text.encode()):
                digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()

    @property
    def n_bytes(self) -> int:
        """UTF-8 bytes of all documents."""
        return sum(len(document.text.encode()) for document in self.documents)


def load_text(spec: str) -> Text:
    """Reads `sample`, a `.txt`, `.jsonl` or `.parquet` file, or `org/name[:config][:split]` from a hub.

    jsonl and parquet files and hub data sets need a column `text`. Raises `InputError` where nothing can be read.
    """
    if spec == SAMPLE:
        return Text(spec, tuple(_sample()))
    path = Path(spec).expanduser()
    if path.is_dir():
        raise InputError(f"{spec} is a folder; name a .txt, .jsonl or .parquet file in it")
    if path.suffix == ".txt":
        documents = [Document(path.name, _read(path))]
    elif path.suffix in (".jsonl", ".parquet"):
        documents = _from_table(path)
    elif path.is_file():
        raise InputError(
            f"{spec} ends in {path.suffix or 'nothing'}; text is read from .txt, .jsonl and .parquet files"
        )
    elif match := _HUB_SPEC.fullmatch(spec):
        documents = _from_hub(spec, match[1], match[2] or None, match[3] or "test")
    else:
        raise InputError(
            f"there is no text {spec!r}; name sample, a .txt, .jsonl or .parquet file, or org/name on a hub"
        )
    documents = [document for document in documents if document.text.strip()]
    if not documents:
        raise InputError(f"{spec} holds no text: it is empty; name a longer one")
    return Text(spec, tuple(documents))


def _sample() -> Iterable[Document]:
    folder = resources.files("tqcli.datasets") / "sample"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".txt"):
            yield Document(file.name.removesuffix(".txt"), file.read_text(encoding="utf-8"))


def _read(path: Path) -> str:
    try:
        # utf-8-sig drops a byte order mark; universal newlines make CRLF one newline.
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as e:
        raise InputError(f"the file {path} doesn't exist") from e
    except UnicodeDecodeError as e:
        raise InputError(f"{path} is not UTF-8 text (byte {e.start}); convert it first") from e
    except OSError as e:
        raise InputError(f"can't read {path}: {e.strerror}") from e


def _from_table(path: Path) -> list[Document]:
    import pyarrow
    import pyarrow.json
    import pyarrow.parquet

    if not path.is_file():
        raise InputError(f"the file {path} doesn't exist")
    try:
        reader = pyarrow.json.read_json if path.suffix == ".jsonl" else pyarrow.parquet.read_table
        table = reader(path)
    except (pyarrow.ArrowException, OSError) as e:
        raise InputError(f"can't read {path}: {str(e).splitlines()[0]}") from e
    return _rows(str(path), path.name, table.column_names, lambda: table.column(_COLUMN).to_pylist())


def _from_hub(spec: str, name: str, config: str | None, split: str) -> list[Document]:
    import datasets

    try:
        rows = datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError) as e:
        first = (str(e).strip().splitlines() or [type(e).__name__])[0][:160]
        reason = "the hub can't be reached" if isinstance(e, ConnectionError) else re.sub(r"https?://\S+", "", first)
        raise InputError(f"can't load the data set {spec}: {reason}; name a local .txt file, or sample") from e
    return _rows(spec, name, rows.column_names, lambda: rows[_COLUMN])


def _rows(spec: str, name: str, columns: list[str], read: Any) -> list[Document]:
    if _COLUMN not in columns:
        raise InputError(
            f"{spec} has no column {_COLUMN!r}, only {', '.join(columns)}; rename the one that holds the text"
        )
    texts = read()
    if not all(text is None or isinstance(text, str) for text in texts):
        raise InputError(f"the column {_COLUMN!r} of {spec} doesn't hold text")
    return [Document(f"{name}[{index}]", text) for index, text in enumerate(texts) if text]
