"""Codecs as text: what is read, and what is said of what can't be."""

import pytest

from tqcli.codecs.spec import parse_codec
from tqcli.errors import InputError


@pytest.mark.parametrize(
    "text",
    [
        "turboquant-mse@4",
        "turboquant-mse@4/2",
        "affine@4,group=32",
        "identity",
        "turboquant-mse@3,scale=unbiased,rotation=qr",
    ],
)
def test_text_survives_reading(text: str) -> None:
    assert str(parse_codec(text)) == text


def test_keys_and_values_apart() -> None:
    pair = parse_codec("turboquant-mse@3,scale=unbiased | affine@4")
    assert str(pair.keys) == "turboquant-mse@3,scale=unbiased"
    assert str(pair.values) == "affine@4"
    pair = parse_codec("turboquant-mse@3/2")
    assert (pair.keys.bits, pair.values.bits) == (3, 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("turboqant-mse@4", "did you mean turboquant-mse"),
        ("zzz@4", "known: affine"),
        ("turboquant-mse", "needs a number of bits"),
        ("turboquant-mse@9", "1 to 8 bits in steps of 0.5, not 9"),
        ("turboquant-mse@0", "1 to 8 bits in steps of 0.5, not 0"),
        ("affine@7", "2, 3, 4, 5, 6, 8 bits, not 7"),
        ("affine@1", "not 1"),
        ("affine@4,group=48", "32, 64 or 128, not 48"),
        ("affine@4,grup=32", "did you mean group"),
        ("affine@4,group=big", "whole number, not 'big'"),
        ("identity@4", "no choice of bits"),
        ("turboquant-mse@four", "'four'"),
        ("turboquant-mse@4/3/2", "more than two"),
        ("turboquant-mse@4,rotation=haar", "hadamard, hadamard2, hadamard3, qr, none, not 'haar'"),
        ("turboquant-mse@4,scale=best", "auto, plain, unbiased, not 'best'"),
        ("turboquant-mse@4,center=median", "none, mean, rope, not 'median'"),
        ("turboquant-mse@4,seed", "write key=value"),
        ("turboquant-mse@4,seed=-1", "0 or more, not -1"),
        ("turboquant-mse@4,bits=3", "no option 'bits'"),
        ("", "no codec ''"),
        ("turboquant-mse@2,seed=1,seed=2", "names the option seed twice"),
        ("turboquant-mse@3/2 | affine@4", "'turboquant-mse@3/2' in"),
        ("qjl@1 | qjl@1", "qjl codes keys, not values"),
        ("qjl@1/0", "1 to 8 bits in steps of 0.5, not 0"),
        ("vecinfer@2,sub_dim=3,code_bits=8", "can't be had with sub_dim=3 and code_bits=8"),
    ],
)
def test_what_can_not_be_read_is_named_with_the_remedy(text: str, says: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]+$") as caught:
        parse_codec(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "keys", "values"),
    [
        ("qjl@1", "qjl@1", "turboquant-mse@2"),
        ("qjl@2.5", "qjl@2.5", "turboquant-mse@3"),
        ("qjl@4/3", "qjl@4", "turboquant-mse@3"),
        ("turboquant-prod@4,seed=3", "turboquant-prod@4,seed=3", "turboquant-mse@4"),
        ("qjl@1 | affine@4", "qjl@1", "affine@4"),
    ],
)
def test_values_beside_a_codec_of_keys_alone(text: str, keys: str, values: str) -> None:
    pair = parse_codec(text)
    assert (str(pair.keys), str(pair.values)) == (keys, values)
