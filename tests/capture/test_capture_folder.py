from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import write_tiny_model

from tqcli.capture.manifest import CaptureManifest, load_manifest
from tqcli.capture.run import capture
from tqcli.capture.store import newest_capture, open_capture
from tqcli.capture.window import capture_window
from tqcli.datasets import Document, Text
from tqcli.errors import InputError
from tqcli.models import LoadedModel, load

# isort: split
import mlx.core as mx
import numpy as np

BOOK = Text("book.txt", (Document("book", "It was the best of times, it was the worst of times. " * 40),))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Sliding windows of 16 tokens in layers 0 and 2; its tokenizer begins every text with BOS."""
    folder = write_tiny_model(
        tmp_path_factory.mktemp("gemma") / "model", "gemma3_text", layers=4, kv_heads=1, head_dim=64, bos=True
    )
    return load(str(folder))


@pytest.fixture(scope="module")
def made(gemma: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CaptureManifest]:
    out = tmp_path_factory.mktemp("captures") / "gemma"
    return out, capture(gemma, BOOK, out, windows=2, tokens=40, queries=6, chunk=16)


def test_the_folder_holds_what_the_manifest_says(made: tuple[Path, CaptureManifest]) -> None:
    out, manifest = made
    assert load_manifest(out) == manifest
    assert manifest.complete
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", *(s.file for s in manifest.shards)]
    assert [(layer.kind, layer.window) for layer in manifest.layers] == [("sliding", 16), ("full", None)] * 2


def test_shards_hold_what_attention_was_given(gemma: LoadedModel, made: tuple[Path, CaptureManifest]) -> None:
    from mlx_lm.models.cache import make_prompt_cache

    opened = open_capture(made[0])
    for window, shard in zip(opened.windows(), made[1].shards, strict=True):
        ids = np.array(shard.token_ids, dtype=np.int32)
        again = capture_window(gemma.model, list(make_prompt_cache(gemma.model)), ids, window.query_positions, 16)
        for layer in range(4):
            for tensor, expected in (("keys", again.layers[layer].keys), ("values", again.layers[layer].values)):
                assert window.tensor(layer, tensor).shape == (1, 40, 64)  # type: ignore[arg-type]
                assert mx.array_equal(window.tensor(layer, tensor), expected).item()  # type: ignore[arg-type]
            assert window.queries(layer).shape == (4, 6, 64)
            assert mx.array_equal(window.queries(layer), again.layers[layer].queries).item()


def test_every_window_begins_with_the_bos_token(gemma: LoadedModel, made: tuple[Path, CaptureManifest]) -> None:
    assert made[1].dataset.bos
    assert {shard.token_ids[0] for shard in made[1].shards} == {gemma.tokenizer.bos_token_id}


def test_a_codec_is_told_how_each_layer_works(made: tuple[Path, CaptureManifest]) -> None:
    opened = open_capture(made[0])
    ctx = opened.context(0, "keys")
    assert (ctx.head_dim, ctx.n_q_heads, ctx.n_kv_heads, ctx.gqa_ratio, ctx.window) == (64, 4, 1, 4, 16)
    assert (ctx.scale, ctx.capture_dtype, ctx.cache_dtype) == (0.125, "float32", "float16")
    assert ctx.rotary is not None and ctx.rotary.dims == 64
    assert opened.context(1, "values").window is None


def test_the_same_run_gives_the_same_bytes(
    gemma: LoadedModel, made: tuple[Path, CaptureManifest], tmp_path: Path
) -> None:
    capture(gemma, BOOK, tmp_path / "again", windows=2, tokens=40, queries=6, chunk=16)
    for path in made[0].iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_a_capture_that_fails_leaves_its_whole_windows(
    gemma: LoadedModel, made: tuple[Path, CaptureManifest], tmp_path: Path
) -> None:
    seen = 0

    def stop(tokens: int) -> None:
        nonlocal seen
        seen += tokens
        if seen > 40:
            raise KeyboardInterrupt

    out = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        capture(gemma, BOOK, out, windows=2, tokens=40, queries=6, chunk=16, on_tokens=stop)
    assert len(load_manifest(out).shards) == 1
    with pytest.raises(InputError, match="1 of 2 windows"):
        open_capture(out)
    capture(gemma, BOOK, out, windows=2, tokens=40, queries=6, chunk=16, resume=True)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == {p.name: p.read_bytes() for p in made[0].iterdir()}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"chunk": 1}, "not 1"),
        ({"queries": 0}, "--queries must be 1 or more, not 0"),
        ({"layers": [4]}, "layer 4; the model has layers 0 to 3"),
        ({"layers": [-1]}, "layer -1"),
        ({"layers": []}, "names no layer"),
        ({"resume": True, "overwrite": True}, "--overwrite"),
    ],
)
def test_options_out_of_range_are_refused(
    gemma: LoadedModel, tmp_path: Path, options: dict[str, object], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        capture(gemma, BOOK, tmp_path / "out", windows=1, tokens=40, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_the_newest_capture_is_found_by_its_manifest(made: tuple[Path, CaptureManifest], tmp_path: Path) -> None:
    assert newest_capture(made[0].parent) == made[0]
    with pytest.raises(InputError, match="tq capture"):
        newest_capture(tmp_path)
