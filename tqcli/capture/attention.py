"""Sees every attention call of an mlx-lm model without changing a bit of what it computes.

mlx-lm's models import `scaled_dot_product_attention` by name from `mlx_lm.models.base`, so it is wrapped in the
namespace of each module that a model's parts come from, and put back afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from tqcli.errors import InputError

_FUNCTION = "scaled_dot_product_attention"
_BASE = "mlx_lm.models.base"


@dataclass(frozen=True)
class AttentionCall:
    """One call: queries [batch, n_q_heads, new, head_dim], keys and values [batch, n_kv_heads, seen, head_dim].

    All after the rotary embedding; the last `new` keys and values are those of the queries' own tokens.
    """

    cache_index: int
    """Index of the layer's cache in the prompt cache."""
    queries: mx.array
    keys: mx.array
    values: mx.array
    scale: float
    output: mx.array
    """[batch, n_q_heads, new, value_head_dim], before the output projection."""


@contextmanager
def observe_attention(model: Any, cache: Sequence[Any], see: Callable[[AttentionCall], None]) -> Iterator[None]:
    """Calls `see` for every attention call that goes with one of the caches, while the context lasts.

    Calls for other caches pass unseen, so that observers may be nested. Raises `InputError` for a model that doesn't
    use mlx-lm's common attention function.
    """
    index_of = {id(c): i for i, c in enumerate(cache)}
    modules = _modules_with_attention(model)
    if not modules:
        raise InputError(
            f"the model {type(model).__module__.rpartition('.')[2]} doesn't use mlx-lm's common attention function, "
            "so its keys and values can't be captured"
        )

    def wrap(original: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def observed(
            queries: mx.array, keys: mx.array, values: mx.array, cache: Any, scale: float, *args: Any, **kwargs: Any
        ) -> mx.array:
            index = index_of.get(id(cache))
            # The quantised path scales the queries in place: what is seen must be a copy.
            seen = None if index is None else mx.array(queries)
            output = original(queries, keys, values, cache, scale, *args, **kwargs)
            if index is not None and seen is not None:
                see(AttentionCall(index, seen, keys, values, float(scale), output))
            return output

        return observed

    originals = [(module, getattr(module, _FUNCTION)) for module in modules]
    try:
        for module, original in originals:
            setattr(module, _FUNCTION, wrap(original))
        yield
    finally:
        for module, original in originals:
            setattr(module, _FUNCTION, original)


def _modules_with_attention(model: Any) -> list[Any]:
    names = {type(part).__module__ for _, part in model.named_modules()} - {_BASE}
    modules = [sys.modules[name] for name in sorted(names) if name in sys.modules]
    return [module for module in modules if hasattr(module, _FUNCTION)]
