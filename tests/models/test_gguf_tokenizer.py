"""The rebuilt tokenizers against plain implementations of byte-level BPE and of SentencePiece's BPE."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_gguf import write_gguf
from tiny_models import write_tiny_model
from tokenizers import Tokenizer
from transformers import AutoTokenizer

import tqcli.datasets
from tqcli.models import LoadedModel
from tqcli.models.gguf_file import GGUFFile
from tqcli.models.gguf_tokenizer import write_tokenizer

SAMPLE = Path(tqcli.datasets.__file__).parent / "sample"
AWKWARD = [
    "",
    " ",
    "  leading and trailing  ",
    "a\n\n\n b\t\tc\r\nd",
    "3.14159 and 1,000,000 in 2024; ½ ² ٣ 四",
    "naïve café — “quotes” … ’tis we're they'll",
    "日本語のテキスト 한국어 Ελληνικά עברית",
    "🙂👩‍👩‍👧 e\u0301 \u00a0 \u200b \ufeff",
    "def f(x):\n    return x  # comment\n",
    "<|im_start|>user\nhi<|im_end|>",
    "\x00\x01\x7f",
]
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Six control characters, bytes that UTF-8 doesn't use, and those that only U+40000 to U+BFFFF (unassigned) start with.
NOT_IN_SMOLLM2 = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}


def _excerpts(length: int) -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in sorted(SAMPLE.glob("*.txt"))]
    assert len(texts) > 2
    return [text[len(text) // 2 :][:length] for text in texts]


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable stand-ins for bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(others)}


def _bpe(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    letters = _byte_letters()
    parts = [letters[byte] for byte in word.encode()]
    while found := [(ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks]:
        _, at = min(found)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _plain_bpe(folder: Path) -> Callable[[list[str]], list[int]]:
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    return lambda words: [model["vocab"][part] for word in words for part in _bpe(word, ranks)]


def _split(pattern: str, text: str) -> list[str]:
    found: list[str] = import_module("regex").findall(pattern, text)
    return found


def test_smollm2_cuts_text_as_plain_byte_level_bpe_does(smollm2: LoadedModel) -> None:
    plain = _plain_bpe(smollm2.path)
    for text in _excerpts(1200) + [t for t in AWKWARD if "<|" not in t]:
        digits_apart = _split(r"\p{N}|[^\p{N}]+", text)
        words = [word for part in digits_apart for word in _split(GPT2_WORDS, part)]
        assert smollm2.tokenizer.encode(text) == plain(words)


def test_smollm2_text_round_trips(smollm2: LoadedModel) -> None:
    for text in _excerpts(100_000) + AWKWARD:
        assert smollm2.tokenizer.decode(smollm2.tokenizer.encode(text)) == text


def test_smollm2_lacks_bytes_that_its_training_text_never_had(smollm2: LoadedModel) -> None:
    vocabulary = smollm2.tokenizer.get_vocab()
    assert {byte for byte, letter in _byte_letters().items() if letter not in vocabulary} == NOT_IN_SMOLLM2


@given(text=st.text(st.characters(codec="utf-8").filter(lambda c: not NOT_IN_SMOLLM2 & set(c.encode()))))
def test_smollm2_all_other_text_round_trips(smollm2: LoadedModel, text: str) -> None:
    assert smollm2.tokenizer.decode(smollm2.tokenizer.encode(text)) == text


def test_smollm2_special_tokens_are_the_models_own(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_ids) == (1, 2, {2})
    assert tokenizer.encode("<|im_start|>a<|im_end|>")[::2] == [1, 2]
    assert 1 not in tokenizer.encode("no BOS of its own")
    assert len(tokenizer.get_vocab()) == smollm2.config["vocab_size"] == 49152
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.startswith("<|im_start|>system\n")
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("pre", "pattern"),
    [
        ("gpt-2", GPT2_WORDS),
        ("default", GPT2_WORDS),
        (None, GPT2_WORDS),
        ("qwen2", QWEN2_WORDS),
        ("llama-bpe", QWEN2_WORDS.replace(r"\p{N}|", r"\p{N}{1,3}|")),
    ],
)
def test_words_are_cut_as_the_file_says(pre: str | None, pattern: str, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    write_tokenizer(GGUFFile(write_gguf(model, tmp_path / "a.gguf", keys={"tokenizer.ggml.pre": pre})), tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    plain = _plain_bpe(tmp_path)
    for text in [*_excerpts(500), *AWKWARD[:-3]]:
        if pre == "qwen2":
            text = normalize("NFC", text)
        assert tokenizer.encode(text, add_special_tokens=False).ids == plain(_split(pattern, text)), text


# --- SentencePiece

PIECES = ["th", "he", "the", "▁t", "▁the", "in", "ing", "▁a", "nd", "▁and", "er", "re", "ere", "▁▁", "é"]
SCORES = {piece: -float(rank) for rank, piece in enumerate(["▁t", "he", "in", "er", "▁the", "th", "the", "nd"])}
LETTERS = "▁abcdefghijklmnopqrstuvwxyzé,."


def _sentencepiece_keys(**changes: Any) -> dict[str, Any]:
    special = {"<pad>": 3, "<eos>": 3, "<bos>": 3, "<unk>": 2, "\n\n": 4, "  ": 4}
    data = {f"<0x{byte:02X}>": 6 for byte in range(256)}
    normal = dict.fromkeys([*PIECES, *LETTERS], 1)
    kinds = special | data | normal
    tokens = list(kinds)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": list(kinds.values()),
        "tokenizer.ggml.scores": [SCORES.get(token, -100.0 - i) for i, token in enumerate(tokens)],
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": None,
        "tokenizer.ggml.add_space_prefix": False,
        **changes,
    }


def _merge_by_score(text: str, keys: dict[str, Any]) -> list[int]:
    """SentencePiece's BPE: the adjacent pair that makes the best-scored piece is joined until none is left."""
    tokens, scores = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.scores"]
    known = {t: i for i, t in enumerate(tokens) if keys["tokenizer.ggml.token_type"][i] == 1}
    parts = list(text.replace(" ", "▁"))
    while found := [(-scores[known[a + b]], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in known]:
        _, at = min(found)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    first_byte = tokens.index("<0x00>")
    ids: list[int] = []
    for part in parts:
        ids += [known[part]] if part in known else [first_byte + byte for byte in part.encode()]
    return ids


def _sentencepiece(tmp_path: Path, keys: dict[str, Any]) -> Any:
    model = write_tiny_model(tmp_path / "model", vocab=400)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    write_tokenizer(GGUFFile(write_gguf(model, tmp_path / "a.gguf", keys=keys)), folder)
    return AutoTokenizer.from_pretrained(folder)


TEXTS = ["the thing and there", "there,  a\tstring. é", "", "other Ünïcode 漢字 🙂", "in the end the hereafter"]


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(tmp_path: Path) -> None:
    keys = _sentencepiece_keys()
    tokenizer = _sentencepiece(tmp_path, keys)
    for text in TEXTS:
        plain = text.replace("  ", " ")
        assert tokenizer.encode(plain, add_special_tokens=False) == _merge_by_score(plain, keys), plain
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_sentencepiece_takes_the_files_own_tokens_whole_and_puts_bos_first(tmp_path: Path) -> None:
    tokenizer = _sentencepiece(tmp_path, _sentencepiece_keys())
    assert tokenizer.encode("\n\n", add_special_tokens=False) == [4]
    assert tokenizer.encode("  ", add_special_tokens=False) == [5]
    assert tokenizer.encode("a")[0] == 2 == tokenizer.bos_token_id
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id) == (1, 0, 3)


def test_sentencepiece_puts_a_space_first_where_the_file_says(tmp_path: Path) -> None:
    keys = _sentencepiece_keys(**{"tokenizer.ggml.add_space_prefix": True, "tokenizer.ggml.add_bos_token": False})
    tokenizer = _sentencepiece(tmp_path, keys)
    assert tokenizer.encode("the thing") == _merge_by_score(" the thing", keys)
    assert tokenizer.decode(tokenizer.encode("the thing")) == "the thing"
