"""`--set key.path=value`."""

from __future__ import annotations

from pathlib import Path

import pytest
from writing import PLAIN, read, refused

from tqcli.recipes.expand import expand

TWO = "name: mine\ncodecs:\n- turboquant-mse@4,center=none\n- {codec: affine@4, sinks: 0}\n"


def names(folder: Path, *changes: str) -> list[str]:
    return [codec.name for codec in expand(read(folder, TWO, *changes))]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("codecs.0=affine@3", "affine@3"),
        ("codecs.0=affine@3,group=32", "affine@3,group=32"),
        ("codecs.0.bits=3", "turboquant-mse@3,center=none"),
        ("codecs.0.bits=4/2", "turboquant-mse@4/2,center=none"),
        ("codecs.0.codec=affine@2", "affine@2"),
        ("codecs.0.options.center=rope", "turboquant-mse@4,center=rope"),
        ("codecs.0.options.seed=2", "turboquant-mse@4,center=none,seed=2"),
        ("codecs.0.recent=0", "turboquant-mse@4,center=none recent=0"),
        ("codecs.0.layer_bits=29:5,0:4", "turboquant-mse@4,center=none layers 0:4,29:5"),
        ("codecs.0.name=plain", "plain"),
        ("codecs.1.bits=3", "affine@3 sinks=0"),
        ("codecs.1.sinks=1", "affine@4 sinks=1"),
        ("codecs.2=fp16", "fp16"),
        ("codecs.2={codec: affine, bits: [2, 3]}", "affine@2"),
    ],
)
def test_codecs(tmp_path: Path, change: str, name: str) -> None:
    assert name in names(tmp_path, change)
    unchanged = {"turboquant-mse@4,center=none", "affine@4 sinks=0"}
    assert len(unchanged & set(names(tmp_path, change))) >= 1


def test_a_list_of_bits_is_an_axis(tmp_path: Path) -> None:
    assert names(tmp_path, "codecs.1.bits=[2, 3]")[1:] == ["affine@2 sinks=0", "affine@3 sinks=0"]


def test_changes_follow_each_other(tmp_path: Path) -> None:
    added = ("codecs.2=fp16", "codecs.3.codec=affine", "codecs.3.bits=8", "sinks=0")
    assert names(tmp_path, *added) == ["turboquant-mse@4,center=none", "affine@4", "fp16", "affine@8"]


def test_other_values(tmp_path: Path) -> None:
    changes = ("dataset.windows=2", "calibration.tokens=64", "description=a: b", "capture.layers=7", "control=affine@4")
    recipe = read(tmp_path, PLAIN, *changes)
    assert (recipe.dataset.windows, recipe.description, recipe.capture.layers) == (2, "a: b", "7")
    assert recipe.calibration is not None and recipe.calibration.tokens == 64


def test_measures_are_added_to_the_default_ones(tmp_path: Path) -> None:
    def measured(*changes: str) -> set[str]:
        return set(read(tmp_path, PLAIN, *changes).measures.model_dump(exclude_none=True))

    usual = measured()
    assert measured("measures.perplexity.tokens=512") == usual | {"perplexity"}
    assert measured("measures.distortion={}") == measured("measures.distortion=") == usual | {"distortion"}
    assert measured("measures={distortion: {}}") == {"distortion"}
    assert measured("measures.distortion={}", "measures.memory=null", "measures.attention=null") == {"distortion"}


def test_gates_are_added_one_after_the_other(tmp_path: Path) -> None:
    gate = ("gates.0.metric=attention_kl", "gates.0.max=1e-2", "gates.0.codec=*")
    (made,) = read(tmp_path, PLAIN, *gate).gates
    assert (made.metric, made.max, made.codec) == ("attention_kl", 1e-2, "*")
    assert len(read(tmp_path, PLAIN, *gate, "gates.1={metric: topk_overlap, min: 0.5}").gates) == 2


def test_what_an_alias_shares_stays_as_it_is(tmp_path: Path) -> None:
    text = "name: a\ndataset: &same {windows: 3, tokens: 64}\ncalibration: *same\nrecent: 0\ncodecs: [affine@4]\n"
    recipe = read(tmp_path, text, "dataset.windows=5")
    assert recipe.calibration is not None
    assert (recipe.dataset.windows, recipe.calibration.windows) == (5, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nonsense", "'nonsense' is not a change; write for example --set dataset.windows=2"),
        ("=3", "'=3' is not a change"),
        ("a..b=3", "'a..b=3' is not a change"),
        ("codec.0.bits=3", "--set codec.0.bits=3: the recipe has no key 'codec'; did you mean 'codecs'?"),
        ("dataset.window=2", "--set dataset.window=2: dataset has no key 'window'; did you mean 'windows'?"),
        ("codecs.0.bit=3", "--set codecs.0.bit=3: codecs.0 has no key 'bit'; did you mean 'bits'?"),
        ("dataset.windows=two", "--set dataset.windows=two: dataset.windows must be a whole number, not 'two'"),
        ("dataset.windows.x=3", "--set dataset.windows.x=3: dataset.windows is 4, which holds no 'x'"),
        (
            "dataset={windows: 1, windows: 2}",
            "--set dataset={windows: 1, windows: 2}: the key 'windows' is given twice",
        ),
        ("dataset.windows=[1", "--set dataset.windows=[1: this is not YAML"),
        ("codecs.5=fp16", "--set codecs.5=fp16: codecs has the entries 0 to 1; codecs.2 adds one"),
        ("codecs.-1=fp16", "--set codecs.-1=fp16: codecs is a list: name an entry by its number, for example codecs.0"),
        ("gates.1.max=1", "--set gates.1.max=1: gates is empty; gates.0 adds one"),
        ("codecs.0=afine@4", "--set codecs.0=afine@4: codecs.0: there is no codec 'afine'; did you mean affine?"),
        ("codecs.0.bits=44", "mine.yaml:3 with --set codecs.0.bits=44: codecs.0: turboquant-mse takes 1 to 8 bits"),
        (
            "codecs.1.options.groups=32",
            "mine.yaml:4 with --set codecs.1.options.groups=32: codecs.1: affine has no opt",
        ),
    ],
)
def test_a_change_that_is_wrong_is_named(tmp_path: Path, change: str, message: str) -> None:
    text = TWO + "dataset: {windows: 4}\ngates: []\n"
    assert refused(tmp_path, text, change).startswith(message)
