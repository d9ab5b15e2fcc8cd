"""Sees every attention call of an mlx-lm model without changing a bit of what it computes.

mlx-lm's models import `scaled_dot_product_attention` by name from `mlx_lm.models.base`, so it is wrapped in the
namespace of each module that a model's parts come from, and put back afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from tqcli.errors import InputError

ATTENTION = "scaled_dot_product_attention"
"""Name of the common attention function."""
_BASE = "mlx_lm.models.base"
_CALLERS = 4
"""How many frames up the attention module is looked for; it is nearly always the first."""

Attention = Callable[..., mx.array]
"""`scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks=None)`."""


@dataclass(frozen=True)
class AttentionCall:
    """One call: queries [batch, n_q_heads, new, head_dim], keys and values [batch, n_kv_heads, seen, head_dim].

    All after the rotary embedding; the last `new` keys and values are those of the queries' own tokens.
    """

    cache_index: int
    """Index of the layer's entry in the prompt cache."""
    cache: Any
    """That entry, or the one within it where a layer has several (mlx-lm's CacheList)."""
    module: Any
    """The attention module that made the call; None where it can't be told."""
    queries: mx.array
    keys: mx.array
    values: mx.array
    scale: float
    mask: mx.array | str | None
    sinks: mx.array | None
    """Logits [n_q_heads] that the softmax counts but no value answers to."""
    output: mx.array
    """[batch, n_q_heads, new, value_head_dim], before the output projection."""


@contextmanager
def observe_attention(model: Any, cache: Sequence[Any], see: Callable[[AttentionCall], None]) -> Iterator[None]:
    """Calls `see` for every attention call that goes with one of the caches, while the context lasts.

    Calls for other caches pass unseen, so that observers may be nested. Raises `InputError` for a model that doesn't
    use mlx-lm's common attention function.
    """
    index_of = {id(leaf): index for index, entry in enumerate(cache) for leaf in leaves(entry)}

    def wrap(original: Attention) -> Attention:
        def observed(
            queries: mx.array, keys: mx.array, values: mx.array, cache: Any, scale: float, *args: Any, **kwargs: Any
        ) -> mx.array:
            index = index_of.get(id(cache))
            if index is None:
                return original(queries, keys, values, cache, scale, *args, **kwargs)
            # The quantised path scales the queries in place: what is seen must be a copy.
            seen = mx.array(queries)
            output = original(queries, keys, values, cache, scale, *args, **kwargs)
            rest = dict(zip(("mask", "sinks"), args, strict=False)) | kwargs
            module = _calling_module(sys._getframe(1))
            mask, sinks = rest.get("mask"), rest.get("sinks")
            see(AttentionCall(index, cache, module, seen, keys, values, float(scale), mask, sinks, output))
            return output

        return observed

    with replaced_attention(model, wrap):
        yield


@contextmanager
def replaced_attention(model: Any, wrap: Callable[[Attention], Attention]) -> Iterator[None]:
    """Puts `wrap(original)` in the place of the attention function of every module that the model's parts come from.

    The originals are back when the context ends. Raises `InputError` for a model that doesn't use mlx-lm's common
    attention function.
    """
    originals = [(module, getattr(module, ATTENTION)) for module in modules_with_attention(model)]
    try:
        for module, original in originals:
            setattr(module, ATTENTION, wrap(original))
        yield
    finally:
        for module, original in originals:
            setattr(module, ATTENTION, original)


def leaves(entry: Any) -> Iterator[Any]:
    """The caches in one entry of a prompt cache: itself, or its parts where it is a list of caches."""
    parts = getattr(entry, "caches", None)
    if isinstance(parts, (list, tuple)):
        for part in parts:
            yield from leaves(part)
    else:
        yield entry


def architecture(model: Any) -> str:
    """The architecture as mlx-lm names it."""
    return str(getattr(model, "model_type", None) or type(model).__module__.rpartition(".")[2])


def modules_with_attention(model: Any) -> list[Any]:
    """Python modules that the model's parts come from and that call mlx-lm's common attention function by its name.

    Raises `InputError` if there are none.
    """
    names = {type(part).__module__ for _, part in model.named_modules()} - {_BASE}
    modules = [sys.modules[name] for name in sorted(names) if name in sys.modules]
    if found := [module for module in modules if hasattr(module, ATTENTION)]:
        return found
    raise InputError(
        f"the architecture {architecture(model)} doesn't use mlx-lm's common attention function, "
        "so its keys and values can't be captured or compressed"
    )


def _calling_module(frame: FrameType | None) -> Any:
    """The nearest caller that is a method of an mlx module. Nothing in the call's arguments tells who makes it."""
    for _ in range(_CALLERS):
        if frame is None:
            break
        owner = frame.f_locals.get("self")
        if isinstance(owner, Module):
            return owner
        frame = frame.f_back
    return None
