"""Every option changes the result: a stage that is switched off must be seen."""

import mlx.core as mx
import pytest
from helpers import context

from tqcli.codecs.spec import parse_codec

BASE = "turboquant-mse@3"
CHANGES = [
    "turboquant-mse@4",
    f"{BASE},scale=unbiased",
    f"{BASE},rotation=hadamard2",
    f"{BASE},rotation=hadamard3",
    f"{BASE},rotation=qr",
    f"{BASE},seed=1",
    f"{BASE},center=none",
    f"{BASE},center=mean",
]


@pytest.mark.parametrize("other", CHANGES)
def test_an_option_changes_what_is_decoded(other: str) -> None:
    ctx = context(64, "keys", 100, 2)
    x = mx.random.normal((2, 100, 64), key=mx.random.key(0)) + 1
    decoded = []
    for text in (BASE, other):
        codec = parse_codec(text).keys.build("keys")
        decoded.append(codec.decode(codec.encode(x, ctx), ctx))
    assert mx.max(mx.abs(decoded[0] - decoded[1])).item() > 1e-3
