"""A codec with every option spelled out, so that a folder can be read by a tq whose defaults have changed."""

from __future__ import annotations

from dataclasses import fields

from tqcli.codecs.base import Codec
from tqcli.codecs.centring import Centred
from tqcli.codecs.context import Tensor
from tqcli.codecs.spec import CodecSpec, find_codec, parse_codec
from tqcli.codecs.split import ChannelSplit
from tqcli.codecs.warm_up import WarmUp
from tqcli.codecs.wrapper import Wrapper


def describe(codec: Codec) -> str:
    """For example "turboquant-mse@4,scale=auto,rotation=hadamard,seed=0,center=rope"."""
    wrapped: dict[str, object] = {"center": "none"}
    while isinstance(codec, Wrapper):
        if isinstance(codec, Centred):
            wrapped["center"] = codec.center
        elif isinstance(codec, ChannelSplit):
            wrapped["outliers"] = codec.outliers
        codec = codec.inner
    options = {f.name: getattr(codec, f.name) for f in fields(codec)}  # type: ignore[arg-type]
    bits = f"@{options.pop('bits'):g}" if "bits" in options else ""
    return codec.name + bits + "".join(f",{key}={value}" for key, value in (options | wrapped).items())


def rebuild(description: str, tensor: Tensor, stages: int | None = None) -> WarmUp:
    """The codec of a description; a codec of several stages decodes as many of them as `stages`, where it is given.

    Raises `InputError` where this tq doesn't know the codec, or it hasn't so many stages.
    """
    spec = parse_codec(description).of(tensor)
    options = tuple((k, str(stages) if k == "stages" and stages is not None else v) for k, v in spec.options)
    return CodecSpec(spec.name, spec.bits, options).build(tensor)


def has_stages(description: str) -> bool:
    """Whether the codec of a description can be decoded by its first stage alone."""
    return find_codec(parse_codec(description).keys.name).has_stages
