"""Commands whose windows several processes share: the same figures and files as one, and errors that end all."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from launching import free_ports, launched, together
from running import capture_arguments, files_of, workplace
from tiny_models import write_tiny_model

from tqcli import distributed
from tqcli.distributed import ALONE, joined
from tqcli.storage import MANIFEST

OF_ONE_PROCESS = ("tokens_per_second", "peak_bytes")
"""Timings and memory differ from run to run."""


def perplexity_arguments(windows: int, *more: object) -> list[object]:
    there = workplace()
    size = ["--windows", windows, "--tokens", 96, "--sinks", 4, "--recent", 0, "--rechunk", 50]
    codecs = ["--codec", "turboquant-mse@4", "--codec", "affine@4"]
    return ["eval", "perplexity", there / "model", "--dataset", there / "book.txt", *size, *codecs, *more]


def figures(document: Any) -> Any:
    """A result without what differs from run to run."""
    if isinstance(document, list):
        return [figures(part) for part in document]
    if not isinstance(document, dict):
        return document
    return {key: figures(value) for key, value in document.items() if key not in (*OF_ONE_PROCESS, "processes")}


def said(err: str) -> list[str]:
    """The lines of tq on stderr."""
    return [line for line in err.splitlines() if line.startswith("tq: ")]


@pytest.fixture(scope="module")
def by_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture by one process."""
    folder = tmp_path_factory.mktemp("one")
    out = folder / "capture"
    (outcome,) = together(1, lambda rank: capture_arguments(out), folder)
    assert outcome.code == 0, outcome.err
    return out


def test_two_processes_capture_the_bytes_of_one(tmp_path: Path, by_one: Path) -> None:
    out = tmp_path / "capture"
    outcome = launched(2, *capture_arguments(out))
    assert outcome.code == 0 and outcome.err == "", outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].startswith("captured 3 windows of 96 tokens") and lines[-1] == str(out) and len(lines) == 3
    assert files_of(out) == files_of(by_one)


def test_perplexity_has_the_figures_of_one_process(tmp_path: Path) -> None:
    arguments = perplexity_arguments(3, "--per-layer", "--json")
    (one,) = together(1, lambda rank: [*arguments, "--out", tmp_path / "one"], tmp_path)
    assert one.document["settings"]["processes"] == 1
    shared = launched(2, *arguments, "--out", tmp_path / "shared")
    assert shared.err == "", shared.err
    assert set(files_of(tmp_path / "shared")) == set(files_of(tmp_path / "one"))
    (again,) = together(1, lambda rank: [*arguments, "--out", tmp_path / "shared", "--resume"], tmp_path)
    assert figures(again.document) == figures(one.document)
    assert figures(shared.document) == figures(one.document)
    assert shared.document["codecs"][0]["total"]["kl_mean"]["value"] > 0
    assert shared.document["settings"]["processes"] == 2


@pytest.mark.parametrize(
    ("more", "says"),
    [([], "holds a capture; replace it with --overwrite"), (["--windowz", 3], "No such option: --windowz")],
)
def test_an_error_of_all_is_shown_once(tmp_path: Path, by_one: Path, more: list[object], says: str) -> None:
    before = files_of(by_one)
    outcome = launched(2, *capture_arguments(by_one, *more))
    assert len(said(outcome.err)) == 1 and says in outcome.err, outcome.err
    assert "exited with code 2" in outcome.err and "Traceback" not in outcome.err
    assert outcome.out == ""
    outcomes = together(2, lambda rank: capture_arguments(by_one, *more), tmp_path)
    assert [outcome.code for outcome in outcomes] == [2, 2]
    assert (len(said(outcomes[0].err)), outcomes[1].err) == (1, "")
    assert files_of(by_one) == before


def test_an_error_of_one_ends_all_and_names_it(tmp_path: Path) -> None:
    def arguments(rank: int) -> list[object]:
        return capture_arguments(tmp_path / "capture", "--layers", 7 * rank)

    outcomes = together(2, arguments, tmp_path)
    assert [outcome.code for outcome in outcomes] == [2, 2]
    assert outcomes[0].err == "tq: process 1: --layers names layer 7; the model has layers 0 to 1\n"
    assert outcomes[1].err == ""


def test_processes_that_would_measure_different_things_are_refused(tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", layers=2, heads=2, kv_heads=1, head_dim=64, seed=1)

    def arguments(rank: int) -> list[object]:
        return [other if rank and part == workplace() / "model" else part for part in perplexity_arguments(2)]

    outcomes = together(2, arguments, tmp_path)
    assert [outcome.code for outcome in outcomes] == [2, 2]
    assert "process 1 has another model weights sha256" in outcomes[0].err
    assert (len(said(outcomes[0].err)), outcomes[0].out, outcomes[1].err) == (1, "", "")


def test_a_folder_that_is_not_shared_is_refused(tmp_path: Path) -> None:
    outcomes = together(2, lambda rank: capture_arguments(tmp_path / str(rank)), tmp_path)
    assert [outcome.code for outcome in outcomes] == [2, 2]
    assert f"process 1 doesn't see what process 0 writes to {tmp_path / '0'}" in outcomes[0].err
    assert (len(said(outcomes[0].err)), outcomes[1].err) == (1, "")
    assert not (tmp_path / "1").exists() and list((tmp_path / "0").iterdir()) == []


def test_a_process_that_dies_ends_the_others_and_the_capture_can_be_resumed(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "capture"

    def arguments(folder: Path, *more: object) -> list[object]:
        long = capture_arguments(folder, *more, windows=15, tokens=256)
        return [workplace() / "long.txt" if part == workplace() / "book.txt" else part for part in long]

    def shards() -> int:
        return len(json.loads((out / MANIFEST).read_text())["shards"]) if (out / MANIFEST).is_file() else 0

    def kill(started: list[subprocess.Popen[str]]) -> None:
        until = time.monotonic() + 60
        while not shards():
            assert time.monotonic() < until and started[0].poll() is None, "the capture ended or hangs"
            time.sleep(0.001)
        started[1].kill()

    first, second = together(2, lambda rank: arguments(out), tmp_path, kill)
    assert (first.code, second.code) == (2, -9)
    assert "another process of the run has died" in said(first.err)[0]
    # Whole rounds alone are in the manifest.
    assert 0 < shards() < 15 and shards() % 2 == 0
    assert [outcome.code for outcome in together(2, lambda rank: arguments(out, "--resume"), tmp_path)] == [0, 0]
    together(1, lambda rank: arguments(whole), tmp_path)
    assert files_of(out) == files_of(whole)


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_ports(2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        monkeypatch.setattr("launching.free_ports", lambda count: port)
        outcome = launched(2, *perplexity_arguments(2))
    assert len(said(outcome.err)) == 1, outcome.err
    assert "can't join the other processes over ring" in outcome.err and "--starting-port" in outcome.err


@pytest.mark.parametrize("hosts", [None, "\n", '[["127.0.0.1:9"]]'])
def test_one_process_joins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: str | None) -> None:
    """What `mlx.launch -n 1` sets, and what is left over in an environment."""
    monkeypatch.setenv("MLX_RANK", "0")
    if hosts is not None:
        (tmp_path / "hosts").write_text(hosts)
        monkeypatch.setenv("MLX_HOSTFILE", str(tmp_path / "hosts"))
    assert joined() is ALONE and distributed.is_first()
    assert ALONE.gather(b"all") == [b"all"]
