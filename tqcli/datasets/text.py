"""Finds what a `--dataset` names: the built-in sample, a local file, or a data set of a hub."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

from tqcli.datasets.document import Document, Text
from tqcli.datasets.files import is_readable, read_file
from tqcli.errors import InputError

SAMPLE = "sample"
DEFAULT_SPLIT = "test"
_HUB_SPEC = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?::([\w.-]*))?(?::([\w.\[\]:%+-]+))?")
_FILE = "a .txt, .jsonl or .parquet file"


def load_text(spec: str) -> Text:
    """Reads `sample`, a `.txt`, `.jsonl` or `.parquet` file, or `org/name[:config][:split]` from a hub.

    A `.txt` file is one document; a row of the others is one, taken from the column `text`. `.txt.gz` and `.jsonl.gz`
    are unpacked. Documents of white space alone are left out. Raises `InputError`, in one line that names the value and
    the remedy: a missing or empty file, a folder, another kind of file, bytes that are not UTF-8, no column `text`, a
    hub that can't be reached.
    """
    documents = tuple(document for document in _read(spec) if document.text.strip())
    if not documents:
        raise InputError(f"{spec} holds no text: it is empty or all white space; name a text that has words")
    for document in documents:
        try:
            document.text.encode()
        except UnicodeEncodeError as e:  # JSON can spell half of a surrogate pair
            raise InputError(f"{document.name} is not valid Unicode (character {e.start}); mend it") from e
    return Text(spec, documents)


def _read(spec: str) -> Iterable[Document]:
    if spec == SAMPLE:
        return _sample()
    if not spec.strip() or "\0" in spec:
        raise InputError(f"the data set's name is empty or broken: {spec!r}; name {SAMPLE} or {_FILE}")
    try:
        path = Path(spec).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as e:  # too long, no permission, no such user
        reason = getattr(e, "strerror", None) or e
        raise InputError(f"can't look at the data set {spec[:80]!r}: {reason}; name {SAMPLE} or {_FILE}") from e
    if is_folder:
        raise InputError(f"{spec} is a folder; name {_FILE} in it")
    if is_readable(path):
        return read_file(path)
    if is_file:
        raise InputError(f"{spec} is not {_FILE}; convert it, or rename it if it is one")
    if match := _HUB_SPEC.fullmatch(spec):
        from tqcli.datasets.hub import load_rows

        return load_rows(spec, match[1], match[2] or None, match[3] or DEFAULT_SPLIT)
    near = f"did you mean {SAMPLE}? Or " if difflib.get_close_matches(spec.lower(), [SAMPLE], n=1) else ""
    raise InputError(f"there is no data set {spec!r}; {near}name {SAMPLE}, {_FILE}, or org/name on a hub")


def _sample() -> Iterator[Document]:
    folder = resources.files("tqcli.datasets") / "sample"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".txt"):
            yield Document(file.name.removesuffix(".txt"), file.read_text(encoding="utf-8"))
