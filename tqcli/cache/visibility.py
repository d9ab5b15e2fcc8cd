"""Which tokens a query sees: the mask as mlx-lm builds it, by absolute positions."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class Visibility:
    """What hides tokens from the queries of one attention call, at positions `first` to `tokens` - 1."""

    mask: mx.array | None
    """[..., queries, columns], bool (True attends) or additive; its last column is the last token."""
    causal: bool
    window: int | None
    """The layer's, None where it attends to everything. An array hides what has left it by itself."""
    first: int
    tokens: int

    @staticmethod
    def of(mask: mx.array | str | None, first: int, tokens: int, window: int | None) -> Visibility:
        """From an attention call's mask: "causal", an array, or None, which hides nothing from more than one query."""
        if isinstance(mask, mx.array):
            return Visibility(mask if mask.ndim > 1 else mask[None], False, window, first, tokens)
        if mask is not None and mask != "causal":
            raise ValueError(f'mask must be "causal", an array or None, not {mask!r}')
        causal = mask == "causal" or tokens - first == 1
        return Visibility(None, causal, window if causal else None, first, tokens)

    def begin(self, position: int) -> int:
        """The earliest token that the query at this position, or a later one, may see."""
        return self._before if self.window is None else max(self._before, position - self.window + 1)

    def end(self, position: int) -> int:
        """One past the last token that the query at this position, or an earlier one, may see."""
        return position + 1 if self.causal else self.tokens

    def hide(self, logits: mx.array, queries: range, tokens: range) -> mx.array:
        """Logits [batch, n_q_heads, queries, tokens] of queries at these positions, -inf where a token is hidden."""
        if self.mask is not None:
            rows, columns = self._rows(queries), slice(tokens.start - self._before, tokens.stop - self._before)
            mask = self.mask[..., rows, columns]
            return mx.where(mask, logits, -mx.inf) if mask.dtype == mx.bool_ else logits + mask.astype(logits.dtype)
        inside = self.window is None or tokens.start > queries.stop - 1 - self.window
        if not self.causal or (tokens.stop - 1 <= queries.start and inside):
            return logits
        return mx.where(self._causal(queries, tokens), logits, -mx.inf)

    def plain(self) -> tuple[int, mx.array | str | None]:
        """The earliest token that counts, and the mask over the tokens from there on for `mx.fast`'s attention."""
        begin, queries = self.begin(self.first), range(self.first, self.tokens)
        if self.mask is not None:
            return begin, self.mask[..., begin - self._before :]
        if not self.causal:
            return begin, None
        if len(queries) == 1:
            return begin, None
        if self.window is None or self.tokens <= self.window:
            return begin, "causal"
        return begin, self._causal(queries, range(begin, self.tokens))

    @property
    def _before(self) -> int:
        """Tokens that have no column: they are hidden."""
        return 0 if self.mask is None else self.tokens - self.mask.shape[-1]

    def _rows(self, queries: range) -> slice:
        if self.mask is not None and self.mask.shape[-2] == 1:
            return slice(None)
        return slice(queries.start - self.first, queries.stop - self.first)

    def _causal(self, queries: range, tokens: range) -> mx.array:
        behind = mx.arange(queries.start, queries.stop)[:, None] - mx.arange(tokens.start, tokens.stop)[None]
        return behind >= 0 if self.window is None else (behind >= 0) & (behind < self.window)
