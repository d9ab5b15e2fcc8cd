"""Cuts text into windows of tokens that don't overlap, and draws some of them by a seed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tqcli.datasets.text import Text
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

    @property
    def sha256(self) -> str:
        """Hex sha256 of the ids as little-endian int32."""
        return hashlib.sha256(self.ids.astype("<i4").tobytes()).hexdigest()


def token_windows(text: Text, tokenizer: Any, tokens: int, windows: int, seed: int) -> TokenWindows:
    """Draws `windows` windows of `tokens` tokens without replacement.

    Each document is tokenised whole, without special tokens, and cut into consecutive windows; what is left at its end
    is not used. Where the tokenizer begins an encoded text with BOS, each window does too, and that counts as one of
    its tokens. The first n windows of a longer draw with the same seed are the shorter draw. Raises `InputError` for a
    text with too few windows.
    """
    if tokens < 1 or windows < 1 or seed < 0:
        name, value = next((n, v) for n, v in (("tokens", tokens), ("windows", windows), ("seed", seed)) if v < 1)
        raise InputError(f"--{name} must be {'0' if name == 'seed' else '1'} or more, not {value}")
    bos = _begins_with_bos(tokenizer)
    body = tokens - bos
    if body < 1:
        raise InputError(f"--tokens {tokens} leaves no room for text beside the BOS token; use 2 or more")
    candidates, longest = [], 0
    with _quiet_tokenizer():
        encoded = [np.array(tokenizer.encode(d.text, add_special_tokens=False), dtype=np.int32) for d in text.documents]
    for index, ids in enumerate(encoded):
        longest = max(longest, len(ids))
        candidates += [(index, start) for start in range(0, len(ids) - body + 1, body)]
    if not candidates:
        raise InputError(
            f"{text.spec} is shorter than a window: its longest document has {longest + bos} tokens, "
            f"a window {tokens}; use --tokens {longest + bos} or a longer text"
        )
    if len(candidates) < windows:
        raise InputError(
            f"{text.spec} has {len(candidates)} windows of {tokens} tokens, not {windows}; "
            f"use --windows {len(candidates)}, fewer --tokens or a longer text"
        )
    drawn = [candidates[i] for i in np.random.default_rng(seed).permutation(len(candidates))[:windows]]
    rows = [encoded[index][start : start + body] for index, start in drawn]
    ids = np.stack(rows)
    if bos:
        ids = np.concatenate([np.full((windows, 1), tokenizer.bos_token_id, dtype=np.int32), ids], axis=1)
    return TokenWindows(ids, tuple(text.documents[i].name for i, _ in drawn), tuple(start for _, start in drawn), bos)


def _begins_with_bos(tokenizer: Any) -> bool:
    """Whether the tokenizer itself puts BOS in front of a text."""
    if tokenizer.bos_token_id is None:
        return False
    encoded = tokenizer.encode("a", add_special_tokens=True)
    return bool(encoded) and encoded[0] == tokenizer.bos_token_id


@contextmanager
def _quiet_tokenizer() -> Iterator[None]:
    """Silences transformers' warning that a document is longer than the model's context: it is cut afterwards."""
    logger = logging.getLogger("transformers.tokenization_utils_base")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
