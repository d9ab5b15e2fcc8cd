"""qjl and turboquant-prod estimate inner products without bias, at the papers' variance (2406.03482, 2504.19874)."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from helpers import context, unit_vectors
from scipy import special

from tqcli.codecs.base import Codec
from tqcli.codecs.context import LayerContext
from tqcli.codecs.qjl import QJL
from tqcli.codecs.sketch import gain, mean_projection
from tqcli.codecs.spec import parse_codec
from tqcli.codecs.turboquant_prod import TurboQuantProd
from tqcli.errors import InputError

HEAD_DIMS = (64, 80, 96, 128, 256)
SEEDS = range(8)
KINDS = ("orthogonal", "gaussian")
# d * variance: (pi/2 - 1) D_{b-1} and (pi/2) D_{b-1} at d = 128, D_0 = 1.
PROD = {"orthogonal": (0.571, 0.206, 0.0656, 0.0193), "gaussian": (1.573, 0.570, 0.181, 0.0528)}
# By m / d. For m = d / 2 both are the variance of as many independent signs, less 1 for orthogonal rows.
SIGNS = {
    "orthogonal": {0.5: np.pi - 1, 1: 0.566, 2: 0.285, 4: 0.142},
    "gaussian": {0.5: np.pi, 1: 1.58, 2: 0.785, 4: 0.392},
}


def single_head(head_dim: int) -> LayerContext:
    return replace(context(head_dim), n_q_heads=1)


def bias_and_variance(codecs: list[Codec], head_dim: int, keys: int = 2048, queries: int = 256) -> tuple[float, float]:
    """Over unit keys and independent unit queries: mean estimate of <k, k> less 1; d * mean squared error of <q, k>."""
    at_self, spread = [], []
    ctx = single_head(head_dim)
    for seed, codec in enumerate(codecs):
        k, q = unit_vectors(head_dim, keys, seed), unit_vectors(head_dim, queries, seed + 100)
        enc = codec.encode(mx.array(k)[None], ctx)
        scores = np.array(codec.scores(mx.array(q)[None], enc, ctx)[0], dtype=np.float64)
        spread.append(head_dim * np.mean((scores - q.astype(np.float64) @ k.T) ** 2))
        # <k, estimate of k>: the same estimator, which the tests below hold to the scores.
        at_self.append(np.mean(np.sum(np.array(codec.decode(enc, ctx)[0]) * k, axis=1, dtype=np.float64)) - 1)
    return float(np.mean(at_self)), float(np.mean(spread))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_prod_is_unbiased_at_the_papers_variance(kind: str, head_dim: int, bits: int) -> None:
    codecs: list[Codec] = [TurboQuantProd(bits, sketch=kind, seed=s) for s in SEEDS]  # type: ignore[arg-type]
    bias, variance = bias_and_variance(codecs, head_dim)
    assert abs(bias) < 0.003
    assert variance == pytest.approx(PROD[kind][bits - 1], rel=0.05)
    assert variance == pytest.approx(np.mean([c.ip_variance_theory(head_dim) for c in codecs]), rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("bits", [0.5, 1, 2, 4])
def test_qjl_is_unbiased_at_the_papers_variance(kind: str, head_dim: int, bits: float) -> None:
    codecs: list[Codec] = [QJL(bits, sketch=kind, seed=s) for s in SEEDS]  # type: ignore[arg-type]
    bias, variance = bias_and_variance(codecs, head_dim)
    assert abs(bias) < 0.003
    assert variance == pytest.approx(SIGNS[kind][bits], rel=0.05)
    assert variance == pytest.approx(np.mean([c.ip_variance_theory(head_dim) for c in codecs]), rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("head_dim", "m"), [(4, 16), (8, 64), (12, 7), (17, 40), (64, 33), (80, 100)])
def test_small_heads_and_odd_numbers_of_rows(kind: str, head_dim: int, m: int) -> None:
    codecs: list[Codec] = [QJL(1, m=m, sketch=kind, seed=s) for s in SEEDS]  # type: ignore[arg-type]
    bias, variance = bias_and_variance(codecs, head_dim, keys=4096, queries=64)
    assert abs(bias) < 0.01
    assert variance == pytest.approx(np.mean([c.ip_variance_theory(head_dim) for c in codecs]), rel=0.04)


def test_the_theory_of_orthogonal_rows_in_closed_form() -> None:
    for d in HEAD_DIMS:
        for m in (1, d // 2, d):
            expected = 1 / (m * mean_projection(d) ** 2) - 1
            assert QJL(1, m=m).ip_variance_theory(d) == pytest.approx(expected, rel=1e-5)


def test_the_constant_is_exact_and_tends_to_the_papers() -> None:
    for d in (2, 4, 64, 80, 256):
        expected = special.gamma(d / 2) / np.sqrt(np.pi) / special.gamma((d + 1) / 2)
        assert mean_projection(d) == pytest.approx(expected, rel=1e-12)
    m, d = 16, 4096
    s = mx.where(mx.random.bernoulli(0.5, (m, d), key=mx.random.key(0)), 1.0, -1.0)  # rows of norm sqrt(d)
    assert gain(s) / np.sqrt(d) == pytest.approx(np.sqrt(np.pi / 2) / m, rel=1e-4)


CODECS: list[Codec] = [
    QJL(1),
    QJL(0.5, sketch="gaussian"),
    QJL(2, m=33, rotation="qr"),
    TurboQuantProd(1),
    TurboQuantProd(3),
    TurboQuantProd(2, m=100, sketch="gaussian"),
]


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize(("q_heads", "kv_heads"), [(9, 3), (14, 2), (1, 1)])
@pytest.mark.parametrize("tokens", [0, 1, 7, 63])
def test_scores_are_those_of_what_is_decoded(codec: Codec, q_heads: int, kv_heads: int, tokens: int) -> None:
    """The estimator is linear in the query."""
    ctx = replace(context(80), n_q_heads=q_heads, n_kv_heads=kv_heads)
    k = mx.random.normal((kv_heads, tokens, 80), key=mx.random.key(0))
    q = mx.random.normal((q_heads, 5, 80), key=mx.random.key(1)).astype(mx.bfloat16)
    enc = codec.encode(k, ctx)
    scores = codec.scores(q, enc, ctx)
    assert scores.shape == (q_heads, 5, tokens)
    assert scores.dtype == mx.float32
    assert mx.allclose(scores, Codec.scores(codec, q, enc, ctx), rtol=1e-5, atol=2e-4).item()


@pytest.mark.parametrize("m", [1, 7, 32, 33, 100])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_padding_of_the_signs_is_counted(m: int, head_dim: int) -> None:
    ctx = context(head_dim)
    k = mx.random.normal((2, 7, head_dim), key=mx.random.key(0))
    sketch = 2 * 7 * (4 * -(-m // 32) + 2)
    for codec, first in ((QJL(1, m=m), 0), (TurboQuantProd(1, m=m), 0), (TurboQuantProd(3, m=m), head_dim // 4 + 2)):
        enc = codec.encode(k, ctx)
        assert enc.nbytes == codec.bytes_nominal(2, 7, ctx) == sketch + 2 * 7 * first
    assert QJL(1, m=m).bits_nominal(ctx) == m / head_dim
    assert TurboQuantProd(3, m=m).bits_nominal(ctx) == 2 + m / head_dim


def test_what_is_stored() -> None:
    ctx, k = context(64), mx.random.normal((1, 5, 64), key=mx.random.key(0))
    one = TurboQuantProd(1).encode(k, ctx)
    assert set(one.arrays) == {"residual.signs", "residual.scales"}  # no first stage: one scale
    two = TurboQuantProd(2).encode(k, ctx)
    assert set(two.arrays) == {"codes", "scales", "residual.signs", "residual.scales"}
    assert two.nbytes * 8 == 5 * 64 * (2 + 32 / 64)
    (matrix,) = QJL(1.5, sketch="gaussian").encode(k, ctx).shared.values()
    assert matrix.shape == (96, 64)
    blocks = QJL(1.5).encode(k, ctx).shared
    assert [b.shape for b in blocks.values()] == [(1, 64)] * 2  # signs of a Hadamard round each, the second block cut


def test_no_rotation_is_drawn_twice() -> None:
    """A sketch that repeats the first stage's rotation, or a block of another seed, is not independent of it."""
    ctx, k = context(64), mx.zeros((1, 1, 64))
    drawn = {}
    for seed in SEEDS:
        drawn |= TurboQuantProd(2, m=256, seed=seed).encode(k, ctx).shared
    signs = [bytes(np.array(array)) for name, array in drawn.items() if name.endswith("signs")]
    assert len(signs) == len(set(signs)) == 8 * 5


def with_outliers(head_dim: int, tokens: int) -> mx.array:
    x = np.random.default_rng(head_dim).standard_normal((2, tokens, head_dim)).astype(np.float32)
    for head, channels in enumerate(([3, 9, 10, 33, 40, 41, 50, 63], range(20, 28))):
        x[head][:, list(channels)] *= 8
    return mx.array(x)


def score_error(text: str, k: mx.array, ctx: LayerContext) -> float:
    codec = parse_codec(text).keys.build("keys")
    q = mx.random.normal((ctx.n_q_heads, 64, ctx.head_dim), key=mx.random.key(9))
    exact = q @ mx.repeat(k, ctx.gqa_ratio, axis=0).swapaxes(-1, -2)
    return mx.mean((codec.scores(q, codec.encode(k, ctx), ctx) - exact) ** 2).item()


@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("name", ["qjl@2", "qjl@3", "qjl@3,m=200", "turboquant-prod@2", "turboquant-prod@3"])
def test_outlier_channels_in_a_sketch_of_their_own_help(name: str, head_dim: int) -> None:
    ctx = context(head_dim, kv_heads=2, tokens=100)
    k = with_outliers(head_dim, 100)
    whole = np.mean([score_error(f"{name},center=none,seed={s}", k, ctx) for s in SEEDS])
    split = np.mean([score_error(f"{name},center=none,outliers=8,seed={s}", k, ctx) for s in SEEDS])
    assert split < 0.8 * whole


def test_outliers_leave_the_number_of_sign_bits() -> None:
    ordinary, outliers = QJL(3).split(8, 128)
    assert isinstance(ordinary, QJL)
    assert isinstance(outliers, QJL)
    assert (ordinary.rows(120), outliers.rows(8)) == (256, 128)  # the paper's 3 bits
    assert QJL(3).outliers_default(128) == QJL(2.5).outliers_default(128) == 0
    ctx = context(64, tokens=100)
    k = mx.random.normal((1, 100, 64), key=mx.random.key(0))
    codec = parse_codec("qjl@2.5,center=none,outliers=8").keys.build("keys")
    enc = codec.encode(k, ctx)
    assert enc.nbytes == codec.bytes_nominal(1, 100, ctx) == 100 * (64 * 2.5 / 8 + 2 * 2) + 8  # signs, scales, mask


@pytest.mark.parametrize("head_dim", [64, 80])
def test_half_bits_of_prod_lie_between_the_whole_ones(head_dim: int) -> None:
    ctx = context(head_dim, tokens=200, kv_heads=2)
    k = mx.random.normal((2, 200, head_dim), key=mx.random.key(0))
    errors = [score_error(f"turboquant-prod@{bits},center=none", k, ctx) for bits in (1, 1.5, 2, 2.5, 3)]
    assert errors == sorted(errors, reverse=True)
    codec = parse_codec("turboquant-prod@2.5,m=100,center=none").keys.build("keys")
    assert codec.bits_nominal(ctx) == pytest.approx(1.5 + 100 / head_dim)
    assert codec.encode(k, ctx).nbytes == codec.bytes_nominal(2, 200, ctx)


CHANGES = ("m=100", "sketch=gaussian", "rotation=hadamard3", "rotation=qr", "seed=1", "center=none", "center=mean")


@pytest.mark.parametrize("base", ["qjl@2", "turboquant-prod@3"])
@pytest.mark.parametrize("change", ["more bits", "outliers=8", *CHANGES])
def test_an_option_changes_the_scores(base: str, change: str) -> None:
    ctx = context(64, tokens=100, kv_heads=2)
    k = mx.random.normal((2, 100, 64), key=mx.random.key(0)) + 1
    q = mx.random.normal((6, 3, 64), key=mx.random.key(1))
    scores = []
    for text in (base, f"{base}.5" if change == "more bits" else f"{base},{change}"):
        codec = parse_codec(text).keys.build("keys")
        scores.append(codec.scores(q, codec.encode(k, ctx), ctx))
    assert mx.max(mx.abs(scores[0] - scores[1])).item() > 1e-2


@pytest.mark.parametrize("codec", [QJL(2), TurboQuantProd(1), TurboQuantProd(3)], ids=str)
@pytest.mark.parametrize("value", [1e38, 7e4, 1e-30, 1e-36])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_extreme_norms(codec: Codec, value: float, head_dim: int) -> None:
    x = mx.array(np.random.default_rng(0).uniform(0.1, 1, (1, 63, head_dim)).astype(np.float32)) * value
    ctx = context(head_dim)
    for dtype in (mx.float32, mx.bfloat16):
        decoded = codec.decode(codec.encode(x.astype(dtype), ctx), ctx)
        error = mx.mean((decoded / value - x / value) ** 2) / mx.mean((x / value) ** 2)
        theory = codec.relative_mse_theory(head_dim)
        assert theory is not None
        assert error.item() < 1.3 * theory


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_zero_and_denormal_vectors(codec: Codec) -> None:
    ctx = single_head(64)
    x = np.zeros((1, 4, 64), dtype=np.float32)
    x[0, 1], x[0, 2], x[0, 3, 5] = 1e-40, 1e-45, 1e-38
    enc = codec.encode(mx.array(x), ctx)
    decoded = codec.decode(enc, ctx)
    assert mx.isfinite(decoded).all().item()
    assert mx.max(mx.abs(decoded)).item() < 1e-37
    assert not mx.any(decoded[0, 0]).item()
    assert not mx.any(codec.scores(mx.ones((1, 1, 64)), enc, ctx)[..., 0]).item()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qjl@2,m=-1", "m must be 1 to 16384 rows, or 0 .* not -1"),
        ("qjl@2,sketch=fast", "sketch must be one of orthogonal, gaussian, not 'fast'"),
        ("qjl@0.25", "qjl takes 0.5 to 8 bits in steps of 0.5, not 0.25"),
        ("turboquant-prod@0.5", "takes 1 to 8 bits in steps of 0.5, not 0.5"),
        ("turboquant-prod@2,seed=-1", "seed must be 0 or more, not -1"),
    ],
)
def test_wrong_options_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_codec(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qjl@1,outliers=8", "outlier channels take 64 of its 64 sign bits .* give more than 1 bit"),
        ("qjl@3,m=50,outliers=8", "64 of its 50 sign bits"),
        ("turboquant-prod@3,m=1,outliers=8", "give m=2 or more"),
    ],
)
def test_outliers_need_signs_of_their_own(text: str, message: str) -> None:
    codec = parse_codec(text).keys.build("keys")
    with pytest.raises(InputError, match=message):
        codec.encode(mx.ones((1, 100, 64)), context(64))
