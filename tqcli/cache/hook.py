"""Makes a model's attention read compressed caches.

mlx-lm's models call `scaled_dot_product_attention` by a name in their own module. It is replaced there, for as long as
it is wanted, by a function that asks a `CompressedKVCache` to attend and hands every other call on as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from tqcli.cache.compressed import CompressedKVCache
from tqcli.capture.attention import ATTENTION, Attention, modules_with_attention, replaced_attention

_ORIGINAL = "tq_original"


@contextmanager
def compressed_attention(model: Any) -> Iterator[None]:
    """While the context lasts, compressed caches work in this model, and in others of its architecture.

    May be nested. Raises `InputError` for a model that doesn't use mlx-lm's common attention function.
    """
    register()
    with replaced_attention(model, _reading):
        yield


def install(model: Any) -> None:
    """As `compressed_attention`, until `uninstall`; a second call changes nothing."""
    register()
    for module in modules_with_attention(model):
        original = getattr(module, ATTENTION)
        if not hasattr(original, _ORIGINAL):
            setattr(module, ATTENTION, _reading(original))


def uninstall(model: Any) -> None:
    """Takes `install` back; without it, nothing happens."""
    for module in modules_with_attention(model):
        original = getattr(getattr(module, ATTENTION), _ORIGINAL, None)
        if original is not None:
            setattr(module, ATTENTION, original)


def register() -> None:
    """Lets mlx-lm's `load_prompt_cache` find the class: it looks in its own module's names."""
    import mlx_lm.models.cache as caches

    caches.CompressedKVCache = CompressedKVCache


def _reading(original: Attention) -> Attention:
    """The attention function, dispatching on the kind of the cache."""

    def attention(
        queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, *args: Any, **kwargs: Any
    ) -> mx.array:
        if not isinstance(cache, CompressedKVCache):
            return original(queries, keys, values, cache, scale, *args, **kwargs)
        return cache.attend(queries, scale, *args, **kwargs)

    setattr(attention, _ORIGINAL, original)
    return attention
