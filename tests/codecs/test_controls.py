"""identity and affine are exactly what they claim to be."""

import mlx.core as mx
import pytest
from helpers import context

from tqcli.codecs.base import Unsupported
from tqcli.codecs.spec import CodecSpec, parse_codec


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32], ids=str)
def test_identity_keeps_every_bit(dtype: mx.Dtype) -> None:
    codec = CodecSpec("identity").build("keys")
    x = mx.random.normal((3, 7, 80), key=mx.random.key(0)).astype(dtype)
    enc = codec.encode(x, context(80))
    assert enc.arrays["x"].dtype == dtype
    assert mx.array_equal(enc.arrays["x"], x).item()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize(("head_dim", "group"), [(64, 32), (64, 64), (96, 32), (128, 128), (256, 64)])
def test_affine_is_what_mlx_stores(bits: int, head_dim: int, group: int) -> None:
    codec = parse_codec(f"affine@{bits},group={group}").keys.build("keys")
    x = mx.random.normal((2, 63, head_dim), key=mx.random.key(bits)).astype(mx.float16)
    ctx = context(head_dim)
    enc = codec.encode(x, ctx)
    codes, scales, biases = mx.quantize(x, group_size=group, bits=bits)
    for name, expected in (("codes", codes), ("scales", scales), ("biases", biases)):
        assert enc.arrays[name].dtype == expected.dtype
        assert mx.array_equal(enc.arrays[name], expected).item()
    expected = mx.dequantize(codes, scales, biases, group_size=group, bits=bits).astype(mx.float32)
    assert mx.array_equal(codec.decode(enc, ctx), expected).item()
    assert 8 * enc.nbytes / x.size == bits + 32 / group


@pytest.mark.parametrize(("bits", "group", "expected"), [(4, 64, 0.0083), (4, 128, 0.0100), (2, 64, 0.155)])
def test_affine_has_the_known_error_on_a_gaussian(bits: int, group: int, expected: float) -> None:
    codec = parse_codec(f"affine@{bits},group={group}").keys.build("keys")
    x = mx.random.normal((1, 4096, 128), key=mx.random.key(1))
    ctx = context(128)
    decoded = codec.decode(codec.encode(x, ctx), ctx)
    assert (mx.sum((decoded - x) ** 2) / mx.sum(x**2)).item() == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("head_dim", "group"), [(80, 64), (72, 32), (64, 128)])
def test_affine_says_which_head_dim_its_group_does_not_divide(head_dim: int, group: int) -> None:
    codec = parse_codec(f"affine@4,group={group}").keys.build("keys")
    reason = codec.unsupported(context(head_dim))
    assert reason is not None
    assert str(head_dim) in reason
    assert str(group) in reason


def test_affine_is_not_centred_unless_asked() -> None:
    assert parse_codec("affine@4").keys.build("keys") == parse_codec("affine@4,center=none").keys.build("keys")
    assert parse_codec("affine@4,center=rope").keys.build("keys") != parse_codec("affine@4").keys.build("keys")


def test_affine_refuses_a_group_whose_range_its_dtype_can_not_hold() -> None:
    x = mx.array([[[65000.0, -65000.0] * 32]])
    with pytest.raises(Unsupported, match="range of a group of 64 elements doesn't fit float16"):
        parse_codec("affine@4").keys.build("keys").encode(x, context(64))
