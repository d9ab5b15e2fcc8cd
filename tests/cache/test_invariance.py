"""Of fixed keys and values, steps of any size make the same: to 1e-9 in float64, but for flipped codes in float32."""

from __future__ import annotations

from dataclasses import replace

import pytest
from every_codec import every_codec
from one_layer import Layer, by_hand, flips, run, worst

from tqcli.codecs.spec import CodecSpec

TOKENS = 130
STEPS = (1, 7, 64, TOKENS)
SHAPES = {
    "full": Layer("", q_heads=9, kv_heads=3, head_dim=80, value_head_dim=64),
    "full-windowed": Layer("", 4, 32, q_heads=14, kv_heads=2, head_dim=64, value_head_dim=96),
    "sliding": Layer("", q_heads=14, kv_heads=2, head_dim=96, value_head_dim=80, window=70),
    "sliding-windowed": Layer("", 4, 32, q_heads=9, kv_heads=3, head_dim=64, value_head_dim=64, window=70),
}
FLIPS = 2
"""Vectors of some 700 that may be coded otherwise in float32: float noise tips a code or a scale on a boundary."""


def layer(spec: CodecSpec, shape: str, dtype: str) -> Layer:
    """Of the shape, with channels that the codec can code, and calibrated where it has to be."""
    made = replace(SHAPES[shape], codec=str(spec), dtype=dtype)
    if spec.build("keys").unsupported(made.context("keys")) or spec.name == "affine":
        made = replace(made, head_dim=64, value_head_dim=128)
    return made.calibrated(24) if spec.build("keys").needs_calibration else made


@pytest.mark.parametrize("spec", every_codec(), ids=str)
@pytest.mark.parametrize("shape", ["full", "sliding-windowed"])
def test_steps_agree_in_float64_and_with_the_definition(spec: CodecSpec, shape: str) -> None:
    of = layer(spec, shape, "float64")
    q, k, v = of.tensors(TOKENS)
    caches = [of.cache() for _ in STEPS]
    outputs = [run(cache, q, k, v, step) for cache, step in zip(caches, STEPS, strict=True)]
    for cache, output in zip(caches[1:], outputs[1:], strict=True):
        assert worst(output, outputs[0]) < 1e-9
        assert flips(cache, caches[0]) == 0
    # A lossless cache is read by MLX's own attention, whose exponential is that of float32 in float64 too.
    assert worst(outputs[0], by_hand(of, q, k, v)) < (1e-6 if spec.name == "identity" else 1e-9)


@pytest.mark.parametrize("spec", every_codec(), ids=str)
@pytest.mark.parametrize("shape", ["full-windowed", "sliding"])
def test_steps_agree_in_float32_but_for_codes_on_a_boundary(spec: CodecSpec, shape: str) -> None:
    of = layer(spec, shape, "float32")
    q, k, v = of.tensors(TOKENS)
    caches = [of.cache() for _ in STEPS]
    # At this scale logits are below 10, so that their rounding is that of a model's.
    outputs = [run(cache, q, k, v, step, scale=0.02) for cache, step in zip(caches, STEPS, strict=True)]
    for cache, output in zip(caches[1:], outputs[1:], strict=True):
        flipped = flips(cache, caches[0])
        assert flipped <= (0 if spec.name in ("identity", "fp16", "affine") else FLIPS)
        assert worst(output, outputs[0]) < 1e-5 or flipped
