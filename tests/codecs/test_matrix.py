"""What holds for every codec, whatever it does: a new file in tqcli/codecs is tested here by itself."""

from dataclasses import replace
from functools import cache

import mlx.core as mx
import numpy as np
import pytest
from every_codec import every_codec
from helpers import context
from hypothesis import given
from hypothesis import strategies as st

from tqcli.codecs.base import Encoded, State, Unsupported, registered_codecs
from tqcli.codecs.context import LayerContext, Tensor
from tqcli.codecs.describe import describe, rebuild
from tqcli.codecs.spec import CodecSpec
from tqcli.codecs.warm_up import WarmUp

HEAD_DIMS = (32, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256, 576)
TENSORS: tuple[Tensor, ...] = ("keys", "values")
CENTERS = ("none", "mean", "rope")


def specs(centers: tuple[str, ...] = CENTERS) -> list[CodecSpec]:
    """Every registered codec at its lowest, a middle and its highest bits, with every centring."""
    return [replace(spec, options=(("center", c),)) for spec in every_codec() for c in centers]


def coded(head_dims: tuple[int, ...]) -> list[tuple[CodecSpec, int]]:
    """The specs without centring, with the head_dims that their codec codes; `build` sees that it names the others."""
    pairs = [(spec, d) for spec in specs(("none",)) for d in head_dims]
    return [(spec, d) for spec, d in pairs if spec.build("keys").unsupported(context(d)) is None]


def build(spec: CodecSpec, tensor: Tensor, ctx: LayerContext) -> WarmUp | None:
    """The codec, or None where it doesn't code this tensor or shape (and says why)."""
    if tensor not in registered_codecs()[spec.name].applies_to:
        return None
    codec = spec.build(tensor)
    reason = codec.unsupported(ctx)
    assert reason is None or str(ctx.head_dim) in reason
    return codec if reason is None else None


def encode(codec: WarmUp, x: mx.array, ctx: LayerContext) -> Encoded:
    """With what the codec learned of another tensor, where it can't do without."""
    state = _learned(codec, ctx.tensor, ctx.head_dim, x.shape[0]) if codec.needs_calibration else None
    return codec.encode(x, ctx, state)


@cache
def _learned(codec: WarmUp, tensor: Tensor, head_dim: int, heads: int) -> State:
    tokens = 24 if codec.bits_nominal(context(head_dim)) > 2 else 512 if head_dim == 64 else 64
    return codec.calibrate(random_tensor(heads, tokens, head_dim), context(head_dim, tensor, tokens, heads))


def random_tensor(heads: int, tokens: int, head_dim: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    x = np.random.default_rng([heads, tokens, head_dim]).standard_normal((heads, tokens, head_dim))
    return mx.array((x + 2).astype(np.float32)).astype(dtype)


@pytest.mark.parametrize(
    ("spec", "head_dim"),
    [(s, d) for d in HEAD_DIMS for s in specs(CENTERS if d in (64, 80) else ("rope",))],
    ids=str,
)
def test_shapes_dtypes_and_bytes(spec: CodecSpec, head_dim: int) -> None:
    for tensor in TENSORS:
        for heads, tokens in ((1, 0), (3, 1), (2, 7), (1, 63), (2, 130)):
            ctx = context(head_dim, tensor, tokens, heads)
            if (codec := build(spec, tensor, ctx)) is None:
                continue
            x = random_tensor(heads, tokens, head_dim)
            enc = encode(codec, x, ctx)
            decoded = codec.decode(enc, ctx)
            assert decoded.shape == x.shape
            assert decoded.dtype == mx.float32
            assert enc.tokens == tokens
            assert enc.nbytes == codec.bytes_nominal(heads, tokens, ctx, codec.needs_calibration)
            assert mx.isfinite(decoded).all().item()


@pytest.mark.parametrize("spec", specs(), ids=str)
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32], ids=str)
def test_every_float_dtype_is_coded_alike(spec: CodecSpec, dtype: mx.Dtype) -> None:
    ctx = context(64, "keys", 70, 2)
    codec = build(spec, "keys", ctx)
    assert codec is not None
    x = random_tensor(2, 70, 64).astype(mx.bfloat16).astype(dtype)  # the same numbers in each dtype
    reference = codec.decode(encode(codec, x.astype(mx.float32), ctx), ctx)
    decoded = codec.decode(encode(codec, x, ctx), ctx)
    assert mx.allclose(decoded, reference, atol=1e-5).item()


@pytest.mark.parametrize("spec", specs(), ids=str)
def test_the_same_input_gives_the_same_bytes(spec: CodecSpec) -> None:
    ctx = context(80, "keys", 70, 2)
    if (codec := build(spec, "keys", ctx)) is None:
        ctx = context(64, "keys", 70, 2)
        codec = build(spec, "keys", ctx)
    assert codec is not None
    x = random_tensor(2, 70, ctx.head_dim)
    first, second = encode(codec, x, ctx), encode(spec.build("keys"), x, ctx)
    assert first.arrays.keys() == second.arrays.keys()
    for name, array in first.arrays.items():
        assert array.dtype == second.arrays[name].dtype
        assert bytes(np.array(array.view(mx.uint8))) == bytes(np.array(second.arrays[name].view(mx.uint8)))


@pytest.mark.parametrize(("spec", "head_dim"), coded((64, 80)), ids=str)
def test_hard_vectors_decode_to_finite_ones(spec: CodecSpec, head_dim: int) -> None:
    ctx = context(head_dim, "keys")
    rows = {
        "zero": np.zeros(head_dim),
        "constant": np.full(head_dim, 3.0),
        "one-hot": np.eye(head_dim)[5] * 300,
        "norm of 5e4": np.full(head_dim, 50000.0 / head_dim**0.5),
        "denormal": np.full(head_dim, 1e-40),
        "tiny": np.full(head_dim, 1e-30),
    }
    codec = spec.build("keys")
    x = mx.array(np.stack(list(rows.values())).astype(np.float32))[None]
    decoded = codec.decode(encode(codec, x, ctx), ctx)
    assert mx.isfinite(decoded).all().item()
    if not codec.needs_calibration:  # a learned codebook needn't hold a zero
        assert not mx.any(decoded[0, 0]).item()


@pytest.mark.parametrize("value", [7e4, 1e38, 1e-38])
def test_norms_that_float16_can_not_hold(value: float) -> None:
    codec = CodecSpec("turboquant-mse", 4, (("center", "none"),)).build("keys")
    x = mx.array(np.random.default_rng(0).uniform(0.1, 1, (1, 9, 64)).astype(np.float32)) * value
    ctx = context(64)
    decoded = codec.decode(codec.encode(x.astype(mx.bfloat16), ctx), ctx)
    # In units of the value: 1e38 squared is not a float32.
    error = mx.mean((decoded / value - x / value) ** 2) / mx.mean((x / value) ** 2)
    assert error.item() < 0.02


@pytest.mark.parametrize("name", ["fp16", "affine"])
def test_what_float16_can_not_hold_is_refused_by_name(name: str) -> None:
    codec = CodecSpec(name, 4 if name == "affine" else None).build("keys")
    with pytest.raises(Unsupported, match="70000 doesn't fit float16"):
        codec.encode(mx.full((1, 2, 64), 7e4), context(64))


@pytest.mark.parametrize("spec", specs(), ids=str)
@pytest.mark.parametrize("calibrated", [False, True])
def test_a_token_is_coded_by_itself(spec: CodecSpec, calibrated: bool) -> None:
    """A cache codes tokens as they come: those that follow change nothing, and nothing is needed but what is stored."""
    ctx = context(64, "keys", 130, 2)
    codec = spec.build("keys")
    x = random_tensor(2, 130, 64)
    calibrated = calibrated or codec.needs_calibration
    state = _learned(codec, "keys", 64, 2) if calibrated else None
    whole, part = (codec.encode(x[:, :n], context(64, "keys", n, 2), state) for n in (130, 100))
    stored = Encoded(whole.arrays, whole.tokens, whole.shared)
    decoded, first = codec.decode(stored, ctx), codec.decode(part, context(64, "keys", 100, 2))
    assert mx.allclose(decoded[:, :100], first, atol=1e-5).item()
    assert whole.nbytes == codec.bytes_nominal(2, 130, ctx, calibrated)


@pytest.mark.parametrize("spec", specs(("none",)), ids=str)
def test_theory_is_what_is_measured_on_random_vectors(spec: CodecSpec) -> None:
    ctx = context(64, "keys", 4096)
    codec = spec.build("keys")
    expected, expected_variance = codec.relative_mse_theory(64), codec.ip_variance_theory(64)
    if expected is None:  # a codec that expects nothing of vectors expects nothing of their products
        assert expected_variance is None
        return
    rng = np.random.default_rng(5)
    # Norms over an octave, so that their rounding shows; more than one query for each of the three heads.
    x = rng.standard_normal((1, 4096, 64)) * 2.0 ** rng.uniform(0, 1, (1, 4096, 1))
    q = rng.standard_normal((3, 40, 64))
    x, q = mx.array(x.astype(np.float32)), mx.array(q.astype(np.float32))
    enc = codec.encode(x, ctx)
    assert (mx.sum((codec.decode(enc, ctx) - x) ** 2) / mx.sum(x**2)).item() == pytest.approx(
        expected, rel=0.04, abs=1e-12
    )
    error = codec.scores(q, enc, ctx) - q @ mx.repeat(x, 3, axis=0).swapaxes(-1, -2)
    norms = mx.linalg.norm(q, axis=-1)[..., None] * mx.linalg.norm(x, axis=-1)[:, None]
    variance = 64 * mx.mean((error / norms) ** 2).item()
    assert variance == pytest.approx(expected_variance, rel=0.06, abs=1e-9)


@given(spec=st.sampled_from(specs()), tokens=st.integers(0, 90), heads=st.integers(1, 3), seed=st.integers(0, 9))
def test_decoding_is_within_the_codecs_reach(spec: CodecSpec, tokens: int, heads: int, seed: int) -> None:
    ctx = context(64, "keys", tokens, heads)
    codec = build(spec, "keys", ctx)
    assert codec is not None
    x = mx.random.normal((heads, tokens, 64), key=mx.random.key(seed))
    x = x + 2 if codec.needs_calibration else x  # as what it learned of
    decoded = codec.decode(encode(codec, x, ctx), ctx)
    reach = max(0.9, 2 * (codec.relative_mse_theory(64) or 0))  # an estimator's few bits can be off by more than x
    if tokens:
        assert mx.sum((decoded - x) ** 2).item() <= reach * mx.sum(x**2).item()


@pytest.mark.parametrize("spec", specs(), ids=str)
def test_a_description_rebuilds_the_codec(spec: CodecSpec) -> None:
    codec = spec.build("keys")
    assert rebuild(describe(codec), "keys") == codec


@pytest.mark.parametrize("spec", specs(), ids=str)
def test_attention_through_the_codec_is_that_over_what_it_decodes(spec: CodecSpec) -> None:
    """True of every codec whose scores are linear in the query, estimators included."""
    heads, tokens = 2, 70
    ctx, v_ctx = context(64, "keys", tokens, heads), context(64, "values", tokens, heads)
    codec, values = build(spec, "keys", ctx), CodecSpec("identity").build("values")
    assert codec is not None
    k, v = random_tensor(heads, tokens, 64), random_tensor(heads, tokens, 64)
    q = mx.random.normal((6, 5, 64), key=mx.random.key(3))
    k_enc, v_enc = encode(codec, k, ctx), values.encode(v, v_ctx)
    mask = mx.arange(tokens)[None, :] <= mx.array([3, 20, 33, 60, 69])[:, None]
    got = codec.attend(q, k_enc, values, v_enc, mask, ctx)
    decoded = mx.repeat(codec.decode(k_enc, ctx), 3, axis=0)
    logits = mx.where(mask, (q @ decoded.swapaxes(-1, -2)) * ctx.scale, -mx.inf)
    expected = mx.softmax(logits, axis=-1) @ mx.repeat(v, 3, axis=0)
    assert mx.allclose(got, expected, atol=1e-4).item()
