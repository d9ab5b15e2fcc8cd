"""The scale that turboquant-mse and turboquant-rvq take by default: `plain` at few bits, `unbiased` from 4 on."""

import mlx.core as mx
import numpy as np
import pytest
from helpers import context

from tqcli.codecs.spec import parse_codec


def coded(text: str, head_dim: int) -> dict[str, bytes]:
    """The arrays of 2 heads of 70 vectors, as bytes: 64 are needed to find outlier channels."""
    codec, ctx = parse_codec(f"{text},center=none").keys.build("keys"), context(head_dim, "keys", 70, 2)
    x = np.random.default_rng(head_dim).standard_normal((2, 70, head_dim)).astype(np.float32)
    enc = codec.encode(mx.array(x), ctx)
    return {name: bytes(np.array(array.view(mx.uint8))) for name, array in enc.arrays.items()}


@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("name", ["turboquant-mse", "turboquant-rvq"])
@pytest.mark.parametrize(
    ("bits", "scale", "other"), [(2, "plain", "unbiased"), (3, "plain", "unbiased"), (4, "unbiased", "plain")]
)
def test_the_default_goes_by_the_bits(name: str, bits: int, scale: str, other: str, head_dim: int) -> None:
    default = coded(f"{name}@{bits}", head_dim)
    assert default == coded(f"{name}@{bits},scale={scale}", head_dim)
    assert default != coded(f"{name}@{bits},scale={other}", head_dim)


@pytest.mark.parametrize("name", ["turboquant-mse", "turboquant-rvq"])
@pytest.mark.parametrize(("bits", "scale"), [(1, "plain"), (5, "unbiased"), (8, "unbiased")])
def test_the_default_at_other_bits(name: str, bits: int, scale: str) -> None:
    assert coded(f"{name}@{bits}", 64) == coded(f"{name}@{bits},scale={scale}", 64)


@pytest.mark.parametrize("text", ["turboquant-mse@3.5", "turboquant-mse@3,outliers=8"])
def test_each_group_of_a_channel_split_goes_by_its_own_bits(text: str) -> None:
    """Ordinary channels at 3 bits, outliers at 4."""
    default, plain, unbiased = (coded(f"{text}{scale}", 80) for scale in ("", ",scale=plain", ",scale=unbiased"))
    for name, array in default.items():
        assert array == (unbiased if name.startswith("outlier.") else plain)[name], name
    assert default not in (plain, unbiased)


def test_both_groups_of_two_and_a_half_bits_are_plain() -> None:
    assert coded("turboquant-mse@2.5", 80) == coded("turboquant-mse@2.5,scale=plain", 80)
