"""Text that a model goes on with, its cache compressed or not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from tqcli.compression.calibration import States
from tqcli.compression.plan import CompressionPlan
from tqcli.errors import InputError
from tqcli.evaluation.caches import CacheSize, most_coded
from tqcli.models import LoadedModel


@dataclass(frozen=True)
class Generation:
    """What came of a prompt."""

    tokens: list[int]
    """Ids of the generated tokens; the prompt's are not among them."""
    text: str
    prompt_tokens: int
    tokens_per_second: float
    """Of generation, without the prompt."""
    bytes_resident: int
    """Of the cache at the end: its live buffers, room to grow included."""
    bytes_fp16: int
    """What the keys and values of as many tokens take in 16 bits; 0 for a compressed cache."""
    ended: bool
    """Whether the model itself came to an end."""
    coded_tokens: int
    """Tokens that the cache holds coded, of the layer and tensor that holds most; 0 for the model's own cache."""


def generate(
    loaded: LoadedModel,
    prompt: str,
    plan: CompressionPlan | None,
    max_tokens: int,
    *,
    states: States | None = None,
    on_text: Callable[[str], object] = lambda text: None,
) -> Generation:
    """Goes on from the prompt with the likeliest token each time, at most `max_tokens` of them.

    plan None: the model's own cache. states: what codecs learned from a calibration capture. `on_text` gets the text
    as it comes. Raises `InputError` for an empty prompt, fewer tokens than 1 and a plan that compresses nothing.
    """
    from mlx_lm import stream_generate
    from mlx_lm.models.cache import make_prompt_cache

    from tqcli.cache import compress_cache, compressed_attention

    if max_tokens < 1:
        raise InputError(f"--max-tokens must be 1 or more, not {max_tokens}")
    try:
        ids = loaded.tokenizer.encode(prompt.encode("utf-8").decode("utf-8"))
    except UnicodeEncodeError as e:
        raise InputError(f"the prompt isn't UTF-8 at character {e.start + 1}; give --prompt text in UTF-8") from e
    if not ids:
        raise InputError("the prompt is empty; give --prompt some text")
    model: Any = loaded.model
    cache = make_prompt_cache(model) if plan is None else compress_cache(model, plan, states=states)
    tokens: list[int] = []
    pieces: list[str] = []
    rate, reason = 0.0, None
    with nullcontext() if plan is None else compressed_attention(model):
        for part in stream_generate(model, loaded.tokenizer, mx.array(ids), max_tokens=max_tokens, prompt_cache=cache):
            tokens.append(int(part.token))
            _check(loaded.source.name, ids, part.logprobs, int(part.token))
            text = part.text if any(pieces) else _space(loaded.tokenizer, ids, tokens, part.text)
            on_text(text)
            pieces.append(text)
            rate, reason = part.generation_tps, part.finish_reason
    size = CacheSize.of(cache)
    coded = 0 if plan is None else most_coded(cache)
    return Generation(tokens, "".join(pieces), len(ids), rate, size.resident, size.fp16, reason == "stop", coded)


def _check(name: str, ids: list[int], log_p: mx.array, token: int) -> None:
    """Raises `InputError` for a prompt that another model's tokenizer made, and for logits that are no distribution."""
    if max(ids) >= log_p.size:
        raise InputError(
            f"{name} has {log_p.size} tokens, and its tokenizer makes of the prompt number {max(ids)}; use the "
            "tokenizer that belongs to it"
        )
    if not mx.isfinite(log_p[token]).item():
        raise InputError(f"{name}'s logits are not finite; use another --dtype, or a model that is whole")


def _space(tokenizer: Any, ids: list[int], tokens: list[int], text: str) -> str:
    """The first text with the space before it, which mlx-lm's streaming detokenizer drops."""
    before: str = tokenizer.decode(ids)
    after: str = tokenizer.decode(ids + tokens)
    return f" {text}" if text and after.startswith(f"{before} ") and not text.startswith(" ") else text


def first_difference(one: list[int], other: list[int]) -> int | None:
    """Index of the first token in which two generations differ, the end of one included; None where they are equal."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))
