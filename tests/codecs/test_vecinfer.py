"""vecinfer: exact code sizes, scores as if keys were turned back, and codebooks from another text than is coded."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from helpers import context

from tqcli.codecs.base import Encoded, State, Unsupported
from tqcli.codecs.context import LayerContext, Tensor
from tqcli.codecs.describe import describe, rebuild
from tqcli.codecs.spec import parse_codec
from tqcli.codecs.vecinfer import VecInfer
from tqcli.errors import InputError

TENSORS: tuple[Tensor, ...] = ("keys", "values")
FEW = {"iterations": 8}


def normal(heads: int, tokens: int, head_dim: int, seed: int) -> mx.array:
    shape = (heads, tokens, head_dim)
    return mx.array(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32))


def trained(codec: VecInfer, ctx: LayerContext, x: mx.array) -> tuple[State, Encoded]:
    """What the codec learns from another sample of x's shape, and x coded with it."""
    state = codec.calibrate(normal(*x.shape, seed=1000), ctx)
    return state, codec.encode(x, ctx, state)


def relative_error(estimate: mx.array, exact: mx.array) -> float:
    return (mx.sum((estimate - exact) ** 2) / mx.sum(exact**2)).item()


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize(
    ("bits", "head_dim", "words"),
    [(1, 64, 2), (2, 64, 4), (1.5, 64, 3), (1.5, 80, 4), (2.5, 80, 7), (3, 96, 9), (0.5, 64, 1), (6, 64, 12)],
)
def test_codes_take_exactly_their_bits(tensor: Tensor, bits: float, head_dim: int, words: int) -> None:
    codec, ctx = VecInfer(bits, iterations=1), context(head_dim, tensor, 63, 2)
    for tokens in (0, 1, 7, 63):
        _, enc = trained(codec, ctx, normal(2, tokens, head_dim, 0))
        assert enc.arrays["codes"].shape == (2, tokens, words)
        assert enc.nbytes == 2 * tokens * words * 4 == codec.bytes_nominal(2, tokens, ctx)
        assert codec.decode(enc, ctx).shape == (2, tokens, head_dim)


@pytest.mark.parametrize("tensor", TENSORS)
def test_a_codebook_a_head_costs_two_more_bits_on_four_short_windows(tensor: Tensor) -> None:
    """4,096 entries of 8 elements in 16 bits, shared by 4 windows of 1,024 tokens of 64 elements."""
    codec, heads, windows, tokens, head_dim = VecInfer(1.5, scope="head", smooth=False, iterations=1), 3, 4, 1024, 64
    ctx = context(head_dim, tensor, tokens, heads)
    state = codec.calibrate(normal(heads, 600, head_dim, 1), ctx)
    codes = sum(codec.encode(normal(heads, tokens, head_dim, w), ctx, state).nbytes for w in range(windows))
    learned = sum(array.nbytes for array in state.values())
    assert learned == codec.learned_bytes(heads, ctx)
    assert 8 * (codes + learned) / (heads * windows * tokens * head_dim) == 3.5


@pytest.mark.parametrize("scope", ["head", "layer", "model"])
@pytest.mark.parametrize("tensor", TENSORS)
def test_what_is_learned_is_counted(scope: Any, tensor: Tensor) -> None:
    codec, ctx = VecInfer(2, scope=scope, **FEW), context(64, tensor, 50, 3)
    state = codec.calibrate(normal(3, 50, 64, 0), ctx)
    assert tuple(state) and set(state) == set(codec.learns(ctx))
    assert sum(array.nbytes for array in state.values()) == codec.learned_bytes(3, ctx)
    assert all(array.dtype == mx.bfloat16 for array in state.values())


@pytest.mark.parametrize("rotation", ["hadamard", "hadamard2", "qr", "none"])
@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize(("head_dim", "heads"), [(64, 2), (80, 1), (72, 3)])
def test_scores_are_those_of_the_decoded_keys(rotation: Any, smooth: bool, head_dim: int, heads: int) -> None:
    """<q', k'> = <q, k>: queries go to where keys were coded, or keys come back."""
    codec, ctx = VecInfer(2, rotation=rotation, smooth=smooth, **FEW), context(head_dim, "keys", 40, heads)
    _, enc = trained(codec, ctx, 5 * normal(heads, 40, head_dim, 0))
    q = normal(3 * heads, 9, head_dim, 3)
    keys = mx.repeat(codec.decode(enc, ctx), 3, axis=0)
    assert mx.allclose(codec.scores(q, enc, ctx), q @ keys.swapaxes(-1, -2), rtol=1e-4, atol=1e-3).item()


def test_keys_that_are_entries_decode_exactly_through_smoothing_and_rotation() -> None:
    """With as many entries as sub-vectors every one is an entry, so that all that is left is bfloat16 rounding."""
    x, ctx = 7 * normal(2, 30, 64, 0), context(64, "keys", 30, 2)
    codec = VecInfer(3)
    enc = codec.encode(x, ctx, codec.calibrate(x, ctx))
    assert relative_error(codec.decode(enc, ctx), x) < 1e-5


def large_channels(seed: int) -> mx.array:
    """Keys of two heads in each of which four channels are eight times as large."""
    x = np.array(normal(2, 2000, 64, seed))
    for head, channels in enumerate(([3, 17, 40, 41], [5, 8, 30, 62])):
        x[head][:, channels] *= 8
    return mx.array(x)


def test_smoothing_and_rotation_each_lower_the_error_of_scores() -> None:
    ctx, q, k = context(64, "keys", 2000, 2), normal(6, 50, 64, 9), large_channels(1)
    exact = q @ mx.repeat(k, 3, axis=0).swapaxes(-1, -2)
    errors = {}
    for name, options in {"both": {}, "no rotation": {"rotation": "none"}, "no smoothing": {"smooth": False}}.items():
        codec = VecInfer(2, **options)  # type: ignore[arg-type]
        enc = codec.encode(k, ctx, codec.calibrate(large_channels(0), ctx))
        errors[name] = relative_error(codec.scores(q, enc, ctx), exact)
    assert errors["both"] < 0.95 * errors["no rotation"]
    assert errors["both"] < 0.60 * errors["no smoothing"]


def test_values_are_neither_smoothed_nor_rotated() -> None:
    ctx, x = context(64, "values", 100, 2), normal(2, 100, 64, 0)
    decoded = []
    for codec in (VecInfer(2, **FEW), VecInfer(2, rotation="none", smooth=False, **FEW)):
        state, enc = trained(codec, ctx, x)
        assert set(state) == {"codebook"}
        assert enc.shared == {}
        decoded.append(codec.decode(enc, ctx))
    assert mx.array_equal(*decoded).item()


@pytest.mark.parametrize("tensor", TENSORS)
def test_a_wider_scope_fits_no_better(tensor: Tensor) -> None:
    """Heads and layers whose elements are distributed differently: head <= layer <= model."""

    def layer(number: int, seed: int) -> mx.array:
        x = np.array(normal(2, 3000, 64, seed))
        x[1] = np.sign(x[1]) * (3 + 0.1 * x[1])
        return mx.array(x * (1 if number == 0 else np.where(np.arange(64) % 4 < 2, 4, 0.2).astype(np.float32)))

    contexts = [replace(context(64, tensor, 3000, 2), layer=number) for number in (0, 1)]
    errors = {}
    for scope in ("head", "layer", "model"):
        codec = VecInfer(2, scope=scope, rotation="none", smooth=False)  # type: ignore[arg-type]
        states = codec.calibrate_layers((ctx, layer(ctx.layer, 0)) for ctx in contexts)
        errors[scope] = []
        for ctx in contexts:
            x = layer(ctx.layer, 1)
            errors[scope].append(relative_error(codec.decode(codec.encode(x, ctx, states[ctx.layer]), ctx), x))
    assert np.mean(errors["head"]) < 0.97 * np.mean(errors["layer"])
    assert np.mean(errors["layer"]) < 0.97 * np.mean(errors["model"])


@pytest.mark.parametrize("scope", ["head", "layer", "model"])
@pytest.mark.parametrize("tensor", TENSORS)
def test_each_scope_shares_its_codebook_and_no_more(scope: Any, tensor: Tensor) -> None:
    codec = parse_codec(f"vecinfer@1,scope={scope},iterations=3").of(tensor).build(tensor)
    contexts = [replace(context(64, tensor, 40, 2), layer=number) for number in (0, 5)]
    states = codec.calibrate_layers((ctx, normal(2, 40, 64, ctx.layer)) for ctx in contexts)
    shared: dict[str, mx.array] = {}
    for ctx in contexts:
        enc = codec.encode(normal(2, 40, 64, 7), ctx, states[ctx.layer])
        stored = replace(enc, state={})  # as read back from a file
        assert mx.array_equal(codec.decode(stored, ctx), codec.decode(enc, ctx)).item()
        shared |= enc.shared
    codebooks = [array for name, array in shared.items() if "codebook" in name]
    assert len(codebooks) == (1 if scope == "model" else 2)
    assert codebooks[0].shape == ((2, 256, 8) if scope == "head" else (256, 8))
    assert sum("smooth" in name for name in shared) == (2 if tensor == "keys" else 0)


def test_one_codebook_serves_layers_of_other_head_dims() -> None:
    codec = VecInfer(2, scope="model", **FEW)
    contexts = [replace(context(d, "keys", 40, 2), layer=number) for number, d in enumerate((64, 80))]
    states = codec.calibrate_layers((ctx, normal(2, 40, ctx.head_dim, 0)) for ctx in contexts)
    assert mx.array_equal(states[0]["codebook"], states[1]["codebook"]).item()
    assert codec.shared_name("codebook", contexts[0]) == codec.shared_name("codebook", contexts[1])
    assert codec.shared_name("smooth", contexts[0]) != codec.shared_name("smooth", contexts[1])


def test_held_out_gaussian_values_reach_the_known_error() -> None:
    ctx = context(64, "values", 4000, 2)
    for bits, known in ((1, 0.324), (2, 0.098), (4, 0.0080)):
        codec = VecInfer(bits)
        enc = codec.encode(normal(2, 4000, 64, 0), ctx, codec.calibrate(normal(2, 4000, 64, 1), ctx))
        assert relative_error(codec.decode(enc, ctx), normal(2, 4000, 64, 0)) == pytest.approx(known, rel=0.05), bits


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("scope", ["head", "layer", "model"])
def test_the_same_seed_gives_the_same_bytes(tensor: Tensor, scope: Any) -> None:
    ctx, x = context(64, tensor, 700, 2), normal(2, 700, 64, 0)

    def coded(seed: int) -> list[bytes]:
        state, enc = trained(VecInfer(2, scope=scope, seed=seed, **FEW), ctx, x)
        return [bytes(np.array(a.view(mx.uint8))) for a in (*state.values(), *enc.arrays.values())]

    assert coded(0) == coded(0)
    assert coded(0) != coded(1)


@pytest.mark.parametrize(
    "change",
    [
        "scope=head",
        "smooth=false",
        "rotation=none",
        "rotation=qr",
        "seed=1",
        "iterations=1",
        "sub_dim=2",
        "center=none",
    ],
)
def test_an_option_changes_what_is_decoded(change: str) -> None:
    ctx, x = context(64, "keys", 500, 2), normal(2, 500, 64, 0) + 1
    decoded = []
    for text in ("vecinfer@2", f"vecinfer@2,{change}"):
        codec = parse_codec(text).keys.build("keys")
        decoded.append(codec.decode(codec.encode(x, ctx, codec.calibrate(normal(2, 500, 64, 1) + 1, ctx)), ctx))
    assert mx.max(mx.abs(decoded[0] - decoded[1])).item() > 1e-3


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("options", [{}, {"smooth": False}, {"rotation": "none", "smooth": False}])
@pytest.mark.parametrize("size", [0, 1e-40, 1e-30, 1.0, 1e30, 1e38])
def test_any_finite_vectors_are_learned_and_coded_to_finite_ones(
    tensor: Tensor, options: dict[str, Any], size: float
) -> None:
    codec, ctx = VecInfer(2, **FEW, **options), context(64, tensor, 40, 2)
    uniform = np.random.default_rng(0).uniform(-1, 1, (2, 40, 64)).astype(np.float32)
    state = codec.calibrate(mx.array(uniform) * size, ctx)
    for other in (0, 1e-40, 1.0, 1e38):
        x = mx.concatenate([mx.array(uniform) * other, mx.full((2, 1, 64), other)], axis=1)
        for dtype in (mx.float32, mx.bfloat16):
            decoded = codec.decode(codec.encode(x.astype(dtype), ctx, state), ctx)
            assert mx.isfinite(decoded).all().item()
    enc = codec.encode(mx.array(uniform) * size, ctx, state)
    if size >= 1e-30:  # bfloat16 itself has hardly any numbers near 1e-40
        assert relative_error(codec.decode(enc, ctx) / size, mx.array(uniform)) < 0.1


def test_a_channel_of_zeros_stays_zero() -> None:
    x = np.array(normal(2, 50, 64, 0))
    x[:, :, 9] = 0
    ctx = context(64, "keys", 50, 2)
    codec = VecInfer(3, rotation="none", **FEW)
    state = codec.calibrate(mx.array(x), ctx)
    assert state["smooth"][:, 0, 9].tolist() == [1, 1]
    assert mx.max(mx.abs(codec.decode(codec.encode(mx.array(x), ctx, state), ctx)[:, :, 9])).item() < 0.05


def test_what_can_not_be_coded_is_said() -> None:
    ctx = context(64, "keys", 4, 1)
    with pytest.raises(InputError, match="vecinfer learns from another text: name a capture of one with --calibration"):
        VecInfer(2).encode(normal(1, 4, 64, 0), ctx)
    assert VecInfer(2).unsupported(ctx) is None
    reason = VecInfer(1).unsupported(context(100))
    assert reason is not None and "100" in reason and "sub_dim of 8" in reason
    state = VecInfer(2, **FEW).calibrate(normal(1, 4, 64, 0), ctx)
    for bad in (np.nan, np.inf):
        with pytest.raises(Unsupported, match="layer 0's keys hold NaN or infinity"):
            VecInfer(2).encode(mx.full((1, 4, 64), bad), ctx, state)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("vecinfer@1", (8, 8)),
        ("vecinfer@1.5", (8, 12)),
        ("vecinfer@1,sub_dim=4", (4, 4)),
        ("vecinfer@2,code_bits=12", (6, 12)),
        ("vecinfer@0.625,sub_dim=16,code_bits=10", (16, 10)),
        ("vecinfer@0.333333,sub_dim=12,code_bits=4", (12, 4)),
    ],
)
def test_bits_and_shape_of_codes(text: str, shape: tuple[int, int]) -> None:
    codec = parse_codec(text).keys.build("keys")
    assert f",sub_dim={shape[0]},code_bits={shape[1]}," in describe(codec)
    assert rebuild(describe(codec), "keys") == codec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vecinfer@7", "vecinfer takes 0.5, 0.75, 1, .* bits, not 7"),
        ("vecinfer", "vecinfer needs a number of bits"),
        ("vecinfer@2,sub_dim=8,code_bits=8", "vecinfer@2 can't be had with sub_dim=8 and code_bits=8"),
        ("vecinfer@2,sub_dim=8", "vecinfer@2 can't be had with sub_dim=8"),
        ("vecinfer@1,code_bits=13", "code_bits must be 1 to 12, .* not 13"),
        ("vecinfer@1,sub_dim=-4", "sub_dim must be 1 or more, .* not -4"),
        ("vecinfer@-1,sub_dim=4", "vecinfer@-1 can't be had with sub_dim=4"),
        ("vecinfer@1,scope=all", "scope must be one of head, layer, model, not 'all'"),
        ("vecinfer@1,rotation=fast", "rotation must be one of .*, not 'fast'"),
        ("vecinfer@1,iterations=0", "iterations must be 1 or more, not 0"),
        ("vecinfer@1,seed=-1", "seed must be 0 or more, not -1"),
    ],
)
def test_options_that_are_wrong_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_codec(text)
