from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from small_models import largest

# isort: split
import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE, Llama3RoPE, SuScaledRoPE, YarnRoPE, initialize_rope

from tqcli.capture.rotary import observe_rope, probe_rotary
from tqcli.codecs.rotary import turn

POSITIONS = np.array([0, 1, 2, 17, 255, 1024, 4095, 5000])
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}

ROPES: dict[str, Callable[[int], Any]] = {
    "half-split": lambda d: nn.RoPE(d, traditional=False),
    "interleaved": lambda d: nn.RoPE(d, traditional=True),
    "base 1e6": lambda d: nn.RoPE(d, base=1_000_000.0),
    "scale 1/4": lambda d: nn.RoPE(d, scale=0.25),
    "partial": lambda d: nn.RoPE(d // 2, traditional=False),
    "partial interleaved": lambda d: nn.RoPE(d // 2, traditional=True),
    "llama3": lambda d: Llama3RoPE(d, scaling_config=LLAMA3),
    "llama3 interleaved": lambda d: Llama3RoPE(d, traditional=True, base=500_000.0, scaling_config=LLAMA3),
    "yarn": lambda d: YarnRoPE(d, scaling_factor=4.0, original_max_position_embeddings=1024),
    "longrope": lambda d: SuScaledRoPE(
        d, original_max_position_embeddings=4096, long_factor=list(np.linspace(1.0, 8.0, d // 2))
    ),
    "proportional": lambda d: initialize_rope(
        d, 10_000.0, False, {"rope_type": "proportional", "partial_rotary_factor": 0.5}
    ),
}


def gain_of(rope: Any, head_dim: int) -> mx.array:
    """What the module multiplies each channel by, apart from turning: YaRN's and LongRoPE's mscale."""
    gain: mx.array = rope(mx.ones((1, 1, 1, head_dim)), offset=0)
    return gain


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
@pytest.mark.parametrize("name", ROPES)
def test_turning_by_the_found_parameters_is_what_the_module_does(name: str, head_dim: int) -> None:
    rope = ROPES[name](head_dim)
    found = probe_rotary(rope, head_dim)
    assert found is not None

    x = mx.random.normal((1, 2, 1, head_dim), key=mx.random.key(head_dim))
    theirs = mx.concatenate([rope(x, offset=int(t)) for t in POSITIONS], axis=2)
    ours = turn(x * gain_of(rope, head_dim), POSITIONS, found)
    assert largest(ours - theirs) < 2e-3 * largest(theirs)


@pytest.mark.parametrize("name", ROPES)
def test_turning_back_restores_what_was_turned(name: str) -> None:
    found = probe_rotary(ROPES[name](96), 96)
    assert found is not None
    x = mx.random.normal((3, len(POSITIONS), 96), key=mx.random.key(1))
    restored = turn(turn(x, POSITIONS, found), POSITIONS, found, inverse=True)
    assert largest(restored - x) < 2e-6


def test_partial_dims_and_pairing_are_told() -> None:
    half, interleaved = probe_rotary(nn.RoPE(32), 80), probe_rotary(nn.RoPE(32, traditional=True), 80)
    assert half is not None and interleaved is not None
    assert (half.dims, half.interleaved) == (32, False)
    assert (interleaved.dims, interleaved.interleaved) == (32, True)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [32, 64])
def test_a_rotation_that_is_computed_by_hand_is_measured(dims: int, interleaved: bool) -> None:
    frequencies = 10_000.0 ** (-np.arange(0, dims, 2) / dims)

    def by_hand(x: mx.array, offset: int) -> mx.array:
        first = np.arange(0, dims, 2) if interleaved else np.arange(dims // 2)
        second = first + (1 if interleaved else dims // 2)
        y, cos, sin = np.array(x), np.cos(offset * frequencies), np.sin(offset * frequencies)
        a, b = y[..., first].copy(), y[..., second].copy()
        y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
        return mx.array(y)

    found = probe_rotary(by_hand, 64)
    assert found is not None
    assert (found.dims, found.interleaved) == (dims, interleaved)
    # In a float32 matrix, the angle at position 4,096 is known to 1e-7 of a turn or so.
    assert np.abs(np.array(found.frequencies) - frequencies).max() < 1e-9


@pytest.mark.parametrize(
    "rope",
    [
        lambda x, offset: x,
        lambda x, offset: x + offset,
        lambda x, offset: mx.concatenate([x[..., 1:], x[..., :1]], axis=-1),
        lambda x, offset: -x,
        DynamicNTKScalingRoPE(64, max_position_embeddings=512, traditional=False, base=10_000.0, factor=2.0),
    ],
    ids=["none", "shift", "permutation", "mirror", "frequencies that change with the length"],
)
def test_what_is_not_a_rotation_by_position_is_not_taken_for_one(rope: Any) -> None:
    assert probe_rotary(rope, 64) is None


def test_the_rope_function_is_put_back_after_an_exception() -> None:
    original = mx.fast.rope
    with pytest.raises(RuntimeError, match="stop"), observe_rope(lambda call, output: None):
        raise RuntimeError("stop")
    assert mx.fast.rope is original
