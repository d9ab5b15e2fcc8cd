"""Capture of a window of SmolLM2 against the same prefill without it, in memory and to disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import mlx.core as mx

from bench.timing import compare, show
from tqcli.capture.run import CHUNK, capture
from tqcli.capture.window import capture_window, prefill_chunks, sample_positions
from tqcli.datasets import Document, Text, load_text, token_windows
from tqcli.models import load

TOKENS, QUERIES, SEED = 1024, 64, 0


def main() -> None:
    """Prints times and ratios: at most 1.10x of a prefill that computes no logits either is asked for."""
    from mlx_lm.models.cache import make_prompt_cache

    loaded = load("smollm2-135m")
    book = load_text("sample").documents[0]
    text = Text("sample", (Document(book.name, book.text[:20_000]),))
    model, ids = loaded.model, token_windows(text, loaded.tokenizer, TOKENS, 1, SEED).ids[0]
    positions = sample_positions(TOKENS, QUERIES, SEED, 0)

    def prefill(logits: bool) -> None:
        cache, start = make_prompt_cache(model), 0
        for size in prefill_chunks(TOKENS, CHUNK):
            out = model(mx.array(ids[start : start + size])[None], cache=cache)
            mx.eval([entry.state for entry in cache], out if logits else [])
            start += size

    def seen() -> None:
        capture_window(model, list(make_prompt_cache(model)), ids, positions, CHUNK)

    with tempfile.TemporaryDirectory() as folder:

        def written() -> None:
            capture(loaded, text, Path(folder) / "capture", windows=1, tokens=TOKENS, overwrite=True)

        print(f"smollm2-135m, {loaded.compute_dtype}, {TOKENS} tokens in steps of {CHUNK}, all layers")
        ways = {
            "prefill, caches only": lambda: prefill(False),
            "prefill with logits": lambda: prefill(True),
            "capture in memory": seen,
            "capture to disk": written,
        }
        show(compare(ways, rounds=5), "prefill, caches only")
        print("to disk: tokenises the text, hashes and syncs too, and removes the capture of the round before")


if __name__ == "__main__":
    main()
