"""Readers of stdout and stderr that go away, as `head` does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import made_runs
import pytest
from running import command, unread
from studies import recipe


@pytest.mark.parametrize("form", [[], ["--json"], ["--format", "md"]])
def test_a_reader_that_goes_away_leaves_the_exit_code_of_a_regression(form: list[str], tmp_path: Path) -> None:
    for name, value in (("a", 0.1), ("b", 0.2)):
        result = made_runs.run(made_runs.measure("perplexity", made_runs.codec("x", {"kl": made_runs.metric(value)})))
        (tmp_path / name).write_text(result.to_json())
    assert unread("diff", tmp_path / "a", tmp_path / "b", *form) == (1, "")


@pytest.mark.parametrize(
    ("more", "options", "code"),
    [
        ({"gates": [{"metric": "ratio", "min": 100}]}, [], 1),
        ({"gates": [{"metric": "ratio", "min": 100}]}, ["--json"], 1),
        ({"gates": [{"metric": "ratio", "min": 100}]}, ["--ci", "github"], 1),
        ({"layer_bits": "9:8"}, [], 2),
    ],
)
def test_a_reader_that_goes_away_leaves_the_exit_code_of_a_run(
    more: dict[str, Any], options: list[str], code: int, tmp_path: Path
) -> None:
    file = recipe(tmp_path, codecs=["affine@4"], control=None, measures={"memory": {}}, **more)
    folders = ["--out", tmp_path / "out", "--cache", tmp_path / "cache"]
    ended, said = unread("run", file, *folders, *options)
    assert ended == code and "Broken" not in said and "Traceback" not in said
    assert (tmp_path / "out" / "result.json").is_file()


def test_an_error_that_nobody_reads_ends_nothing(tmp_path: Path) -> None:
    """As in `tq run ... 2>&1 >/dev/null | head -0`."""
    file = recipe(tmp_path, codecs=["affine@4"], control=None, measures={"memory": {}})
    read, write = os.pipe()
    os.close(read)
    try:
        words = command("run", file, "--out", tmp_path / "out", "--cache", tmp_path / "cache")
        ended = subprocess.run(words, stdout=subprocess.PIPE, stderr=write)
    finally:
        os.close(write)
    assert ended.returncode == 0 and b"affine@4" in ended.stdout
