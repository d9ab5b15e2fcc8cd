"""`tq eval perplexity` on a tiny model."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import pytest
from running import capture_arguments, done, refusal, workplace


def arguments(*more: object) -> list[object]:
    """All tokens compressed, unless `more` says otherwise."""
    return defaults("--sinks", 0, "--recent", 0, *more)


def defaults(*more: object) -> list[object]:
    there = workplace()
    size = ["--windows", 2, "--tokens", 160, "--out", mkdtemp(prefix="tq-cli-")]
    return ["eval", "perplexity", there / "model", "--dataset", there / "book.txt", *size, *more]


CODECS = ["--codec", "identity", "--codec", "turboquant-mse@4", "--codec", "qjl@2", "--codec", "affine@4"]


def test_codecs_are_sorted_by_bytes_and_identity_changes_nothing() -> None:
    document = done(*arguments(*CODECS, "--sinks", 4, "--json")).document
    assert document["kind"] == "perplexity"
    assert document["capture"] is None
    assert document["settings"]["scored_tokens"] == 2 * 159
    by_name = {codec["codec"]: codec["total"] for codec in document["codecs"]}
    assert by_name["identity"]["kl_mean"]["value"] == 0
    assert by_name["identity"]["same_top1"]["value"] == 1
    assert by_name["identity"]["ppl"]["value"] == document["baseline"]["ppl"]["value"]
    mse, qjl = by_name["turboquant-mse@4"], by_name["qjl@2 | turboquant-mse@2"]
    assert 0 < mse["kl_mean"]["value"] < qjl["kl_mean"]["value"]
    assert mse["kl_mean"]["ci_low"] <= mse["kl_mean"]["value"] <= mse["kl_mean"]["ci_high"]
    assert mse["bytes_resident"]["value"] < by_name["identity"]["bytes_resident"]["value"] / 3
    table = done(*arguments(*CODECS)).out
    rows = [
        line.split()[0] for line in table.splitlines() if line.startswith((" turbo", " qjl", " affine", " identity"))
    ]
    assert rows[-1] == "identity"
    assert "qjl codes keys alone; values take turboquant-mse@2" in table


def test_sinks_and_recent_tokens_are_kept_by_default_as_a_cache_does() -> None:
    settings = done(*defaults("--codec", "affine@4", "--json")).document["settings"]
    assert (settings["sinks"], settings["recent"]) == (4, 32)
    assert "4 sinks, 32 recent tokens uncompressed" in done(*defaults("--codec", "affine@4")).out


def test_layers_alone_and_the_floor_of_other_steps() -> None:
    document = done(*arguments("--codec", "turboquant-mse@3", "--per-layer", "--rechunk", 50, "--json")).document
    codec = document["codecs"][0]
    assert [row["layer"] for row in codec["layers"]] == [0, 1]
    assert all(
        0 < row["metrics"]["kl_mean"]["value"] < 2 * codec["total"]["kl_mean"]["value"] for row in codec["layers"]
    )
    assert codec["total"]["kl_mean_rechunked"]["value"] < codec["total"]["kl_mean"]["value"]
    assert document["baseline"]["kl_mean_rechunked"]["value"] < 1e-6
    table = done(*arguments("--codec", "turboquant-mse@3", "--per-layer", "--rechunk", 50)).out
    assert "Each layer compressed alone." in table
    assert [codec["codec"] for codec in document["codecs"]] == ["turboquant-mse@3", "identity", "fp16"]
    assert "Re-chunked: mean KL of a run in steps of 50 tokens from that in steps of 256:" in table


def test_codebooks_from_a_calibration_capture_of_other_text(tmp_path: Path) -> None:
    there = workplace()
    done("capture", there / "model", "--dataset", "sample", "--windows", 2, "--tokens", 96, "--out", tmp_path / "other")
    calibrated = ["--calibration", tmp_path / "other"]
    document = done(*arguments("--codec", "vecinfer@2,iterations=3", *calibrated, "--json")).document
    assert document["codecs"][0]["total"]["kl_mean"]["value"] > 0
    done(*capture_arguments(tmp_path / "same"))
    said = refusal(*arguments("--codec", "vecinfer@2", "--calibration", tmp_path / "same"))
    assert "shares text with what is measured" in said


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--stride", 0], "--stride must be from 1 to 159"),
        (["--chunk", 0], "--chunk must be 1 or more, not 0"),
        (["--rechunk", 256], "makes the same steps"),
        (["--cache-dtype", "int8"], "--cache-dtype must be one of"),
        (["--codec", "vecinfer@2"], "learns from another text"),
        (["--codec", "turboquant-mse@4", "--sinks", 160], "compressed nothing"),
        (["--tokens", 100000], "is shorter than a window"),
    ],
)
def test_what_can_not_be_run_is_said_in_one_line(more: list[object], says: str) -> None:
    codec = [] if "--codec" in more else ["--codec", "affine@4"]
    assert says in refusal(*arguments(*codec, *more))


def test_keys_that_were_never_coded_are_told() -> None:
    outcome = done(*arguments("--tokens", 60, "--sinks", 0, "--recent", 0, "--codec", "turboquant-mse@2", "--json"))
    (note,) = outcome.document["codecs"][0]["notes"]
    assert "0 % of its keys and 100 % of its values coded" in note
