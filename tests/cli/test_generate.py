"""`tq generate` on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import done, refusal, tq, workplace

from tqcli.evaluation.generation import first_difference


def arguments(*more: object) -> list[object]:
    return ["generate", workplace() / "model", "--prompt", "It was the best of times, " * 8, "--max-tokens", 12, *more]


def test_identity_goes_on_as_the_uncompressed_model_does() -> None:
    document = done(*arguments("--codec", "identity", "--compare", "--json")).document
    assert document["first_difference"] is None
    assert document["compressed"]["tokens"] == document["uncompressed"]["tokens"]
    assert len(document["compressed"]["tokens"]) <= 12


def test_a_compressed_cache_takes_fewer_bytes_and_the_rest_is_said() -> None:
    options = ["--sinks", 0, "--recent", 0, "--codec", "turboquant-mse@2,center=none"]
    document = done(*arguments(*options, "--compare", "--json")).document
    assert document["compressed"]["bytes_resident"] < document["uncompressed"]["bytes_resident"] / 4
    outcome = done(*arguments(*options, "--compare"))
    assert outcome.out.startswith("It was the best of times, ")
    assert "tokens/s" in outcome.err
    assert "MB in float16" in outcome.err
    assert "part at token" in outcome.err or "the same" in outcome.err


def test_a_codec_is_needed_only_by_name(tmp_path: Path) -> None:
    outcome = tq(*arguments())
    assert outcome.code == 0
    assert "no --codec was named; using turboquant-mse@4" in outcome.err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--max-tokens", 0], "--max-tokens must be 1 or more, not 0"),
        (["--prompt", ""], "there is no prompt"),
        (["--codec", "vecinfer@2"], "learns from another text"),
        (["--codec", "affine@4", "--algo", "qjl", "--bits", 2], "one codec at a time"),
    ],
)
def test_what_can_not_be_generated_is_said_in_one_line(more: list[object], says: str) -> None:
    codec = [] if "--codec" in more else ["--codec", "affine@4"]
    assert says in refusal(*arguments(*codec, *more))


@pytest.mark.parametrize(
    ("one", "other", "expected"), [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [], None)]
)
def test_where_two_generations_part(one: list[int], other: list[int], expected: int | None) -> None:
    assert first_difference(one, other) == expected


def test_a_prompt_that_is_no_text_is_one_line() -> None:
    line = refusal("generate", workplace() / "model", "--prompt", "a\udcff", "--codec", "affine@4")
    assert "isn't UTF-8 at character 2" in line


def test_a_cache_that_holds_nothing_coded_yet_says_so() -> None:
    assert "nothing of the" in tq(*arguments("--recent", 500, "--codec", "turboquant-mse@4")).err
