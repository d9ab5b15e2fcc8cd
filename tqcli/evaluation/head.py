"""Splits an mlx-lm model into its body, which reads the cache, and its output head, which makes logits.

Hidden states take a hundredth of the memory of logits, so they are what is kept of a run. The split is made by the
model's own code: the body's call is watched for what it returns, and later answered with a hidden state in its place,
so that what the model does to logits (tied or untied projections, scales, soft caps) is done by the model itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import mlx.core as mx


class OutputHead:
    """Where a model is split: what is kept of a run, and how it becomes logits."""

    def __init__(self, model: Any, body: Any, name: str) -> None:
        self._model, self._body = model, body
        self.name = name
        """Path of the body in the model, as `named_modules` has it; empty where the model can't be split."""

    @classmethod
    def find(cls, model: Any, ids: Sequence[int]) -> Self:
        """The innermost split at which the head makes of a hidden state, bit for bit, the logits that the model makes.

        ids: a few tokens to try it with. Where no part of the model can be split off, logits are kept.
        """
        tokens = mx.array(list(ids), dtype=mx.int32)[None]
        logits = model(tokens)[0]
        for name, body in _bodies(model):
            head = cls(model, body, name)
            try:
                hidden = head.hidden(tokens, None)
                if hidden.shape[:1] == (len(ids),) and _same(head._model_logits(hidden), logits):
                    return head
            except Exception:  # an architecture's own code can fail in any way when it is split where it can't be
                continue
        return cls(model, None, "")

    @property
    def keeps(self) -> str:
        """What is kept of a run: "hidden states" or "logits"."""
        return "logits" if self._body is None else "hidden states"

    def hidden(self, tokens: mx.array, cache: Any) -> mx.array:
        """What the head turns into logits, [tokens, width] in the model's dtype, for token ids [1, tokens].

        Not evaluated; the cache is updated, and logits are never computed.
        """
        if self._body is None:
            return self._call(tokens, cache)
        returned: list[Any] = []

        def watch(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            returned.append(call(*args, **kwargs))
            return returned[-1]

        with _answering(self._body, watch):
            self._call(tokens, cache)
        if len(returned) != 1 or not isinstance(returned[0], mx.array) or returned[0].ndim != 3:
            raise ValueError(f"{self.name} is called {len(returned)} times, or doesn't return one hidden state a token")
        return returned[0][0]

    def logits(self, hidden: mx.array) -> mx.array:
        """float32 [tokens, vocabulary], for hidden states [tokens, width]. Not evaluated."""
        return self._model_logits(hidden).astype(mx.float32)

    def _model_logits(self, hidden: mx.array) -> mx.array:
        if self._body is None:
            return hidden
        with _answering(self._body, lambda call, *args, **kwargs: hidden[None]):
            return self._call(mx.zeros((1, len(hidden)), dtype=mx.int32), None)

    def _call(self, tokens: mx.array, cache: Any) -> mx.array:
        logits: mx.array = self._model(tokens, cache=cache)[0]
        return logits


def _bodies(model: Any) -> list[tuple[str, Any]]:
    """The modules that hold all of the model's blocks, innermost first, but for the model itself."""
    blocks = {id(block) for block in model.layers}
    holders = []
    for name, module in model.named_modules():
        parts = {id(part) for _, part in module.named_modules()}
        if name and blocks <= parts and id(module) not in blocks:
            holders.append((len(parts), name, module))
    return [(name, module) for _, name, module in sorted(holders, key=lambda holder: holder[0])]


def _same(a: mx.array, b: mx.array) -> bool:
    """Whether every element is equal, and the dtype."""
    return a.dtype == b.dtype and bool(mx.array_equal(a, b, equal_nan=True).item())


@contextmanager
def _answering(module: Any, answer: Callable[..., Any]) -> Iterator[None]:
    """While this lasts, calls of the module are answered by `answer`, which is given the call itself first.

    A call is looked up in the class, so it is there that it is replaced; other modules of the class are called as ever.
    """
    cls = type(module)
    original, own = cls.__call__, "__call__" in vars(cls)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not module:
            return original(self, *args, **kwargs)
        return answer(lambda *a, **k: original(self, *a, **k), *args, **kwargs)

    cls.__call__ = call
    try:
        yield
    finally:
        if own:
            cls.__call__ = original
        else:
            del cls.__call__
