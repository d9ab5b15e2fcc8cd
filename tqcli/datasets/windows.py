"""Cuts text into windows of tokens that don't overlap, and draws some of them by a seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tqcli.datasets.document import Text
from tqcli.errors import InputError


@dataclass(frozen=True)
class TokenWindows:
    """Windows drawn from a text, in the order drawn."""

    ids: NDArray[np.int32]
    """[windows, tokens], the BOS token first in each where `bos`."""
    documents: tuple[str, ...]
    """Name of the document that each window is from."""
    starts: tuple[int, ...]
    """Index of each window's first text token among its document's tokens."""
    bos: bool
    text_bytes: tuple[int, ...]
    """UTF-8 bytes of text under each window's predicted tokens: all but its first, whether BOS or text.

    A character that a window's edge cuts through counts as up to 3 bytes.
    """

    @property
    def sha256(self) -> str:
        """Hex sha256 of the ids as little-endian int32, row by row."""
        return hashlib.sha256(self.ids.astype("<i4").tobytes()).hexdigest()


def token_windows(text: Text, tokenizer: Any, tokens: int, windows: int, seed: int) -> TokenWindows:
    """Draws `windows` windows of `tokens` tokens without replacement.

    Each document is tokenised whole, without special tokens, and cut into consecutive windows; what is left at its end
    is not used. Where the tokenizer itself begins an encoded text with BOS, each window begins with it too, and it
    counts as one of the window's tokens. The order is `numpy.random.default_rng(seed).permutation` of all windows, so
    the first n windows of a longer draw with the same seed are the shorter draw.

    `tokenizer` is a Hugging Face tokenizer or mlx-lm's wrapper of one. Raises `InputError` for `tokens` under 2,
    `windows` under 1, a negative `seed` and a text with too few windows.
    """
    for name, value, least in (("tokens", tokens, 2), ("windows", windows, 1), ("seed", seed, 0)):
        if value < least:
            raise InputError(f"--{name} must be {least} or more, not {value}")
    bos = _begins_with_bos(tokenizer)
    body = tokens - bos
    encoded = [_encode(tokenizer, document.text) for document in text.documents]
    candidates = [(index, start) for index, ids in enumerate(encoded) for start in range(0, len(ids) - body + 1, body)]
    _check_enough(text, candidates, max(map(len, encoded), default=0) + bos, tokens, windows)
    drawn = [candidates[i] for i in np.random.default_rng(seed).permutation(len(candidates))[:windows]]
    ids = np.empty((windows, tokens), dtype=np.int32)
    if bos:
        ids[:, 0] = tokenizer.bos_token_id
    for row, (index, start) in zip(ids, drawn, strict=True):
        row[int(bos) :] = encoded[index][start : start + body]
    return TokenWindows(
        ids=ids,
        documents=tuple(text.documents[index].name for index, _ in drawn),
        starts=tuple(start for _, start in drawn),
        bos=bos,
        text_bytes=tuple(
            bytes_between(tokenizer, encoded[index], start + (not bos), start + body) for index, start in drawn
        ),
    )


def _encode(tokenizer: Any, text: str) -> NDArray[np.int32]:
    # Not verbose: a document longer than the model's context is no mistake here, it is cut afterwards.
    return np.array(tokenizer.encode(text, add_special_tokens=False, verbose=False), dtype=np.int32)


def _begins_with_bos(tokenizer: Any) -> bool:
    """Whether the tokenizer itself puts BOS in front of a text."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer.encode("a", add_special_tokens=True)[:1] == [bos]


def _check_enough(text: Text, candidates: list[tuple[int, int]], longest: int, tokens: int, windows: int) -> None:
    """Raises `InputError` if the text has fewer windows than asked; `longest` counts BOS."""
    if not candidates:
        shorter = f"use --tokens {longest} or a longer text" if longest > 1 else "use a longer text"
        which = "it" if len(text.documents) == 1 else f"the longest of its {len(text.documents)} documents"
        raise InputError(f"{text.spec} is shorter than a window of {tokens} tokens: {which} has {longest}; {shorter}")
    if len(candidates) < windows:
        raise InputError(
            f"{text.spec} has {len(candidates)} windows of {tokens} tokens, not {windows}; "
            f"use --windows {len(candidates)}, fewer --tokens or a longer text"
        )


def bytes_between(tokenizer: Any, ids: NDArray[np.int32], start: int, stop: int) -> int:
    """UTF-8 bytes of tokens start to stop of a document."""
    # Decoded with the token before, because some tokenizers drop the space in front of what they decode.
    before = ids[max(start - 1, 0) : start].tolist()
    return _decoded_bytes(tokenizer, before + ids[start:stop].tolist()) - _decoded_bytes(tokenizer, before)


def _decoded_bytes(tokenizer: Any, ids: list[int]) -> int:
    return len(tokenizer.decode(ids, clean_up_tokenization_spaces=False).encode())
