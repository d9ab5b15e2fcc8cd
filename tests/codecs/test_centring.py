"""Centring removes what keys share and adds it back, from no token of the future."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from helpers import context, rotary

from tqcli.codecs.centring import centring_used
from tqcli.codecs.context import RotaryParameters
from tqcli.codecs.rotary import turn
from tqcli.codecs.spec import parse_codec
from tqcli.codecs.warm_up import WARM_UP_TOKENS


def keys_with_a_bias(tokens: int, head_dim: int, size: float = 10.0) -> tuple[mx.array, np.ndarray]:
    """Gaussian pre-rotary keys plus one fixed vector, rotated: what a projection bias does."""
    rng = np.random.default_rng(head_dim)
    bias = rng.standard_normal(head_dim) * size
    before = mx.array((rng.standard_normal((2, tokens, head_dim)) + bias).astype(np.float32))
    return turn(before, np.arange(tokens), rotary(head_dim)), bias


def relative_mse(text: str, x: mx.array) -> float:
    codec = parse_codec(text).keys.build("keys")
    ctx = context(x.shape[-1], "keys", x.shape[-2], x.shape[0])
    decoded = codec.decode(codec.encode(x, ctx), ctx)
    return float((mx.sum((decoded - x) ** 2) / mx.sum(x**2)).item())


@pytest.mark.parametrize("codec", ["turboquant-mse@3", "affine@3"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_rope_takes_out_a_bias_that_a_plain_mean_misses(codec: str, head_dim: int) -> None:
    x, _ = keys_with_a_bias(512, head_dim)
    none, mean, rope = (relative_mse(f"{codec},center={c}", x) for c in ("none", "mean", "rope"))
    assert rope < mean / 5
    assert rope < none / 20


def test_mean_takes_out_a_shared_vector() -> None:
    x = mx.random.normal((2, 300, 64), key=mx.random.key(0)) + 9
    assert relative_mse("turboquant-mse@3,center=mean", x) < relative_mse("turboquant-mse@3,center=none", x) / 20


def test_no_future_token_is_used() -> None:
    """What is coded of the first tokens doesn't change with those that follow the warm-up."""
    x, _ = keys_with_a_bias(200, 64)
    codec = parse_codec("turboquant-mse@4").keys.build("keys")
    short, long = (codec.encode(x[:, :n], context(64, "keys", n, 2)) for n in (100, 200))
    assert mx.array_equal(short.arrays["mean"], long.arrays["mean"]).item()
    assert mx.array_equal(short.arrays["codes"], long.arrays["codes"][:, :100]).item()


@pytest.mark.parametrize("tokens", [0, 1, 7, WARM_UP_TOKENS - 1])
def test_a_cache_too_short_to_centre_stays_as_it_is(tokens: int) -> None:
    x = mx.random.normal((2, tokens, 64), key=mx.random.key(1)).astype(mx.float16)
    codec, ctx = parse_codec("turboquant-mse@2").keys.build("keys"), context(64, "keys", tokens, 2)
    enc = codec.encode(x, ctx)
    assert mx.array_equal(codec.decode(enc, ctx), x.astype(mx.float32)).item()
    assert enc.nbytes == x.nbytes


def test_a_calibrated_mean_serves_short_caches_and_is_counted_apart() -> None:
    x, _ = keys_with_a_bias(300, 64)
    codec, ctx = parse_codec("turboquant-mse@3").keys.build("keys"), context(64, "keys", 300, 2)
    state = codec.calibrate(x, ctx)
    short = context(64, "keys", 7, 2)
    enc = codec.encode(x[:, :7], short, state)
    assert "mean" not in enc.arrays
    assert "0.keys.mean" in enc.shared
    decoded = codec.decode(enc, short)
    assert (mx.sum((decoded - x[:, :7]) ** 2) / mx.sum(x[:, :7] ** 2)).item() < 0.001


def test_rope_falls_back_to_a_mean_without_rotary_parameters_and_leaves_values_alone() -> None:
    ctx = context(64)
    assert centring_used("rope", ctx) == "rope"
    assert centring_used("rope", replace(ctx, rotary=None)) == "mean"
    assert centring_used("rope", replace(ctx, tensor="values")) == "none"
    assert centring_used("mean", replace(ctx, tensor="values")) == "mean"


def test_scores_are_those_of_the_decoded_keys() -> None:
    x, _ = keys_with_a_bias(100, 64)
    codec, ctx = parse_codec("turboquant-mse@3").keys.build("keys"), context(64, "keys", 100, 2)
    assert codec.centring(ctx) == "rope"
    enc = codec.encode(x, ctx)
    q = mx.random.normal((6, 5, 64), key=mx.random.key(2))
    expected = q @ mx.repeat(codec.decode(enc, ctx), 3, axis=0).swapaxes(-1, -2)
    assert mx.allclose(codec.scores(q, enc, ctx), expected, atol=1e-2, rtol=1e-4).item()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [16, 64])
def test_turning_is_a_rotation_with_an_inverse(interleaved: bool, dims: int) -> None:
    parameters = RotaryParameters(rotary(dims).frequencies, interleaved)
    x = mx.random.normal((2, 63, 64), key=mx.random.key(dims))
    positions = np.arange(1000, 1063)
    turned = turn(x, positions, parameters)
    assert mx.allclose(mx.sum(turned**2, axis=-1), mx.sum(x**2, axis=-1), rtol=1e-4).item()
    assert mx.allclose(turn(turned, positions, parameters, inverse=True), x, atol=1e-5).item()
    expected = mx.fast.rope(x, dims, traditional=interleaved, base=10000.0, scale=1.0, offset=1000)
    assert mx.allclose(turned, expected, atol=2e-3).item()
