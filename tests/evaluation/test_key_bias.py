"""A large bias of the key projection is what breaks 3-bit keys; centring before the rotary embedding mends it."""

from pathlib import Path

import mlx.core as mx
import numpy as np
from conftest import TinyModelDir

from tqcli.capture.run import capture
from tqcli.capture.store import Capture, open_capture
from tqcli.codecs.spec import parse_codec
from tqcli.datasets import load_text
from tqcli.models import load

TOKENS = 256


def attention_kl(source: Capture, codec_text: str) -> float:
    """Mean over queries, heads and layers of KL(weights || weights with coded keys), causal, in nats."""
    total, count = 0.0, 0
    for window in source.windows():
        positions = window.query_positions
        mask = mx.arange(TOKENS)[None, :] <= mx.array(positions)[:, None]
        for layer in source.layers:
            ctx = source.context(layer, "keys")
            codec = parse_codec(codec_text).keys.build("keys")
            k, q = window.keys(layer), window.queries(layer)
            exact = q @ mx.repeat(k, ctx.gqa_ratio, axis=0).swapaxes(-1, -2)
            coded = codec.scores(q, codec.encode(k, ctx), ctx)
            logs = [
                np.array(_log_softmax(mx.where(mask, s * ctx.scale, -mx.inf)), dtype=np.float64) for s in (exact, coded)
            ]
            p = np.exp(logs[0])
            seen = np.broadcast_to(np.array(mask), p.shape)
            total += float((p[seen] * (logs[0] - logs[1])[seen]).sum())
            count += p.shape[0] * p.shape[1]
    return total / count


def _log_softmax(x: mx.array) -> mx.array:
    return x - mx.logsumexp(x, axis=-1, keepdims=True)


def test_center_rope_against_none_and_mean_at_three_bits(tiny_model_dir: TinyModelDir, tmp_path: Path) -> None:
    folder = tiny_model_dir("qwen2", hidden=896, heads=14, kv_heads=2, head_dim=64, key_bias_std=20.0, layers=2)
    capture(load(str(folder)), load_text("sample"), tmp_path / "c", windows=2, tokens=TOKENS, queries=64)
    source = open_capture(tmp_path / "c")
    assert source.layers[0].rotary is not None
    none, mean, rope = (attention_kl(source, f"turboquant-mse@3,center={c}") for c in ("none", "mean", "rope"))
    assert rope > 0
    assert none >= 20 * rope, (none, rope)
    assert mean >= 10 * rope, (mean, rope)
