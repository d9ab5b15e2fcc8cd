"""A byte-level BPE tokenizer made in memory, with or without BOS in front of what it encodes."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

BOS = "<bos>"
_LEARNT_FROM = ["Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse"]


def byte_tokenizer(*, bos: bool, longest: int | None = None) -> Any:
    """`longest` is the length above which transformers warns. A token's name has one character a byte."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[BOS], initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(_LEARNT_FROM, trainer)
    if bos:
        inner.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, inner.token_to_id(BOS))]
        )
    options = {} if longest is None else {"model_max_length": longest}
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=BOS, **options)
