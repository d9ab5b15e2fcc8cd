"""Rebuilds a Hugging Face tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tqcli.errors import InputError
from tqcli.models.gguf_file import GGUFFile

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
"""Token types of the GGUF format."""
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_GPT2 = [_BYTES | {"use_regex": True}]
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> list[dict[str, Any]]:
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, _BYTES]


# How text is cut to words before BPE, by the name in tokenizer.ggml.pre. Files that name none are GPT-2's.
_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": [{"type": "Digits", "individual_digits": True}, *_GPT2],
    "qwen2": _split(_WORDS % ""),
    "llama-bpe": _split(_WORDS % "{1,3}"),
}
_BOS_BY_DEFAULT = ("llama-bpe",)
_NFC = ("qwen2",)
_WHOLE_WORDS_FIRST = ("llama-bpe",)
_SPACE = "\u2581"
_ROLES = {
    "bos_token": ("bos",),
    "eos_token": ("eos",),
    "pad_token": ("padding", "eos"),
    "unk_token": ("unknown",),
}


class _Vocabulary:
    """The tokenizer's part of the metadata, checked."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.kind, self.pre = self.get("model"), self.get("pre", "default")
        self.tokens: list[str] = self._list("tokens")
        self.types: list[int] = self._list("token_type")
        if len(self.types) != len(self.tokens):
            raise file.broken(f"{len(self.tokens)} tokens have {len(self.types)} types")
        self.add_bos = bool(self.get("add_bos_token", self.kind == "llama" or self.pre in _BOS_BY_DEFAULT))

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"tokenizer.ggml.{key}", default)

    def _list(self, key: str) -> list[Any]:
        value = self.get(key)
        if not isinstance(value, list) or not value:
            raise self.file.broken(f"tokenizer.ggml.{key} is missing")
        return value

    @property
    def merges(self) -> list[list[str]]:
        return [merge.split(" ", 1) for merge in self._list("merges")]

    @property
    def scores(self) -> list[float]:
        scores = self._list("scores")
        if len(scores) != len(self.tokens):
            raise self.file.broken(f"{len(self.tokens)} tokens have {len(scores)} scores")
        return scores

    @property
    def ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def token(self, *roles: str) -> str | None:
        """The first of these special tokens that the file names."""
        for role in roles:
            index: int | None = self.get(f"{role}_token_id")
            if index is not None:
                if not 0 <= index < len(self.tokens):
                    raise self.file.broken(f"its {role} token {index} is not among {len(self.tokens)} tokens")
                return self.tokens[index]
        return None


def write_tokenizer(file: GGUFFile, folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json: vocabulary, merges, special tokens, BOS rule, chat template.

    Raises `InputError` for a kind of tokenizer or a pre-tokenizer that isn't known, or a vocabulary that isn't whole.
    """
    from tokenizers import Tokenizer

    vocabulary = _Vocabulary(file)
    if vocabulary.kind == "gpt2":
        document = _byte_level(vocabulary)
    elif vocabulary.kind == "llama":
        document = _sentencepiece(vocabulary)
    else:
        raise InputError(
            f"{file.path} has a tokenizer of the kind {vocabulary.kind!r}, which can't be rebuilt; "
            "name an mlx-lm folder of this model instead"
        )
    text = json.dumps(document, ensure_ascii=False)
    try:
        Tokenizer.from_str(text)
    except Exception as e:  # the library raises nothing narrower
        raise file.broken(f"its tokenizer contradicts itself: {e}") from e
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    settings = json.dumps(_settings(vocabulary), indent=1, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(settings + "\n", encoding="utf-8")


def _byte_level(vocabulary: _Vocabulary) -> dict[str, Any]:
    """BPE over bytes, as GPT-2's, with the word splitter that the file names."""
    pre = vocabulary.pre
    if pre not in _PRE_TOKENIZERS:
        raise InputError(
            f"{vocabulary.file.path} cuts text in a way that isn't known here (tokenizer.ggml.pre = {pre!r}; known: "
            f"{', '.join(_PRE_TOKENIZERS)}); name an mlx-lm folder of this model instead"
        )
    return _document(
        vocabulary,
        normalizer={"type": "NFC"} if pre in _NFC else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        decoder=_GPT2[0],
        model={
            "type": "BPE",
            "vocab": vocabulary.ids,
            "merges": vocabulary.merges,
            "fuse_unk": False,
            "ignore_merges": pre in _WHOLE_WORDS_FIRST,
        },
    )


def _sentencepiece(vocabulary: _Vocabulary) -> dict[str, Any]:
    """BPE with byte fallback, as SentencePiece's; spaces become a mark, one is put first where the file says."""
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    unescape = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    decoders = [unescape, {"type": "ByteFallback"}, {"type": "Fuse"}]
    normalizer: dict[str, Any] = escape
    if vocabulary.get("add_space_prefix", True):
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": _SPACE}, escape]}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _document(
        vocabulary,
        normalizer=normalizer,
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
        model={
            "type": "BPE",
            "vocab": vocabulary.ids,
            "merges": _merges_from_scores(vocabulary),
            "unk_token": vocabulary.token("unknown"),
            "fuse_unk": True,
            "byte_fallback": True,
        },
    )


def _merges_from_scores(vocabulary: _Vocabulary) -> list[list[str]]:
    """Every way to put a token together from two others, the likeliest token first, as SentencePiece merges."""
    ids, types = vocabulary.ids, vocabulary.types
    merges: list[tuple[float, int, int, int]] = []
    for index, (token, score) in enumerate(zip(vocabulary.tokens, vocabulary.scores, strict=True)):
        if types[index] == _NORMAL:
            pairs = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
            merges += [(-score, index, ids[a], ids[b]) for a, b in pairs if a in ids and b in ids]
    merges.sort()
    return [[vocabulary.tokens[a], vocabulary.tokens[b]] for _, _, a, b in merges]


def _document(vocabulary: _Vocabulary, **parts: Any) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": index, "content": token, "special": kind == _CONTROL, **flags}
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": _bos_first(vocabulary),
        **parts,
    }


def _bos_first(vocabulary: _Vocabulary) -> dict[str, Any] | None:
    """Puts the BOS token first where the file says that the model wants it."""
    token = vocabulary.token("bos")
    if token is None or not vocabulary.add_bos:
        return None
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    first, second = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [special, first],
        "pair": [special, first, second],
        "special_tokens": {token: {"id": token, "ids": [vocabulary.get("bos_token_id")], "tokens": [token]}},
    }


def _settings(vocabulary: _Vocabulary) -> dict[str, Any]:
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": vocabulary.add_bos,
        "chat_template": vocabulary.file.metadata.get("tokenizer.chat_template"),
        **{setting: vocabulary.token(*roles) for setting, roles in _ROLES.items()},
    }
    return {key: value for key, value in settings.items() if value is not None}
