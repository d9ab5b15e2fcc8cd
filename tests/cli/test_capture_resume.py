from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import PROSE, capture_arguments, done, files_of, make_capture, refusal, tq, workplace
from tiny_models import write_tiny_model

from tqcli.storage import MANIFEST

LONG = {"windows": 24, "tokens": 256}
"""Long enough that a busy machine doesn't come to the end before the signal does."""


def long_capture(out: Path, *more: object) -> list[object]:
    return capture_arguments(out, *more, "--dataset", workplace() / "long.txt", **LONG)


def start(out: Path) -> subprocess.Popen[str]:
    """A capture in its own process, stopped right after its first window is whole."""
    command = [sys.executable, "-m", "tqcli", *map(str, long_capture(out))]
    # A shell that starts the tests in the background has Ctrl-C ignored, which is handed down.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until = time.monotonic() + 60
    while not _shards(out):
        assert process.poll() is None and time.monotonic() < until, "the capture ended or hangs"
        time.sleep(0.002)
    return process


def _shards(out: Path) -> int:
    return len(json.loads((out / MANIFEST).read_text())["shards"]) if (out / MANIFEST).is_file() else 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "capture"
    done(*long_capture(out))
    return out


def test_a_killed_capture_is_resumed_to_the_very_same_bytes(tmp_path: Path, uninterrupted: Path) -> None:
    out = tmp_path / "capture"
    process = start(out)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert 1 <= _shards(out) < LONG["windows"], "killed too late to test anything"
    assert f"{_shards(out)} of {LONG['windows']}" in done("inspect", out).out

    kept = files_of(out)
    before = (out / "window-00000.safetensors").stat().st_mtime_ns
    done(*long_capture(out, "--resume"))
    assert files_of(out) == files_of(uninterrupted)
    # What was whole stays.
    assert kept["window-00000.safetensors"] == files_of(out)["window-00000.safetensors"]
    assert (out / "window-00000.safetensors").stat().st_mtime_ns == before


def test_an_interrupted_capture_exits_with_130_and_can_be_resumed(tmp_path: Path, uninterrupted: Path) -> None:
    out = tmp_path / "capture"
    process = start(out)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("tq: interrupted")
    done(*long_capture(out, "--resume"))
    assert files_of(out) == files_of(uninterrupted)


def test_leftovers_of_a_write_that_was_cut_short_are_not_taken_for_a_window(tmp_path: Path) -> None:
    whole, out = make_capture(tmp_path / "whole"), make_capture(tmp_path / "cut")
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["shards"] = manifest["shards"][:1]
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    last = out / "window-00002.safetensors"
    (out / ".partial-window-00001.safetensors").write_bytes(last.read_bytes()[:100])
    last.write_bytes(last.read_bytes()[:50])
    done(*capture_arguments(out, "--resume"))
    assert {k: v for k, v in files_of(out).items() if not k.startswith(".partial")} == files_of(whole)


def test_resume_of_a_whole_capture_changes_nothing(tmp_path: Path) -> None:
    out = make_capture(tmp_path / "capture")
    before = files_of(out)
    done(*capture_arguments(out, "--resume"))
    assert files_of(out) == before


def test_resume_without_a_capture_begins_one(tmp_path: Path) -> None:
    done(*capture_arguments(tmp_path / "new", "--resume"))
    assert files_of(tmp_path / "new") == files_of(make_capture(tmp_path / "other"))


def test_resume_makes_a_damaged_window_and_those_after_it_anew(tmp_path: Path) -> None:
    out = make_capture(tmp_path / "capture")
    before = files_of(out)
    shard = out / "window-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    outcome = done(*capture_arguments(out, "--resume"))
    assert "window-00001.safetensors" in outcome.err and "capturing again from window 1" in outcome.err
    assert files_of(out) == before


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--windows", 2, "dataset windows (3, now 2)"),
        ("--tokens", 64, "dataset tokens (96, now 64)"),
        ("--seed", 1, "dataset seed (0, now 1)"),
        ("--queries", 4, "queries (8, now 4)"),
        ("--layers", "0", "layers asked (None, now [0])"),
        ("--dtype", "bfloat16", "model compute dtype (float32, now bfloat16)"),
    ],
)
def test_resume_with_another_option_is_refused_naming_it(
    tmp_path: Path, option: str, value: object, named: str
) -> None:
    out = make_capture(tmp_path / "capture")
    before = files_of(out)
    line = refusal(*capture_arguments(out, "--resume", option, value))
    assert str(out) in line and "--overwrite" in line
    assert f"another {named}" in line
    assert files_of(out) == before


def test_resume_with_another_text_or_model_is_refused(tmp_path: Path) -> None:
    out = make_capture(tmp_path / "capture")
    other_text = tmp_path / "book.txt"
    other_text.write_text(PROSE * 60 + "The end.", encoding="utf-8")
    assert "text sha256" in refusal(*capture_arguments(out, "--resume", "--dataset", other_text))
    model = write_tiny_model(tmp_path / "model", layers=2, heads=2, kv_heads=1, head_dim=64, seed=1)
    arguments = capture_arguments(out, "--resume")
    arguments[1] = model
    assert "weights sha256" in refusal(*arguments)


def test_an_existing_capture_is_not_touched_without_being_asked(tmp_path: Path) -> None:
    out = make_capture(tmp_path / "capture")
    before = files_of(out)
    line = refusal(*capture_arguments(out))
    assert f"{out} holds a capture" in line and "--overwrite" in line
    assert files_of(out) == before


def test_an_unfinished_capture_is_said_to_be_resumable(tmp_path: Path) -> None:
    out = make_capture(tmp_path / "capture")
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["shards"] = manifest["shards"][:1]
    (out / MANIFEST).write_text(json.dumps(manifest))
    assert "unfinished" in refusal(*capture_arguments(out)) and "--resume" in refusal(*capture_arguments(out))
    for command in (["compress"], ["eval", "distortion"], ["eval", "memory"]):
        line = refusal(*command, out, "--algo", "affine", "--bits", 4)
        assert "1 of 3 windows" in line and "--resume" in line


def test_overwrite_replaces_a_capture_and_leaves_other_files_alone(tmp_path: Path) -> None:
    out = make_capture(tmp_path / "capture", windows=5)
    (out / "notes.md").write_text("mine")
    (out / "window-notes.safetensors").write_text("mine too")
    done(*capture_arguments(out, "--overwrite"))
    assert (out / "notes.md").read_text() == "mine"
    assert (out / "window-notes.safetensors").read_text() == "mine too"
    expected = files_of(make_capture(tmp_path / "other"))
    assert {k: v for k, v in files_of(out).items() if "notes" not in k} == expected


def test_overwrite_does_not_write_over_another_kind_of_folder(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("ten years of work")
    for more in ([], ["--overwrite"], ["--resume"]):
        line = refusal(*capture_arguments(mine, *more))
        assert f"{mine} holds other files (thesis.txt)" in line
    encoded = tmp_path / "encoded"
    done("compress", make_capture(tmp_path / "capture"), "--algo", "affine", "--bits", 4, "--out", encoded)
    before = files_of(encoded)
    for more in ([], ["--overwrite"], ["--resume"]):
        assert str(encoded) in refusal(*capture_arguments(encoded, *more))
    assert files_of(encoded) == before


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("x")
    assert f"{taken} is a file" in refusal(*capture_arguments(taken))


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("x")
    under = taken / "capture"
    line = refusal(*capture_arguments(under))
    assert str(under) in line and "--out" in line
    assert tq("compress", make_capture(tmp_path / "c"), "--out", under).code == 2
    assert str(under) in refusal("compress", tmp_path / "c", "--bits", 4, "--out", under)


def test_a_refused_text_leaves_no_folder_behind(tmp_path: Path) -> None:
    out = tmp_path / "new"
    refusal(*capture_arguments(out, tokens=100_000))
    assert not out.exists()
