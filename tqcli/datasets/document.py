"""A text in memory, and what identifies it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """One text. Windows of tokens never run from one document into the next."""

    name: str
    text: str


@dataclass(frozen=True)
class Text:
    """The documents that a spec names, in order."""

    spec: str
    documents: tuple[Document, ...]

    @property
    def sha256(self) -> str:
        """Hex sha256 over names and contents in order (UTF-8), each preceded by its length as 8 little-endian bytes."""
        digest = hashlib.sha256()
        for document in self.documents:
            for part in (document.name.encode(), document.text.encode()):
                digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()

    @property
    def n_bytes(self) -> int:
        """UTF-8 bytes of all documents."""
        return sum(len(document.text.encode()) for document in self.documents)
