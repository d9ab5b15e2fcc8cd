"""What is wrong with a recipe is told in one line, with the file and its line."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

import pytest
from writing import PLAIN, read, refused

from tqcli.errors import InputError
from tqcli.recipes.load import load_recipe


@pytest.mark.parametrize("text", [b"", b"# later\n", b"\n\n---\n"])
def test_an_empty_file(tmp_path: Path, text: bytes) -> None:
    assert refused(tmp_path, text).startswith("mine.yaml is empty; ")


@pytest.mark.parametrize("text", ["- a\n", "turboquant-mse@4", "3"])
def test_what_is_no_mapping(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, text).startswith("mine.yaml:1: this is not a mapping")


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    assert refused(tmp_path, b"name: a\ndescription: caf\xe9\n").startswith(
        "mine.yaml:2: this is not UTF-8 (byte 0xe9)"
    )


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbf" + PLAIN.encode()).name == "mine"


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("name: [a\n", 2, "','"),
        ("name: a\n\tcodecs: b\n", 2, "spaces, not tabs"),
        ("name: a\ndescription: x: y\n", 2, "quotes"),
        ("name: a\ngates: [{codec: *}]\n", 2, "starts with * or & in quotes"),
        ("name: a\nmodel: *there\n", 2, "there"),
        ("name: a\x01b\n", 1, "0x01"),
        ("name: @a\n", 1, "in quotes"),
        (PLAIN + "---\n" + PLAIN, 3, "---"),
    ],
)
def test_text_that_is_not_yaml(tmp_path: Path, text: str, line: int, named: str) -> None:
    message = refused(tmp_path, text)
    assert message.startswith(f"mine.yaml:{line}: this is not YAML: ") and named in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\ncodecs:\n- codec: affine\n  bit: 4\n", "4: codecs.0 has no key 'bit'; did you mean 'bits'?"),
        (PLAIN + "dataset:\n  window: 2\n", "4: dataset has no key 'window'; did you mean 'windows'?"),
        (
            PLAIN + "measures: {perplexity: {token: 9}}",
            "3: measures.perplexity has no key 'token'; did you mean 'tokens'?",
        ),
        (PLAIN + "dataset: {colour: 1}", "3: dataset has no key 'colour'; there are spec, windows, tokens, seed"),
        ("name: a\ncodecs: [{codec: affine@4, center: rope}]", "2: codecs.0 has no key 'center'; there are codec,"),
        ("codecs: [affine@4]", "1: the recipe lacks the key 'name'"),
        (PLAIN + "gates:\n- max: 1\n", "4: gates.0 lacks the key 'metric'"),
        (PLAIN + "dataset:\n  windows: two\n", "4: dataset.windows must be a whole number, not 'two'"),
        (PLAIN + "dataset: {windows: true}", "3: dataset.windows must be a whole number, not true"),
        (PLAIN + "dataset: {windows: 0}", "3: dataset.windows must be 1 or more, not 0"),
        (PLAIN + "dataset: 3", "3: dataset must be a mapping, not 3"),
        (PLAIN + "outputs: [html, pdf]", "3: outputs.1 must be html, md, csv or parquet, not 'pdf'"),
        (PLAIN + "gates: [{metric: ratio, max: .nan}]", "3: gates.0.max must be a number, not nan"),
        (PLAIN + "gates: [{metric: ratio, max: 1, min: 1}]", "3: gates.0: a gate has either min or max"),
        ("name: a b\ncodecs: [affine@4]", "1: name must be of letters, digits, ., _ and -, beginning with"),
        ("name: a\ncodecs: []", "2: codecs is empty; name at least one"),
        ("name: a\ncodecs: affine@4", "2: codecs must be a list, not 'affine@4'"),
        ("name: a\ncodecs: [true]", "2: codecs.0 must be text or a mapping, not true"),
        (
            "name: a\ncodecs: [{codec: affine, bits: {a: 1}}]",
            "2: codecs.0.bits must be a number, text or a list, not a m",
        ),
        (
            "name: a\ncodecs:\n- codec: affine@4\n  options: {group: [32, [64]]}",
            "4: codecs.0.options.group.1 must be true",
        ),
        (f"sinks: {'9' * 5000}\n{PLAIN}", "1: '9999"),
        (PLAIN + "x: !!python/name:os.system a\n", "3: the tag 'tag:yaml.org,2002:python/name:os.system' is not known"),
        (PLAIN + "[a, b]: 1\n", "3: a list or mapping can't be a key"),
        (PLAIN + "x: &a [*a]\n", "3: an alias in here names what holds it"),
    ],
)
def test_what_the_schema_does_not_take(tmp_path: Path, text: str, message: str) -> None:
    assert refused(tmp_path, text).startswith(f"mine.yaml:{message}")


def test_an_option_in_the_wrong_place_is_told_where_it_goes(tmp_path: Path) -> None:
    assert "goes under options" in refused(tmp_path, "name: a\ncodecs: [{codec: affine@4, center: rope}]")


def test_a_key_given_twice(tmp_path: Path) -> None:
    message = refused(tmp_path, "name: a\nsinks: 1\ncodecs: [affine@4]\nsinks: 2\n")
    assert message == "mine.yaml:4: the key 'sinks' is given twice, here and in line 2; remove one"


def test_the_first_of_several_errors_is_told_with_the_number_of_the_others(tmp_path: Path) -> None:
    text = "name: a\nsinks: -1\ncodecs:\n- codec: affine@4\n  bit: 3\nrecent: few\nrecent: many\n"
    message = refused(tmp_path, text)
    assert message.startswith("mine.yaml:2: sinks must be 0 or more, not -1") and message.endswith(
        "(and 3 more errors)"
    )
    assert refused(tmp_path, "name: a\nsinks: -1\ncodecs: [3, true]").endswith("(and 1 more error)")


def test_deep_nesting_and_bombs_of_aliases_end_well(tmp_path: Path) -> None:
    assert "nested too deeply" in refused(tmp_path, PLAIN + "x: " + "[" * 3000)
    levels = "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 30))
    assert "has no key 'x0'" in refused(tmp_path, f"{PLAIN}x0: &x0 a\n{levels}")


def test_aliases_and_merged_mappings(tmp_path: Path) -> None:
    text = """
name: mine
sinks: &few 2
recent: *few
codecs:
- &first {codec: turboquant-mse, bits: 3}
- {<<: *first, bits: 2}
- {<<: [{sinks: 0}, *first]}
"""
    recipe = read(tmp_path, text)
    assert recipe.recent == 2
    assert [(c.bits, c.sinks) for c in recipe.codecs if not isinstance(c, str)] == [(3, None), (2, None), (3, 0)]
    assert "<< takes a mapping" in refused(tmp_path, PLAIN + "dataset: {<<: 3}")


def test_scalars_mean_what_they_look_like(tmp_path: Path) -> None:
    text = "name: 2024-01-01\ncodecs: [{codec: affine@4, layer_bits: 29:5}]\ncapture: {layers: 7}\ndescription: no\n"
    recipe = read(tmp_path, text + "gates: [{metric: ratio, measure: memory, max: 1e-3}]\n")
    (entry,) = recipe.codecs
    assert not isinstance(entry, str) and entry.layer_bits == "29:5"
    assert (recipe.name, recipe.capture.layers, recipe.description) == ("2024-01-01", "7", "no")
    assert recipe.gates[0].max == 1e-3


def test_a_measure_with_nothing_after_it_takes_its_defaults(tmp_path: Path) -> None:
    measures = read(tmp_path, PLAIN + "measures:\n  perplexity:\n  memory: {}\n  attention: null\n").measures
    assert measures.model_dump(exclude_none=True).keys() == {"perplexity", "memory"}


def test_what_is_dumped_can_be_read_again(tmp_path: Path) -> None:
    recipe = load_recipe("seed-claims")
    assert read(tmp_path, recipe.model_dump_json()) == recipe


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("smok", "did you mean 'smoke'"),
        ("nothing-like-it", "smoke"),
        ("recipes/smoke.yaml", "tq's own recipe is called smoke"),
        ("there/mine.yaml", "there/mine.yaml"),
        (".", "is a folder"),
        ("\0", "there is no"),
        ("x" * 5000, "can't look at"),
    ],
)
def test_a_source_that_is_none(tmp_path: Path, source: str, hint: str) -> None:
    with pytest.raises(InputError) as error, chdir(tmp_path):
        load_recipe(source)
    assert hint in str(error.value) and len(str(error.value)) < 300


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    with file.open("wb") as f:
        f.truncate(1 << 33)
    with pytest.raises(InputError, match="a recipe is a short text"):
        load_recipe(str(file))
