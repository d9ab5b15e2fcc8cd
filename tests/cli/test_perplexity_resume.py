"""`tq eval perplexity` keeps its finished windows and can be gone on with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from tempfile import mkdtemp
from typing import Any

import pytest
from running import PROSE, Outcome, capture_arguments, done, files_of, make_capture, refusal, tq, workplace
from tiny_models import write_tiny_model

from tqcli.evaluation import perplexity
from tqcli.storage import MANIFEST

WINDOWS = 3
CODECS = ("--codec", "turboquant-mse@3", "--codec", "affine@4")
TIMES = ("tokens_per_second", "peak_bytes")


def arguments(out: Path, *more: object, model: Path | None = None) -> list[object]:
    there = workplace()
    size = ["--windows", WINDOWS, "--tokens", 96, "--sinks", 2, "--recent", 0]
    text = ["--dataset", there / "book.txt", "--out", out]
    return ["eval", "perplexity", model or there / "model", *text, *size, *CODECS, *more]


def without_times(document: Any) -> Any:
    """A result but for what differs from run to run."""
    if isinstance(document, dict):
        return {key: without_times(value) for key, value in document.items() if key not in TIMES}
    return [without_times(value) for value in document] if isinstance(document, list) else document


def interrupted(
    monkeypatch: pytest.MonkeyPatch, arguments: list[object], windows: int, signal: type[BaseException]
) -> Outcome:
    """Runs a command line that is stopped inside the window after that many."""
    read, left = perplexity.read_window, windows * 3 + 1  # the uncompressed run and two codecs

    def read_or_stop(*of: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise signal
        return read(*of)

    with monkeypatch.context() as patch:
        patch.setattr(perplexity, "read_window", read_or_stop)
        return tq(*arguments)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run. Not to be changed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    done(*arguments(out))
    return out


@pytest.fixture
def finished(whole: Path, tmp_path: Path) -> Path:
    return copytree(whole, tmp_path / "run")


@pytest.fixture
def unfinished(finished: Path) -> Path:
    """One window of three is there."""
    for path in [*finished.glob("window-0000[12].*"), finished / "result.json"]:
        path.unlink()
    return finished


def result_in(folder: Path) -> Any:
    return without_times(json.loads((folder / "result.json").read_text()))


def test_a_run_keeps_its_windows_and_what_it_came_to(tmp_path: Path) -> None:
    outcome = done(*arguments(tmp_path / "run", "--json"))
    names = {f"window-0000{window}.{suffix}" for window in range(WINDOWS) for suffix in ("safetensors", "json")}
    assert set(files_of(tmp_path / "run")) == {MANIFEST, "result.json", *names}
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == outcome.document
    assert {"attend", "hadamard_quantise", "mx.quantize"} <= {use["operation"] for use in outcome.document["backends"]}


def test_left_out_the_folder_is_named_after_the_settings_and_gone_on_with(tmp_path: Path) -> None:
    command = arguments(tmp_path)
    at = command.index("--out")
    bare = [*command[:at], *command[at + 2 :], "--windows", 1]
    first = done(*bare, folder=tmp_path)
    folder = tmp_path / first.out.splitlines()[-1]
    assert folder.parent == tmp_path / "runs" and folder.name.startswith("perplexity-model-book-")
    kept = files_of(folder)
    again = done(*bare, folder=tmp_path)
    assert again.out == first.out and files_of(folder) == kept  # times too: nothing was measured again
    assert "1 of 1 windows are in runs/perplexity-model-book-" in again.err and "--overwrite" in again.err
    other = done(*bare, "--sinks", 1, folder=tmp_path)
    assert other.out.splitlines()[-1] != first.out.splitlines()[-1]
    assert files_of(folder) == kept


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("windows", [1, 2])
def test_a_stopped_run_ends_with_the_figures_of_an_uninterrupted_one(
    windows: int, stop: type[BaseException], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    if stop is KeyboardInterrupt:
        outcome = interrupted(monkeypatch, arguments(out), windows, stop)
        assert outcome.code == 130 and f"{windows} of 3 windows are finished" in outcome.out
        said, last = outcome.err.splitlines()[-2:]
        assert last == "tq: interrupted"
        assert f"{windows} of 3 windows" in said and str(out) in said and "--resume" in said
    else:
        outcome = interrupted(monkeypatch, arguments(out), windows, stop)
        assert outcome.code == 2 and "internal error: RuntimeError" in outcome.err
    assert not (out / "result.json").exists()
    kept = files_of(out)
    assert len([name for name in kept if name.endswith(".safetensors")]) == windows
    document = done(*arguments(out, "--resume", "--json")).document
    assert without_times(document) == result_in(whole) == result_in(out)
    assert kept.items() <= files_of(out).items()


@pytest.mark.parametrize(
    "more",
    [
        ("--per-layer", "--rechunk", 40),
        ("--stride", 7, "--chunk", 31),
        ("--dtype", "bfloat16", "--cache-dtype", "float16"),
    ],
)
def test_windows_read_back_from_disk_give_the_same_figures(more: tuple[object, ...], tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = done(*arguments(out, *more, "--json")).document
    again = done(*arguments(out, *more, "--json", "--resume")).document
    assert again == first  # times too: they are those of the first run


def test_nothing_finished_is_one_line_and_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = interrupted(monkeypatch, arguments(tmp_path / "run"), 0, KeyboardInterrupt)
    assert outcome.code == 130
    assert outcome.err.splitlines()[-1] == "tq: interrupted"
    done(*arguments(tmp_path / "run", "--windows", 1))  # neither --resume nor --overwrite, and other settings


def test_more_windows_are_added_to_those_that_are_there(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done(*arguments(out, "--windows", 1))
    before = files_of(out)["window-00000.safetensors"]
    document = done(*arguments(out, "--resume", "--json")).document
    assert without_times(document) == result_in(whole) == result_in(out)
    assert files_of(out)["window-00000.safetensors"] == before
    assert "another dataset windows (3, now 2)" in refusal(*arguments(out, "--resume", "--windows", 2))


def test_what_is_there_is_not_touched_without_being_asked(finished: Path) -> None:
    before = files_of(finished)
    line = refusal(*arguments(finished))
    assert f"{finished} holds a perplexity run" in line and "--overwrite" in line and "--resume" in line
    assert files_of(finished) == before


def test_an_unfinished_run_is_said_to_be_resumable(unfinished: Path) -> None:
    before = files_of(unfinished)
    line = refusal(*arguments(unfinished))
    assert "an unfinished perplexity run (1 of 3 windows)" in line and "--overwrite" in line and "--resume" in line
    assert files_of(unfinished) == before
    assert "use one of them" in refusal(*arguments(unfinished, "--resume", "--overwrite"))


def test_resume_without_a_run_begins_one(whole: Path, tmp_path: Path) -> None:
    done(*arguments(tmp_path / "new", "--resume"))
    assert result_in(tmp_path / "new") == result_in(whole)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--tokens", 128), "dataset tokens (96, now 128)"),
        (("--seed", 1), "dataset seed (0, now 1)"),
        (("--sinks", 3), "sinks (2, now 3)"),
        (("--recent", 3), "recent (0, now 3)"),
        (("--chunk", 32), "chunk (256, now 32)"),
        (("--rechunk", 32), "rechunk (None, now 32)"),
        (("--stride", 5), "stride (95, now 5)"),
        (("--per-layer",), "per layer (False, now True)"),
        (("--cache-dtype", "float16"), "cache dtype (float32, now float16)"),
        (("--dtype", "bfloat16"), "model compute dtype (float32, now bfloat16)"),
        (("--codec", "qjl@4"), "codecs (['turboquant-mse@3', 'affine@4'], now ['turboquant-mse@3', 'affine@4', 'qjl@4"),
        (("--seed", 1, "--windows", 4), "dataset seed (0, now 1)"),
    ],
)
def test_resume_with_another_option_is_refused_naming_it(unfinished: Path, more: tuple[Any, ...], named: str) -> None:
    before = files_of(unfinished)
    line = refusal(*arguments(unfinished, "--resume", *more))
    assert str(unfinished) in line and "--overwrite" in line
    assert f"another {named}" in line
    assert files_of(unfinished) == before


def test_resume_with_another_text_model_or_calibration_is_refused(unfinished: Path, tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text(PROSE * 60 + "The end.", encoding="utf-8")
    assert "text sha256" in refusal(*arguments(unfinished, "--resume", "--dataset", text))
    model = write_tiny_model(tmp_path / "model", layers=2, heads=2, kv_heads=1, head_dim=64, seed=1)
    assert "weights sha256" in refusal(*arguments(unfinished, "--resume", model=model))
    learned_from = [
        done(*capture_arguments(tmp_path / f"calibration{seed}", "--dataset", "sample", "--seed", seed)) and seed
        for seed in (1, 2)
    ]
    calibrated = [["--calibration", tmp_path / f"calibration{seed}"] for seed in learned_from]
    assert "another calibration (None, now one)" in refusal(*arguments(unfinished, "--resume", *calibrated[0]))
    done(*arguments(tmp_path / "calibrated", "--windows", 1, *calibrated[0]))
    line = refusal(*arguments(tmp_path / "calibrated", "--resume", "--windows", 1, *calibrated[1]))
    assert "another calibration seed (1, now 2)" in line
    assert "calibration (one, now None)" in refusal(*arguments(tmp_path / "calibrated", "--resume", "--windows", 1))


def test_the_same_files_in_another_place_are_the_same_run(finished: Path, tmp_path: Path) -> None:
    text, model = tmp_path / "book.txt", copytree(workplace() / "model", tmp_path / "renamed")
    text.write_bytes((workplace() / "book.txt").read_bytes())
    outcome = done(*arguments(finished, "--resume", "--dataset", text, model=model))
    assert "measuring" not in outcome.err


def damages(folder: Path) -> Iterator[str]:
    """Damages the second window in one way after the other, and puts it right again."""
    for path in sorted(folder.glob("window-00001.*")):
        data = path.read_bytes()
        half = len(data) // 2
        for broken in (b"", data[:-1], data[:half], data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]):
            path.write_bytes(broken)
            yield f"{path.name}, {len(broken)} bytes"
            path.write_bytes(data)


def test_a_damaged_window_is_named_and_measured_again(finished: Path, whole: Path) -> None:
    kept = files_of(finished)["window-00002.safetensors"]
    for damage in damages(finished):
        outcome = done(*arguments(finished, "--resume", "--json"))
        assert "window-00001" in outcome.err and "measuring window 1 again" in outcome.err, damage
        assert without_times(outcome.document) == result_in(whole), damage
        assert files_of(finished)["window-00002.safetensors"] == kept


def test_a_window_of_another_run_is_not_taken_for_one_of_this(finished: Path, whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    done(*arguments(other, "--chunk", 32))
    for stranger in (other / "window-00001", finished / "window-00002"):
        for suffix in (".json", ".safetensors"):
            into = (finished / "window-00001").with_suffix(suffix)
            into.write_bytes(stranger.with_suffix(suffix).read_bytes())
        outcome = done(*arguments(finished, "--resume", "--json"))
        assert "measuring window 1 again" in outcome.err
        assert without_times(outcome.document) == result_in(whole)


def test_a_write_that_was_cut_short_is_no_window(unfinished: Path, whole: Path) -> None:
    shard = (whole / "window-00001.safetensors").read_bytes()
    (unfinished / ".partial-window-00001.safetensors").write_bytes(shard[:100])
    (unfinished / "window-00002.safetensors").write_bytes(shard)  # its .json wasn't written any more
    done(*arguments(unfinished, "--resume"))
    assert result_in(unfinished) == result_in(whole)


def test_a_broken_manifest_is_refused(finished: Path) -> None:
    for text in ("{", "[]", '{"format": "tq-perplexity", "version": 1}', '{"format": "tq-perplexity", "version": 2}'):
        (finished / MANIFEST).write_text(text)
        before = files_of(finished)
        assert MANIFEST in refusal(*arguments(finished, "--resume"))
        assert MANIFEST in refusal(*arguments(finished))
        assert files_of(finished) == before


def test_overwrite_replaces_a_run_and_leaves_other_files_alone(finished: Path) -> None:
    (finished / "notes.md").write_text("mine")
    (finished / "window-notes.json").write_text("mine too")
    done(*arguments(finished, "--overwrite", "--windows", 1, "--seed", 3))
    own = {MANIFEST, "result.json", "window-00000.json", "window-00000.safetensors"}
    assert set(files_of(finished)) == {*own, "notes.md", "window-notes.json"}
    assert (finished / "notes.md").read_text() == "mine"
    assert json.loads((finished / "result.json").read_text())["dataset"]["seed"] == 3


@pytest.mark.parametrize("name", ["thesis.txt", "result.json", "window-00000.json", "window-00000.safetensors"])
def test_another_kind_of_folder_is_not_written_to(name: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / name).write_text("ten years of work")
    for more in ((), ("--overwrite",), ("--resume",)):
        assert f"{mine} holds other files ({name})" in refusal(*arguments(mine, *more))
    assert files_of(mine).keys() == {name}
    assert (mine / name).read_text() == "ten years of work"


def test_a_capture_and_a_run_are_not_taken_for_each_other(finished: Path, tmp_path: Path) -> None:
    capture = make_capture(tmp_path / "capture")
    before = files_of(capture), files_of(finished)
    for more in ((), ("--overwrite",), ("--resume",)):
        assert str(capture) in refusal(*arguments(capture, *more))
        assert str(finished) in refusal(*capture_arguments(finished, *more))
    assert (files_of(capture), files_of(finished)) == before
    taken = tmp_path / "taken"
    taken.write_text("x")
    assert f"{taken} is a file" in refusal(*arguments(taken))
    assert str(taken / "run") in refusal(*arguments(taken / "run"))


def test_a_refused_run_leaves_no_folder_behind(tmp_path: Path) -> None:
    refusal(*arguments(tmp_path / "new", "--tokens", 100_000))
    assert not (tmp_path / "new").exists()


LONG = ("--windows", 40, "--tokens", 256)
"""Long enough that a busy machine doesn't come to the end before the signal does."""


def long_run(out: Path, *more: object) -> list[object]:
    return arguments(out, "--dataset", workplace() / "long.txt", *LONG, *more)


@pytest.fixture(scope="module")
def long_result() -> Any:
    out = Path(mkdtemp(prefix="tq-cli-")) / "run"
    done(*long_run(out))
    return result_in(out)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_signal_loses_no_finished_window(name: str, tmp_path: Path, long_result: Any) -> None:
    out, number = tmp_path / "run", signal.Signals[name]
    process = subprocess.Popen(
        [sys.executable, "-m", "tqcli", *map(str, long_run(out, "--json"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background has Ctrl-C ignored, which is handed down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until = time.monotonic() + 60
    while not (out / "window-00001.json").is_file():
        assert process.poll() is None and time.monotonic() < until, "the run ended or hangs"
        time.sleep(0.002)
    process.send_signal(number)
    printed, err = process.communicate(timeout=60)
    there = len(list(out.glob("window-*.json")))
    assert 2 <= there < 40, "stopped too late to test anything"
    if number == signal.SIGINT:
        assert process.returncode == 130, err
        assert json.loads(printed)["settings"]["windows"] == there
        assert f"{there} of 40 windows" in err.splitlines()[-2] and "--resume" in err
        assert "it/s" not in err and "case/s" not in err  # no bars in a log
    else:
        assert process.returncode == -number
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("window-*.json")}
    done(*long_run(out, "--resume"))
    assert result_in(out) == long_result
    assert all((out / file).stat().st_mtime_ns == at for file, at in kept.items())
