from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from tqcli.datasets import Document, Text, TokenWindows, load_text, token_windows
from tqcli.errors import InputError
from tqcli.models import LoadedModel

TOKENIZERS = {bos: byte_tokenizer(bos=bos) for bos in (False, True)}
TOKENS = (2, 7, 63)
PROSE = "Call me Ishmael. Some years ago, never mind how long precisely, I thought I would sail about a little. " * 12

_texts = st.lists(st.text(alphabet="Call me Ishmael.\né—汉", max_size=300), min_size=1, max_size=4).map(
    lambda parts: Text("book.txt", tuple(Document(f"part {index}", part) for index, part in enumerate(parts)))
)


def _tokens_of(text: Text, tokenizer: Any) -> dict[str, list[int]]:
    return {document.name: tokenizer.encode(document.text, add_special_tokens=False) for document in text.documents}


def _count(text: Text, tokenizer: Any, body: int) -> int:
    return sum(len(ids) // body for ids in _tokens_of(text, tokenizer).values())


def _sail(parts: int = 1) -> Text:
    return Text("book.txt", tuple(Document(f"part {index}", f"{index}: {PROSE}") for index in range(parts)))


def _refusal(text: Text, tokenizer: Any, tokens: int, windows: int, seed: int = 0) -> str:
    with pytest.raises(InputError) as caught:
        token_windows(text, tokenizer, tokens, windows, seed)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(_texts, st.sampled_from(TOKENS), st.booleans(), st.integers(0, 2**32))
def test_windows_are_consecutive_parts_of_their_documents(text: Text, tokens: int, bos: bool, seed: int) -> None:
    tokenizer, body = TOKENIZERS[bos], tokens - bos
    whole = _tokens_of(text, tokenizer)
    places = [(name, start) for name, ids in whole.items() for start in range(0, len(ids) // body * body, body)]
    if not places:
        assert "shorter than a window" in _refusal(text, tokenizer, tokens, 1, seed)
        return
    drawn = token_windows(text, tokenizer, tokens, len(places), seed)
    assert drawn.ids.shape == (len(places), tokens)
    assert drawn.ids.dtype == np.int32
    assert drawn.bos is bos
    # Every window of every document once: none overlaps another or crosses a document's end.
    assert sorted(zip(drawn.documents, drawn.starts, strict=True)) == sorted(places)
    for row, name, start in zip(drawn.ids.tolist(), drawn.documents, drawn.starts, strict=True):
        assert row == [tokenizer.bos_token_id] * bos + whole[name][start : start + body]


@given(_texts, st.sampled_from(TOKENS), st.booleans(), st.integers(0, 99), st.data())
def test_a_smaller_draw_is_the_head_of_a_larger_one(
    text: Text, tokens: int, bos: bool, seed: int, data: st.DataObject
) -> None:
    count = _count(text, TOKENIZERS[bos], tokens - bos)
    if count == 0:
        return
    fewer = data.draw(st.integers(1, count))
    large = token_windows(text, TOKENIZERS[bos], tokens, count, seed)
    small = token_windows(text, TOKENIZERS[bos], tokens, fewer, seed)
    assert small.ids.tolist() == large.ids[:fewer].tolist()
    assert small.documents == large.documents[:fewer]
    assert small.starts == large.starts[:fewer]
    assert small.text_bytes == large.text_bytes[:fewer]


def test_the_draw_is_numpy_s_permutation_of_all_windows() -> None:
    tokenizer, text = TOKENIZERS[True], _sail(2)
    whole = _tokens_of(text, tokenizer)
    places = [(name, start) for name, ids in whole.items() for start in range(0, len(ids) - 5, 6)]
    order = np.random.default_rng(5).permutation(len(places))
    drawn = token_windows(text, tokenizer, 7, 20, 5)
    assert list(zip(drawn.documents, drawn.starts, strict=True)) == [places[i] for i in order[:20]]


def test_the_seed_changes_the_order_and_nothing_else_does() -> None:
    tokenizer, text = TOKENIZERS[False], _sail(3)
    draws = [token_windows(text, tokenizer, 7, 16, seed) for seed in range(8)]
    assert len({draw.starts for draw in draws}) == 8
    assert len({draw.sha256 for draw in draws}) == 8
    assert token_windows(text, tokenizer, 7, 16, 3).sha256 == draws[3].sha256


@given(st.integers(0, 3), st.integers(0, 6), st.integers(1, 2**31 - 1))
def test_the_hash_changes_with_any_id(row: int, column: int, change: int) -> None:
    ids = np.arange(28, dtype=np.int32).reshape(4, 7)
    other = ids.copy()
    other[row, column] ^= change

    def windows(of: np.ndarray[Any, np.dtype[np.int32]]) -> TokenWindows:
        return TokenWindows(of, ("a",) * 4, (0,) * 4, False, (0,) * 4)

    assert windows(ids).sha256 != windows(other).sha256
    assert windows(ids).sha256 == windows(ids.astype(">i4").view()).sha256


@pytest.mark.parametrize("bos", [False, True])
def test_counts_the_bytes_of_the_predicted_tokens(bos: bool) -> None:
    tokenizer = TOKENIZERS[bos]
    drawn = token_windows(_sail(2), tokenizer, 63, 6, 0)
    expected = [sum(map(len, tokenizer.convert_ids_to_tokens(row[1:]))) for row in drawn.ids.tolist()]
    assert list(drawn.text_bytes) == expected


def test_counts_the_bytes_of_longer_characters_whole() -> None:
    text = Text("x.txt", (Document("x.txt", "汉é—😀" * 50),))
    # Twelve bytes a round, one token each: with BOS every window is whole rounds.
    drawn = token_windows(text, TOKENIZERS[True], 25, 20, 0)
    assert set(drawn.text_bytes) == {24}


def test_a_document_longer_than_the_model_s_context_is_no_cause_for_a_warning() -> None:
    tokenizer = byte_tokenizer(bos=True, longest=8)
    records: list[logging.LogRecord] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keeper()
    logger = logging.getLogger("transformers.tokenization_utils_base")
    before = logger.level
    logger.addHandler(handler)
    try:
        token_windows(_sail(), tokenizer, 7, 3, 0)
        assert records == []
        tokenizer.encode(PROSE)
        assert len(records) == 1, "other callers' warnings stay"
    finally:
        logger.removeHandler(handler)
    assert logger.level == before


@pytest.mark.parametrize("bos", [False, True])
def test_refuses_a_text_shorter_than_a_window(bos: bool) -> None:
    tokenizer = TOKENIZERS[bos]
    text = Text("short.txt", (Document("short.txt", "Call me Ishmael."),))
    has = len(tokenizer.encode("Call me Ishmael.", add_special_tokens=False)) + bos
    message = _refusal(text, tokenizer, has + 1, 1)
    assert f"short.txt is shorter than a window of {has + 1} tokens: it has {has}" in message
    assert f"use --tokens {has} or a longer text" in message
    assert token_windows(text, tokenizer, has, 1, 0).ids.shape == (1, has)


def test_names_the_longest_document_of_several() -> None:
    text = Text("rows.jsonl", (Document("a", "aaaa"), Document("b", "bbbbbb"), Document("c", "c")))
    assert "the longest of its 3 documents has 6; use --tokens 6" in _refusal(text, TOKENIZERS[False], 7, 1)


def test_asks_for_a_longer_text_where_no_window_fits() -> None:
    text = Text("a.txt", (Document("a.txt", "a"),))
    assert "it has 1; use a longer text" in _refusal(text, TOKENIZERS[False], 2, 1)


def test_refuses_more_windows_than_there_are() -> None:
    text = _sail()
    count = _count(text, TOKENIZERS[False], 63)
    message = _refusal(text, TOKENIZERS[False], 63, count + 1)
    assert f"book.txt has {count} windows of 63 tokens, not {count + 1}" in message
    assert f"use --windows {count}, fewer --tokens or a longer text" in message


@pytest.mark.parametrize(
    ("tokens", "windows", "seed", "message"),
    [
        (1, 1, 0, "--tokens must be 2 or more, not 1"),
        (0, 1, 0, "--tokens must be 2 or more, not 0"),
        (-5, 0, 0, "--tokens must be 2 or more, not -5"),
        (2, 0, 0, "--windows must be 1 or more, not 0"),
        (2, 1, -1, "--seed must be 0 or more, not -1"),
    ],
)
def test_refuses_numbers_out_of_range(tokens: int, windows: int, seed: int, message: str) -> None:
    assert _refusal(_sail(), TOKENIZERS[True], tokens, windows, seed) == message


def test_the_sample_by_a_real_tokenizer(smollm2: LoadedModel) -> None:
    text = load_text("sample")
    drawn = token_windows(text, smollm2.tokenizer, 1024, 100, 0)
    assert not drawn.bos, "this model's tokenizer puts nothing in front of a text"
    assert drawn.ids.shape == (100, 1024)
    assert set(drawn.documents) == {document.name for document in text.documents}
    documents = {document.name: document.text for document in text.documents}
    for row, name, n_bytes in zip(drawn.ids.tolist(), drawn.documents, drawn.text_bytes, strict=True):
        decoded = smollm2.tokenizer.decode(row)
        assert decoded in documents[name]
        assert n_bytes == len(decoded.encode()) - len(smollm2.tokenizer.decode(row[:1]).encode())
