"""A large bias of the key projection is what breaks 3-bit keys; centring before the rotary embedding mends it."""

import pytest
from conftest import TinyModelDir

from tqcli.capture.run import capture
from tqcli.capture.store import Capture, open_capture
from tqcli.codecs.base import registered_codecs
from tqcli.codecs.spec import parse_codec
from tqcli.compression.plan import CompressionPlan
from tqcli.datasets import load_text
from tqcli.evaluation.attention import evaluate_attention
from tqcli.models import load

TOKENS = 256
KEY_CODECS = [name for name, cls in registered_codecs().items() if cls.center_default == "rope"]


@pytest.fixture(scope="module")
def biased(tiny_model_dir: TinyModelDir, tmp_path_factory: pytest.TempPathFactory) -> tuple[Capture, Capture]:
    """Two captures of a model with a key bias, of different windows."""
    folder = tiny_model_dir("qwen2", hidden=896, heads=14, kv_heads=2, head_dim=64, key_bias_std=20.0, layers=2)
    model, out = load(str(folder)), tmp_path_factory.mktemp("biased")
    for seed in (0, 1):
        capture(model, load_text("sample"), out / str(seed), windows=2, tokens=TOKENS, queries=64, seed=seed)
    return open_capture(out / "0"), open_capture(out / "1")


def attention_kl(source: Capture, codec: str, calibration: Capture | None = None) -> float:
    """Mean over layers, keys coded only, in nats."""
    plan = CompressionPlan(parse_codec(f"{codec} | identity"))
    value = evaluate_attention(source, [plan], calibration).codecs[0].total["attention_kl"].value
    assert value is not None
    return value


def test_center_rope_against_none_and_mean_at_three_bits(biased: tuple[Capture, Capture]) -> None:
    source, _ = biased
    assert source.layers[0].rotary is not None
    none, mean, rope = (attention_kl(source, f"turboquant-mse@3,center={c}") for c in ("none", "mean", "rope"))
    assert rope > 0
    assert none >= 20 * rope, (none, rope)
    assert mean >= 10 * rope, (mean, rope)


@pytest.mark.parametrize("name", KEY_CODECS)
def test_centring_by_position_helps_every_key_codec(biased: tuple[Capture, Capture], name: str) -> None:
    source, other = biased
    none, rope = (attention_kl(source, f"{name}@2,center={c}", other) for c in ("none", "rope"))
    assert none >= 3 * rope, (none, rope)


def test_a_mean_of_the_first_tokens_is_as_good_as_that_of_another_text(biased: tuple[Capture, Capture]) -> None:
    source, other = biased
    own, calibrated = (attention_kl(source, "turboquant-mse@3", calibration) for calibration in (None, other))
    assert own <= 1.3 * calibrated
