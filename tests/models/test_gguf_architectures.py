from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tiny_gguf import write_gguf
from tiny_models import write_tiny_model

from tqcli.errors import InputError
from tqcli.models import load

IDS = mx.array([np.random.default_rng(0).integers(3, 280, 48).tolist()])
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"hidden": 96, "heads": 6, "kv_heads": 2},
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama with its own output layer": {"model_type": "llama", "tie_word_embeddings": False},
    "llama with a head_dim of its own": {"model_type": "llama", "head_dim": 32},
    "qwen2": {"key_bias_std": 20.0},
    "qwen3": {"head_dim": 32},
    "gemma3_text": {"layers": 4, "sliding_window": 8, "rope_theta": 1_000_000.0},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQ_CACHE", str(tmp_path / "cache"))


def _original(folder: Path, **sizes: Any) -> Path:
    return write_tiny_model(folder / "original", **sizes)


def _logits(path: Path) -> mx.array:
    logits: mx.array = load(str(path), "float32").model(IDS)
    return logits


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_a_converted_model_has_the_logits_of_the_original(kind: str, stored: str, tmp_path: Path) -> None:
    original = _original(tmp_path, **{"model_type": kind, "dtype": stored, **MODELS[kind]})
    gguf = write_gguf(original, tmp_path / "tiny.gguf", weights="F16" if stored == "float16" else "BF16")
    converted, before = load(str(gguf), "float32"), load(str(original), "float32")
    assert converted.stored_dtype == stored
    if kind == "gemma3_text":  # stored as 1 + w, so rounded once more
        assert mx.allclose(converted.model(IDS), before.model(IDS), rtol=1e-3, atol=1e-3)
    else:
        assert mx.array_equal(converted.model(IDS), before.model(IDS))


def test_quantised_matrices_are_dequantised(tmp_path: Path) -> None:
    original = _original(tmp_path)
    gguf = write_gguf(original, tmp_path / "tiny.gguf", weights="Q8_0")
    assert mx.allclose(_logits(gguf), _logits(original), atol=0.1)
    assert load(str(gguf)).stored_dtype == "float16"


@pytest.mark.parametrize("bos", [False, True])
def test_the_tokenizer_and_its_special_tokens_are_those_of_the_original(bos: bool, tmp_path: Path) -> None:
    original = _original(tmp_path, bos=bos)
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    gguf = write_gguf(original, tmp_path / "tiny.gguf", keys={"tokenizer.chat_template": template})
    before, after = load(str(original)).tokenizer, load(str(gguf)).tokenizer
    text = "In the 21st century, naïve “quotes”…\n\n\tand   runs of spaces 漢字 🙂<|eos|>"
    assert after.encode(text) == before.encode(text)
    assert (after.encode("x")[0] == after.bos_token_id) is bos
    assert after.decode(after.encode(text, add_special_tokens=False)) == text
    assert (after.bos_token_id, after.eos_token_ids) == (before.bos_token_id, before.eos_token_ids)
    assert after.pad_token_id == before.pad_token_id
    assert after.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({"type": "linear", "factor": 8.0}, {"type": "linear", "factor": 8.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 64},
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_a_scaled_rotary_embedding_is_kept(keys: dict[str, Any], scaling: dict[str, Any], tmp_path: Path) -> None:
    original = _original(tmp_path, model_type="qwen2", rope_scaling=scaling)
    keys = {f"qwen2.rope.scaling.{key}": value for key, value in keys.items()}
    gguf = write_gguf(original, tmp_path / "tiny.gguf", keys=keys)
    assert mx.array_equal(_logits(gguf), _logits(original))
    plain = write_gguf(original, tmp_path / "plain.gguf")
    assert not mx.allclose(_logits(plain), _logits(original), atol=1e-3)


def test_llama_3_scaling_is_read_from_its_table(tmp_path: Path) -> None:
    settings = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    original = _original(
        tmp_path, rope_theta=500_000.0, rope_scaling={"rope_type": "llama3", "factor": 8.0, **settings}
    )
    scaled = np.array(load(str(original), "float32").model.layers[0].self_attn.rope._freqs)
    divisors = (scaled / 500_000.0 ** (np.arange(0, 16, 2) / 16)).astype(np.float32)
    assert 1 < divisors.max() <= 8
    gguf = write_gguf(original, tmp_path / "tiny.gguf", tensors={"rope_freqs.weight": divisors})
    assert mx.allclose(_logits(gguf), _logits(original), atol=1e-5)
    other = write_gguf(original, tmp_path / "other.gguf", tensors={"rope_freqs.weight": divisors[::-1].copy()})
    with pytest.raises(InputError, match=r"not Llama 3\.1's table"):
        load(str(other))


def test_an_unknown_tensor_is_one_clear_line(tmp_path: Path) -> None:
    extra = {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}
    gguf = write_gguf(_original(tmp_path), tmp_path / "tiny.gguf", tensors=extra)
    with pytest.raises(InputError, match=r"blk\.0\.attn_sinks\.weight"):
        load(str(gguf))


def test_the_window_and_its_pattern_are_kept(tmp_path: Path) -> None:
    original = _original(tmp_path, model_type="gemma3_text", layers=4, sliding_window=8, sliding_pattern=3)
    config = load(str(write_gguf(original, tmp_path / "tiny.gguf"))).config
    assert (config["sliding_window"], config["sliding_window_pattern"]) == (8, 3)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"llama.expert_count": 8}, "llama.expert_count = 8"),
        ({"llama.rope.dimension_count": 8}, "unequal width"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}, "longrope"),
        ({"llama.attention.sliding_window": 8}, "sliding_window = 8"),
        ({"llama.block_count": None}, "llama.block_count is None"),
        ({"llama.attention.head_count": 3}, "rows for 3 heads"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken'"),
        ({"tokenizer.ggml.model": "t5"}, "'t5'"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
        ({"tokenizer.ggml.merges": ["not there"]}, "contradicts itself"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "320 tokens have 2 types"),
        ({"tokenizer.ggml.bos_token_id": 100_000}, "bos token 100000"),
    ],
)
def test_what_cannot_be_translated_is_one_clear_line(keys: dict[str, Any], named: str, tmp_path: Path) -> None:
    gguf = write_gguf(_original(tmp_path), tmp_path / "tiny.gguf", keys=keys)
    with pytest.raises(InputError) as error:
        load(str(gguf))
    message = str(error.value)
    assert named in message
    assert str(gguf) in message
    assert "\n" not in message
    assert list((tmp_path / "cache" / "models").glob("[!.]*")) == []


def test_another_architecture_is_one_clear_line(tmp_path: Path) -> None:
    original = _original(tmp_path, model_type="qwen2")
    gguf = tmp_path / "tiny.gguf"
    write_gguf(original, gguf)
    data = gguf.read_bytes()
    at = data.index(b"qwen2")
    gguf.write_bytes(data[:at] + b"falco" + data[at + 5 :])
    with pytest.raises(
        InputError, match="holds a model of the kind 'falco'; GGUF files of llama, qwen2, qwen3, gemma3"
    ):
        load(str(gguf))
