"""turboquant-rvq reaches the optimum of a stage-2 codebook for each stage-1 cell; its first stage is a cache itself."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from helpers import context, relative_mse, unit_vectors
from scipy import integrate, special, stats

from tqcli.codecs.embedded import embedded_codebook, embedded_distortion
from tqcli.codecs.spec import parse_codec
from tqcli.codecs.turboquant_mse import TurboQuantMSE
from tqcli.codecs.turboquant_rvq import TurboQuantRVQ
from tqcli.errors import InputError

HEAD_DIMS = (64, 80, 96, 128, 256)
STAGES = {1: (1,), 2: (1, 1), 3: (2, 1), 4: (2, 2), 5: (3, 2), 6: (3, 3), 7: (4, 3), 8: (4, 4)}
SEEDS = range(8)
# Two-stage quantisers of the standard normal with one stage-2 codebook for each stage-1 cell, rounded up.
NORMAL = {(1, 1): 0.1176, (2, 1): 0.0349, (2, 2): 0.0098}


@cache
def optimal_distortion(head_dim: int, bits1: int, bits2: int) -> float:
    """Lloyd's algorithm on a coordinate x of a random unit vector, and again inside each of the cells that it gives.

    (x + 1) / 2 ~ Beta((d-1)/2, (d-1)/2): cell masses come from the incomplete beta function, first moments from their
    closed form, the final error from numerical integration over each cell: nothing of the code under test.
    """
    a = (head_dim - 1) / 2
    beta = stats.beta(a, a, loc=-1, scale=2)
    normaliser = special.gamma(head_dim / 2) / np.sqrt(np.pi) / special.gamma((head_dim - 1) / 2)

    def upper_moment(x: np.ndarray) -> np.ndarray:
        return normaliser * (1 - x**2) ** a / (2 * a)

    def lloyd(low: float, high: float, count: int) -> tuple[np.ndarray, np.ndarray]:
        levels = beta.ppf(beta.cdf(low) + (np.arange(count) + 0.5) / count * (beta.cdf(high) - beta.cdf(low)))
        for _ in range(1000):
            edges = np.concatenate([[low], (levels[1:] + levels[:-1]) / 2, [high]])
            levels = -np.diff(upper_moment(edges)) / np.diff(beta.cdf(edges))
        return levels, np.concatenate([[low], (levels[1:] + levels[:-1]) / 2, [high]])

    error = 0.0
    _, cells = lloyd(-1, 1, 2**bits1)
    for low, high in pairwise(cells):
        levels, edges = lloyd(low, high, 2**bits2)
        for c, left, right in zip(levels, edges[:-1], edges[1:], strict=True):
            error += integrate.quad(lambda x, c=c: (x - c) ** 2 * beta.pdf(x), left, right, epsabs=1e-12)[0]
    return float(error * head_dim)


def encode_and_decode(codec: TurboQuantRVQ | TurboQuantMSE, x: np.ndarray) -> np.ndarray:
    ctx = context(x.shape[-1], "values")
    return np.array(codec.decode(codec.encode(mx.array(x)[None], ctx), ctx)[0])


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_codebook_is_optimal(head_dim: int, bits: int) -> None:
    assert embedded_distortion(head_dim, *STAGES[bits]) == pytest.approx(
        optimal_distortion(head_dim, *STAGES[bits]), rel=1e-6
    )


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_relative_mse_is_within_three_percent_of_the_optimum(head_dim: int, bits: int) -> None:
    ctx = context(head_dim, "values")
    codecs = [TurboQuantRVQ(bits, scale="plain", seed=s) for s in SEEDS]
    errors = [relative_mse(codec, unit_vectors(head_dim, 4096, codec.seed), ctx) for codec in codecs]
    assert 0.97 <= np.mean(errors) / optimal_distortion(head_dim, *STAGES[bits]) <= 1.03


@pytest.mark.parametrize("stages", sorted(NORMAL))
def test_the_codebook_tends_to_the_normal_one(stages: tuple[int, int]) -> None:
    assert 0.99 * NORMAL[stages] <= embedded_distortion(1_000_000, *stages) <= NORMAL[stages]


@pytest.mark.parametrize("bits", range(2, 9))
def test_two_stages_lose_little_to_one_of_all_bits(bits: int) -> None:
    """Half of each half normal is what four levels are; with more the stages cost up to 5 %."""
    one, two = (c(bits, scale="plain").relative_mse_theory(128) for c in (TurboQuantMSE, TurboQuantRVQ))
    assert one is not None
    assert two is not None
    assert one * (1 - 1e-9) <= two <= 1.05 * one
    if bits == 2:
        assert two == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("bits", range(1, 9))
def test_levels_ascend_and_mirror(bits: int) -> None:
    first, second = (*STAGES[bits], 1)[:2]
    levels = np.array(embedded_codebook(80, first, second))
    assert len(levels) == 2 ** (first + second)
    assert np.all(np.diff(levels) > 0)
    assert np.array_equal(levels, -levels[::-1])


@pytest.mark.parametrize("head_dim", [64, 72, 80, 128])
@pytest.mark.parametrize("bits", range(1, 9))
def test_the_first_stage_is_turboquant_mse_at_its_bits(head_dim: int, bits: int) -> None:
    ctx = context(head_dim, "values")
    x = np.random.default_rng(bits).standard_normal((3, 63, head_dim)).astype(np.float32) * 7
    x[0, 5], x[1, 6], x[2, 7] = 0, x[1, 6] * 1e36, x[2, 7] * 1e-36
    two = TurboQuantRVQ(bits, scale="plain", seed=3)
    one = TurboQuantMSE(STAGES[bits][0], scale="plain", seed=3)
    enc, expected = two.encode(mx.array(x), ctx), one.encode(mx.array(x), ctx)
    assert mx.array_equal(enc.arrays["codes1"], expected.arrays["codes"]).item()
    assert ("scales" in enc.arrays) == ("scales" in expected.arrays)
    assert mx.array_equal(two.decode(enc, ctx, stages=1), one.decode(expected, ctx)).item()


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("scale", ["plain", "unbiased"])
def test_two_stages_are_better_than_the_first_alone(bits: int, scale: str) -> None:
    ctx, x = context(64, "values"), unit_vectors(64, 1000, 0)
    both = TurboQuantRVQ(bits, scale=scale)  # type: ignore[arg-type]
    assert relative_mse(both, x, ctx) < 0.6 * relative_mse(replace(both, stages=1), x, ctx)


def test_the_second_stage_can_be_left_behind() -> None:
    ctx, codec = context(80, "values"), TurboQuantRVQ(4)
    enc = codec.encode(mx.array(unit_vectors(80, 63, 0))[None], ctx)
    alone = replace(enc, arrays={name: a for name, a in enc.arrays.items() if name != "codes2"})
    assert alone.nbytes == TurboQuantMSE(2).bytes_nominal(1, 63, ctx)
    assert mx.array_equal(codec.decode(alone, ctx, stages=1), codec.decode(enc, ctx, stages=1)).item()
    with pytest.raises(KeyError, match="codes2"):
        codec.decode(alone, ctx)


def test_stages_choose_what_is_read_and_not_what_is_stored() -> None:
    ctx, x = context(64, "values"), mx.array(unit_vectors(64, 63, 0))[None]
    both, first = TurboQuantRVQ(4), TurboQuantRVQ(4, stages=1)
    a, b = both.encode(x, ctx), first.encode(x, ctx)
    assert all(mx.array_equal(a.arrays[name], b.arrays[name]).item() for name in a.arrays | b.arrays)
    assert mx.array_equal(first.decode(b, ctx), both.decode(a, ctx, stages=1)).item()
    assert mx.array_equal(first.decode(b, ctx, stages=2), both.decode(a, ctx)).item()


@pytest.mark.parametrize("bits", range(1, 9))
def test_bits_divide_as_documented_and_are_packed(bits: int) -> None:
    for head_dim in (64, 128):
        x = mx.random.normal((2, 7, head_dim), key=mx.random.key(0))
        enc = TurboQuantRVQ(bits).encode(x, context(head_dim, "values"))
        words = [a.shape[-1] for name, a in sorted(enc.arrays.items()) if name.startswith("codes")]
        assert words == [head_dim * b // 32 for b in STAGES[bits]]
        assert 8 * enc.nbytes / x.size == bits + 16 / head_dim


@pytest.mark.parametrize(
    ("bits", "effective"), [(1, 1.2), (2, 2.4), (3, 3.4), (4, 4.2), (5, 5.2), (6, 6.4), (7, 7.4), (8, 8.2)]
)
def test_padding_is_counted(bits: int, effective: float) -> None:
    """At d = 80 a stage of 1 or 3 bits leaves 16 bits of each row free: the first stage's hold the scale."""
    x = mx.random.normal((2, 7, 80), key=mx.random.key(0))
    codec, ctx = TurboQuantRVQ(bits), context(80, "values")
    enc = codec.encode(x, ctx)
    assert 8 * enc.nbytes / x.size == pytest.approx(effective, rel=1e-12)
    assert enc.nbytes == codec.bytes_nominal(2, 7, ctx)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("stages", [1, 2])
def test_unbiased_scale_removes_the_shrinkage_from_either_reading(bits: int, stages: int) -> None:
    slopes: dict[str, list[float]] = {"plain": [], "unbiased": []}
    for scale, found in slopes.items():
        for seed in SEEDS:
            x = unit_vectors(128, 2048, seed)
            codec = TurboQuantRVQ(bits, scale=scale, seed=seed, stages=stages)  # type: ignore[arg-type]
            found.append(float(np.mean(np.sum(x * encode_and_decode(codec, x), axis=1))))
    theory = TurboQuantRVQ(bits, scale="plain", stages=stages).relative_mse_theory(128)
    assert theory is not None
    assert np.mean(slopes["plain"]) == pytest.approx(1 - theory, rel=0.01)
    assert np.mean(slopes["unbiased"]) == pytest.approx(1, abs=0.002)


@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("scale", ["plain", "unbiased"])
@pytest.mark.parametrize("stages", [1, 2])
def test_the_theory_is_what_it_gives(head_dim: int, bits: int, scale: str, stages: int) -> None:
    ctx = context(head_dim, "values")
    norms = 2 ** np.linspace(0, 1, 4096, dtype=np.float32)[:, None]  # a unit norm would hide the rounding of scales
    codecs = [TurboQuantRVQ(bits, scale=scale, seed=seed, stages=stages) for seed in SEEDS]  # type: ignore[arg-type]
    errors = [relative_mse(codec, norms * unit_vectors(head_dim, 4096, codec.seed), ctx) for codec in codecs]
    assert np.mean(errors) == pytest.approx(codecs[0].relative_mse_theory(head_dim), rel=0.02)


BASE = "turboquant-rvq@4"


@pytest.mark.parametrize(
    "other",
    [
        "turboquant-rvq@3",
        "turboquant-rvq@5",
        "turboquant-mse@4",
        f"{BASE},scale=plain",
        f"{BASE},rotation=hadamard2",
        f"{BASE},rotation=hadamard3",
        f"{BASE},rotation=qr",
        f"{BASE},rotation=none",
        f"{BASE},seed=1",
        f"{BASE},stages=1",
        f"{BASE},center=none",
        f"{BASE},center=mean",
    ],
)
def test_an_option_changes_what_is_decoded(other: str) -> None:
    ctx = context(64, "keys", 100, 2)
    x = mx.random.normal((2, 100, 64), key=mx.random.key(0)) + 1
    decoded = []
    for text in (BASE, other):
        codec = parse_codec(text).keys.build("keys")
        decoded.append(codec.decode(codec.encode(x, ctx), ctx))
    assert mx.max(mx.abs(decoded[0] - decoded[1])).item() > 1e-3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{BASE},stages=3", "stages must be 1 or 2, not 3"),
        (f"{BASE},stages=0", "stages must be 1 or 2, not 0"),
        ("turboquant-rvq@9", "1 to 8 bits, not 9"),
        ("turboquant-rvq@2.5", "1 to 8 bits, not 2.5"),
        (f"{BASE},scale=best", "auto, plain, unbiased, not 'best'"),
        (f"{BASE},seed=-1", "0 or more, not -1"),
    ],
)
def test_what_it_can_not_do_is_named(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_codec(text)


def test_no_third_stage_can_be_decoded() -> None:
    ctx, codec = context(64, "values"), TurboQuantRVQ(4)
    enc = codec.encode(mx.zeros((1, 2, 64)), ctx)
    with pytest.raises(InputError, match="not 3"):
        codec.decode(enc, ctx, stages=3)
