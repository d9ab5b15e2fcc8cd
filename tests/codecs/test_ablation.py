"""Every option changes the result: a stage that is switched off must be seen."""

from dataclasses import fields, replace

import mlx.core as mx
import pytest
from helpers import context

from tqcli.codecs.base import registered_codecs
from tqcli.codecs.context import Tensor
from tqcli.codecs.spec import CodecSpec, parse_codec

ROTATIONS = ["rotation=hadamard2", "rotation=hadamard3", "rotation=qr", "rotation=none"]
CENTERS = ["center=none", "center=mean"]
SKETCHES = ["sketch=gaussian", "m=40", "m=100"]
CHANGES = {
    "turboquant-mse@3": ["@4", "@3.5", "scale=unbiased", *ROTATIONS, "seed=1", "outliers=16", *CENTERS],
    "turboquant-rvq@3": ["@4", "scale=unbiased", *ROTATIONS, "seed=1", "stages=1", *CENTERS],
    "turboquant-prod@3": ["@4", "@3.5", *SKETCHES, *ROTATIONS, "seed=1", "outliers=16", *CENTERS],
    "qjl@2": ["@1", "@1.5", *SKETCHES, *ROTATIONS, "seed=1", "outliers=8", *CENTERS],
    "vecinfer@2": [
        "@1",
        "sub_dim=2,code_bits=4",
        "scope=head",
        "smooth=false",
        *ROTATIONS,
        "seed=1",
        "iterations=2",
        *CENTERS,
    ],
    "affine@4": ["@3", "group=32", "center=rope", "center=mean"],
    "fp16": ["center=rope"],
    "identity": ["center=rope"],
}


def decoded_of(text: str, tensor: Tensor = "keys") -> mx.array:
    """What is decoded of keys with a shared part and a few large channels; learned from others where need be."""
    codec, ctx = parse_codec(text).of(tensor).build(tensor), context(64, tensor, 200, 2)
    scale = mx.where(mx.arange(64) % 9 == 0, 5.0, 1.0)
    x, other = ((mx.random.normal((2, 200, 64), key=mx.random.key(k)) + 1) * scale for k in (0, 1))
    state = codec.calibrate(other, ctx) if codec.needs_calibration else None
    return codec.decode(codec.encode(x, ctx, state), ctx)


@pytest.mark.parametrize(
    ("base", "change"), [(base, change) for base, changes in CHANGES.items() for change in changes]
)
def test_an_option_changes_what_is_decoded(base: str, change: str) -> None:
    text = base.partition("@")[0] + change if change.startswith("@") else f"{base},{change}"
    assert mx.max(mx.abs(decoded_of(base) - decoded_of(text))).item() > (1e-3 if "@" in base else 1e-9)


def test_the_scope_of_a_codebook_changes_what_is_decoded() -> None:
    """Layers that differ: a codebook of the whole model is another than that of one layer."""
    decoded = []
    for scope in ("layer", "model"):
        codec = CodecSpec("vecinfer", 2, (("scope", scope), ("center", "none"))).build("keys")
        x = [mx.random.normal((2, 200, 64), key=mx.random.key(k)) * (1 + 2 * k) for k in (0, 1)]
        layers = [(replace(context(64, "keys", 200, 2), layer=k), x[k]) for k in (0, 1)]
        states = codec.calibrate_layers(layers)
        decoded.append(codec.decode(codec.encode(x[0], layers[0][0], states[0]), layers[0][0]))
    assert mx.max(mx.abs(decoded[0] - decoded[1])).item() > 1e-3


def test_no_option_is_forgotten_here() -> None:
    for base, changes in CHANGES.items():
        name = base.partition("@")[0]
        cls = registered_codecs()[name]
        options = {f.name for f in fields(cls)} | {"center"} | ({"outliers"} if cls.splits_channels else set())  # type: ignore[arg-type]
        named = {option.partition("=")[0] for change in changes for option in change.split(",")}
        assert options == {"bits" if option.startswith("@") else option for option in named}, name
    assert {base.partition("@")[0] for base in CHANGES} == set(registered_codecs())
