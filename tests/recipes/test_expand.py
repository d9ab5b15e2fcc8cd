"""What codecs a recipe's entries stand for, and what they are called."""

from __future__ import annotations

from typing import Any

import pytest

from tqcli.errors import InputError
from tqcli.recipes.expand import StudyCodec, expand, gated
from tqcli.recipes.schema import Gate, Recipe


def codecs(*entries: Any, **settings: Any) -> list[StudyCodec]:
    return expand(Recipe.model_validate({"name": "mine", "codecs": list(entries), **settings}))


def names(*entries: Any, **settings: Any) -> list[str]:
    return [codec.name for codec in codecs(*entries, **settings)]


def test_codecs_are_in_the_order_written() -> None:
    entry = {"codec": "turboquant-mse", "bits": [3, "4/2"], "options": {"center": ["none", "rope"], "seed": [1, 0]}}
    assert names("fp16", entry, "identity") == [
        "fp16",
        "turboquant-mse@3,center=none,seed=1",
        "turboquant-mse@3,center=none,seed=0",
        "turboquant-mse@3,center=rope,seed=1",
        "turboquant-mse@3,center=rope,seed=0",
        "turboquant-mse@4/2,center=none,seed=1",
        "turboquant-mse@4/2,center=none,seed=0",
        "turboquant-mse@4/2,center=rope,seed=1",
        "turboquant-mse@4/2,center=rope,seed=0",
        "identity",
    ]


def test_bits_and_options_go_beside_a_codec_that_has_some() -> None:
    assert names({"codec": "affine,group=32", "bits": 4, "options": {"center": "rope"}}) == [
        "affine@4,group=32,center=rope"
    ]
    assert names({"codec": "vecinfer@2", "options": {"smooth": [True, False]}}) == [
        "vecinfer@2,smooth=true",
        "vecinfer@2,smooth=false",
    ]
    assert names({"codec": "turboquant-mse", "bits": [2.5, 4.0]}) == ["turboquant-mse@2.5", "turboquant-mse@4"]


def test_keys_and_values_may_have_codecs_of_their_own() -> None:
    assert names("turboquant-mse@3 | affine@4") == ["turboquant-mse@3 | affine@4"]
    assert names({"codec": "qjl", "bits": "1/3"}) == ["qjl@1 | turboquant-mse@3"]


def test_a_name_tells_what_differs_from_the_recipe() -> None:
    entries = [
        "affine@4",
        {"codec": "affine@4", "sinks": 0},
        {"codec": "affine@4", "recent": 0, "layer_bits": "29:5, 0:6/5"},
        {"codec": "affine@3", "sinks": 4, "recent": 32, "layer_bits": ""},
        {"codec": "affine@4", "sinks": 1, "name": "mine"},
    ]
    made = codecs(*entries)
    assert [codec.name for codec in made] == [
        "affine@4",
        "affine@4 sinks=0",
        "affine@4 recent=0 layers 0:6/5,29:5",
        "affine@3",
        "mine",
    ]
    assert [codec.layer_bits for codec in made] == ["", "", "0:6/5,29:5", "", ""]
    assert [(codec.plan.sinks, codec.plan.recent) for codec in made[:3]] == [(4, 32), (0, 32), (4, 0)]
    assert made[2].plan.layer_bits == {0: (6, 5), 29: (5, None)}


def test_the_recipes_layer_bits_are_of_codecs_that_have_bits() -> None:
    made = codecs("fp16", "affine@4", {"codec": "affine@4", "layer_bits": ""}, layer_bits="3:8")
    assert [(c.name, c.layer_bits) for c in made] == [("fp16", ""), ("affine@4", "3:8"), ("affine@4 layers alike", "")]


def test_long_lists_of_layers_are_cut_but_told_apart() -> None:
    every = [",".join(f"{layer}:{bits}" for layer in range(30)) for bits in (3, 5)]
    found = names(*({"codec": "turboquant-mse@4", "layer_bits": text} for text in every))
    assert len(set(found)) == 2
    assert all(len(name) < 70 and "30 layers" in name for name in found)


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("turboquan@4", "did you mean turboquant-mse"),
        ("affine@7", "7"),
        ("affine", "affine@4"),
        ("fp16@4", "fp16"),
        ({"codec": "affine@4", "bits": 3}, "names its bits already"),
        ({"codec": "qjl@1 | affine@4", "bits": 3}, "write bits inside it"),
        ({"codec": "qjl@1 | affine@4", "options": {"seed": 1}}, "write options inside it"),
        ({"codec": "affine", "bits": []}, "bits is an empty list"),
        ({"codec": "affine@4", "options": {"group": []}}, "group is an empty list"),
        ({"codec": "affine", "bits": "4,group=32"}, "'4,group=32'"),
        ({"codec": "affine@4", "options": {"group": "32,center=rope"}}, "'32,center=rope'"),
        ({"codec": "affine@4,group=32", "options": {"group": 64}}, "twice"),
        ({"codec": "affine@4", "options": {"centre": "rope"}}, "did you mean center?"),
        ({"codec": "affine@4", "layer_bits": "0;3"}, "'0;3' in layer_bits"),
        ({"codec": "affine@4", "layer_bits": "0:7"}, "layer_bits: affine takes"),
        ({"codec": "fp16", "layer_bits": "0:7"}, "layer_bits doesn't go with fp16"),
        ({"codec": "affine", "bits": [3, 4], "name": "two"}, "'two' stands for 2 codecs"),
        ({"codec": "affine@4", "name": "baseline"}, "means the stored run"),
        ({"codec": "affine@4", "name": "all*"}, "'all*'"),
        ({"codec": "affine@4", "name": " "}, "' '"),
        ({"codec": "affine", "bits": [4, 4]}, "two codecs are called 'affine@4'"),
        ({"codec": "affine@4", "name": "uncompressed"}, "'uncompressed' means something else"),
        ({"codec": "affine@4", "name": "identity"}, "'identity' means something else"),
        ({"codec": "identity", "name": "fp16"}, "'fp16' means something else"),
        ({"codec": "turboquant-mse", "bits": 2.9999999999}, "bits '2.9999999999' has more digits"),
        ({"codec": "turboquant-mse", "bits": "4/2.9999999999"}, "bits '4/2.9999999999' has more digits"),
        (
            {"codec": "affine", "bits": [2, 3, 4], "options": {"seed": list(range(1001))}},
            "3,003 codecs; a recipe may have 1,000",
        ),
        ("fp16", "two codecs are called 'fp16'"),
    ],
)
def test_what_is_wrong_with_an_entry_is_named(entry: Any, named: str) -> None:
    with pytest.raises(InputError) as error:
        codecs("fp16", entry)
    message = str(error.value)
    assert message.startswith("codecs.1: ") and named in message and "--" not in message


def test_a_gate_is_about_the_codecs_that_match() -> None:
    every = ["affine@4", "qjl@1 | turboquant-mse@2", "turboquant-mse@2", "turboquant-mse@12"]

    def of(pattern: str, control: str | None = "affine@4") -> list[str]:
        return gated(Gate(metric="ratio", codec=pattern, max=1), every, control)

    assert of("*") == every[1:]
    assert of("*", None) == every
    assert of("turboquant-mse@?") == ["turboquant-mse@2"]
    assert of("affine*") == ["affine@4"]
    assert of("turboquant-mse@[2]") == []
    assert of("qjl@1 | turboquant-mse@2") == every[1:2]


def test_floors_of_noise_are_gated_where_they_are_named_and_not_by_patterns() -> None:
    def of(pattern: str, *names: str) -> list[str]:
        return gated(Gate(metric="kl_mean", codec=pattern, max=1), names, None)

    assert of("*?", "affine@4") == ["affine@4"]
    assert of("i*", "affine@4") == []
    assert of("identity", "affine@4") == ["identity"]
    assert of("*?", "affine@4", "fp16") == ["affine@4", "fp16"]


def test_a_recipe_of_very_many_codecs_is_refused_at_once() -> None:
    axes = {"codec": "turboquant-mse@4", "options": {"seed": list(range(600))}}
    assert len(codecs(axes)) == 600
    with pytest.raises(InputError, match=r"codecs.1: that comes to 1,200 codecs"):
        codecs(axes, axes | {"options": {"seed": list(range(600, 1200))}})
