"""`tq run`: a study from one file, measured once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from shutil import rmtree
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import pytest
import yaml
from running import done, refusal, tq, workplace
from studies import recipe, result, run, steps_done

from tqcli.evaluation import perplexity
from tqcli.recipes import measuring

MEASURES = ["distortion", "attention", "memory", "perplexity"]


def test_everything_is_measured_and_written(tmp_path: Path) -> None:
    outcome = run(tmp_path)
    assert outcome.code == 0, outcome.err
    found = result(tmp_path)
    assert list(found["measures"]) == MEASURES
    for measure in found["measures"].values():
        assert [codec["codec"] for codec in measure["codecs"]] == ["turboquant-mse@4", "affine@4"]
    written = {path.name for path in (tmp_path / "runs" / "small").iterdir()}
    assert written == {
        *("result.json", "recipe.yaml", "report.html", "report.md", "layers.csv", "codecs.csv", "layers.parquet")
    }
    again = yaml.safe_load((tmp_path / "runs" / "small" / "recipe.yaml").read_text())
    assert again["codecs"] == ["turboquant-mse@4", "affine@4"]
    assert "turboquant-mse@4" in outcome.out


def test_figures_are_those_of_tq_eval(tmp_path: Path) -> None:
    run(tmp_path)
    found, there = result(tmp_path), workplace()
    capture = next(path for path in (tmp_path / "runs" / "cache").iterdir() if path.name.startswith("capture-"))
    options = ["--codec", "turboquant-mse@4", "--sinks", 1, "--json"]
    for measure in ("distortion", "attention"):
        alone = done("eval", measure, capture, *options).document
        assert alone["codecs"][0] == found["measures"][measure]["codecs"][0]
    size = ["--windows", 2, "--tokens", 96, "--recent", 0]
    text = ["--dataset", there / "book.txt", "--out", tmp_path / "p"]
    alone = done("eval", "perplexity", there / "model", *text, *size, *options).document
    assert alone["codecs"][0]["total"]["kl_mean"] == found["measures"]["perplexity"]["codecs"][0]["total"]["kl_mean"]


def test_nothing_is_done_twice_and_an_added_codec_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tmp_path)
    assert steps_done(first)[0] == "capture"
    before = result(tmp_path)
    with monkeypatch.context() as unloadable:
        unloadable.setattr(measuring, "load", lambda *_: pytest.fail("the model was loaded"))
        again = run(tmp_path)
    assert again.code == 0
    assert steps_done(again) == []
    assert result(tmp_path) == before
    more = run(tmp_path, codecs=["turboquant-mse@4", "affine@4", "turboquant-mse@2"])
    assert steps_done(more) == [f"{measure} of turboquant-mse@2" for measure in MEASURES]
    others = {measure: of["codecs"][:2] for measure, of in result(tmp_path)["measures"].items()}
    assert others == {measure: of["codecs"] for measure, of in before["measures"].items()}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seed": 5}, ["capture", *(f"{measure} of affine@4" for measure in MEASURES)]),
        ({"sinks": 2}, [f"{measure} of affine@4" for measure in MEASURES]),
        ({"measures": {"attention": {"top_k": 3}}}, ["attention of affine@4"]),
        ({"description": "other words"}, []),
        ({"capture": {"queries": 4}}, ["capture", *(f"{measure} of affine@4" for measure in MEASURES[:3])]),
    ],
)
def test_what_a_change_touches_is_done_again(tmp_path: Path, changes: dict[str, Any], expected: list[str]) -> None:
    run(tmp_path, codecs=["affine@4"], control=None)
    assert steps_done(run(tmp_path, codecs=["affine@4"], control=None, **changes)) == expected


def test_calibration_is_another_capture_that_codecs_learn_from(tmp_path: Path) -> None:
    other = {"spec": str(workplace() / "long.txt"), "windows": 1, "tokens": 80, "seed": 9}
    outcome = run(tmp_path, calibration=other, codecs=["turboquant-mse@4"], control=None, measures={"distortion": {}})
    # The tiny model's two texts repeat the same sentences: what is measured must not be learned from.
    assert outcome.code == 2
    assert "nothing was measured" in outcome.err


def test_a_codec_that_fails_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    broken = {"codec": "affine@4", "layer_bits": "9:8", "name": "deep"}
    outcome = run(tmp_path, codecs=[broken, "turboquant-mse@4"], control=None)
    assert outcome.code == 2
    failures = result(tmp_path)["failures"]
    assert {failure["codec"] for failure in failures} == {"deep"}
    assert [failure["step"] for failure in failures] == MEASURES
    assert all("layer 9" in failure["error"] for failure in failures)
    assert [codec["codec"] for codec in result(tmp_path)["measures"]["perplexity"]["codecs"]] == ["turboquant-mse@4"]
    assert "deep failed" in outcome.err
    assert "Traceback" not in outcome.err


def test_an_error_of_one_codec_in_the_middle_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = perplexity.PerplexityRun.__init__
    calls: list[int] = []

    def broken(self: Any, loaded: Any, text: Any, plans: Any, **more: Any) -> None:
        calls.append(len(plans))
        if any("affine" in str(plan.codec) for plan in plans) and len(calls) > 2:
            raise RuntimeError("out of memory")
        original(self, loaded, text, plans, **more)

    monkeypatch.setattr(perplexity.PerplexityRun, "__init__", broken)
    outcome = run(tmp_path, measures={"perplexity": {}})
    assert outcome.code == 2
    found = result(tmp_path)
    assert [codec["codec"] for codec in found["measures"]["perplexity"]["codecs"]] == ["turboquant-mse@4"]
    assert [(failure["codec"], failure["error"]) for failure in found["failures"]] == [
        ("affine@4", "RuntimeError: out of memory")
    ]


def test_a_run_that_is_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    run(whole, measures={"perplexity": {}})
    with monkeypatch.context() as cut:
        seen: list[int] = []

        def stop(self: Any, scores: Any) -> None:
            original(self, scores)
            seen.append(scores.window)
            raise KeyboardInterrupt

        from tqcli.evaluation.perplexity_folder import PerplexityFolder

        original = PerplexityFolder.add
        cut.setattr(PerplexityFolder, "add", stop)
        outcome = run(tmp_path, measures={"perplexity": {}})
        assert outcome.code == 130
        assert seen == [0]
    kept = next(path for path in (tmp_path / "runs" / "cache").iterdir() if path.name.startswith("perplexity-"))
    assert (kept / "window-00000.json").is_file()
    assert run(tmp_path, measures={"perplexity": {}}).code == 0
    kl = [result(of)["measures"]["perplexity"]["codecs"][0]["total"]["kl_mean"] for of in (tmp_path, whole)]
    assert kl[0] == kl[1]


@pytest.mark.parametrize("damage", ["missing", "changed", "manifest", "file"])
def test_a_damaged_capture_in_the_cache_is_made_anew(tmp_path: Path, damage: str) -> None:
    run(tmp_path, measures={"distortion": {}})
    before = result(tmp_path)
    cache = tmp_path / "runs" / "cache"
    (capture,) = cache.glob("capture-*")
    shard = capture / "window-00001.safetensors"
    if damage == "missing":
        shard.unlink()
    elif damage == "changed":
        shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    elif damage == "manifest":
        (capture / "manifest.json").write_text("{")
    else:
        rmtree(capture)
        capture.write_text("a file")
    for entry in cache.glob("distortion-*.json"):
        entry.unlink()
    outcome = run(tmp_path, measures={"distortion": {}})
    assert outcome.code == 0, outcome.err
    assert "capture" in steps_done(outcome)
    assert result(tmp_path)["measures"] == before["measures"]


def test_entries_of_the_cache_that_are_not_what_they_are_called_are_measured_again(tmp_path: Path) -> None:
    run(tmp_path, measures={"memory": {}})
    before = result(tmp_path)
    one, other = sorted((tmp_path / "runs" / "cache").glob("memory-*.json"))
    one.write_bytes(other.read_bytes())
    other.write_text("{}")
    again = run(tmp_path, measures={"memory": {}})
    assert sorted(steps_done(again)) == ["memory of affine@4", "memory of turboquant-mse@4"]
    sizes = [[codec["layers"] for codec in of["measures"]["memory"]["codecs"]] for of in (result(tmp_path), before)]
    assert sizes[0] == sizes[1]


def test_two_runs_share_a_cache(tmp_path: Path) -> None:
    file, shared = recipe(tmp_path), ["--cache", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "tqcli", "run", str(file), *shared]
    started = [Popen([*command, "--out", str(tmp_path / f"out{n}")], stdout=DEVNULL, stderr=PIPE) for n in range(3)]
    for process in started:
        _, err = process.communicate()
        assert process.returncode == 0, err.decode()
    found = [json.loads((tmp_path / f"out{n}" / "result.json").read_text())["measures"] for n in range(3)]
    kl = [[codec["total"]["kl_mean"] for codec in of["perplexity"]["codecs"]] for of in found]
    assert kl[0] == kl[1] == kl[2]


def test_floors_are_there_whatever_was_measured_before(tmp_path: Path) -> None:
    measures = {"perplexity": {"rechunk": 32}}
    run(tmp_path, codecs=["affine@4", "identity"], control=None, measures=measures)
    run(tmp_path, codecs=["affine@4"], control=None, measures=measures)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    run(fresh, codecs=["affine@4"], control=None, measures=measures)
    names = [{codec["codec"] for codec in result(of)["measures"]["perplexity"]["codecs"]} for of in (tmp_path, fresh)]
    assert names[0] == names[1] == {"affine@4", "identity", "fp16"}


def test_settings_that_codecs_have_of_their_own_are_told_with_the_codecs(tmp_path: Path) -> None:
    run(tmp_path, codecs=["affine@4", {"codec": "affine@3", "sinks": 8}], control=None, measures={"memory": {}})
    found = result(tmp_path)
    assert found["measures"]["memory"]["settings"]["sinks"] is None
    assert [codec["sinks"] for codec in found["codecs"]] == [1, 8]


@pytest.mark.parametrize(
    ("gate", "code", "verdict"),
    [
        ({"metric": "kl_mean", "max": 1e-9}, 1, "fail"),
        ({"metric": "kl_mean", "max": 10.0}, 0, "pass"),
        ({"metric": "kl_mean", "against": "affine@4", "max": 1.0}, None, None),
    ],
)
def test_gates_decide_the_exit_code(
    tmp_path: Path, gate: dict[str, Any], code: int | None, verdict: str | None
) -> None:
    outcome = run(tmp_path, gates=[gate], measures={"perplexity": {}})
    judged = result(tmp_path)["gates"]
    assert [of["codec"] for of in judged] == ["turboquant-mse@4"]
    if verdict is not None:
        assert (outcome.code, judged[0]["verdict"]) == (code, verdict)
    else:
        assert outcome.code == {"pass": 0, "fail": 1, "inconclusive": 3}[judged[0]["verdict"]]
    assert (tmp_path / "runs" / "small" / "junit.xml").is_file()


def test_a_gate_inside_its_interval_is_inconclusive(tmp_path: Path) -> None:
    run(tmp_path, measures={"perplexity": {}})
    metric = result(tmp_path)["measures"]["perplexity"]["codecs"][0]["total"]["kl_mean"]
    inside = (metric["ci_low"] + metric["ci_high"]) / 2
    outcome = run(tmp_path, measures={"perplexity": {}}, gates=[{"metric": "kl_mean", "max": inside}])
    assert outcome.code == 3
    assert result(tmp_path)["gates"][0]["verdict"] == "inconclusive"


def test_a_stored_run_is_a_baseline(tmp_path: Path) -> None:
    run(tmp_path, "--out", tmp_path / "old")
    gates = [{"metric": "kl_mean", "against": "baseline", "max": 1.0}]
    outcome = run(tmp_path, gates=gates, baseline=str(tmp_path / "old"))
    assert outcome.code in (0, 3), outcome.err
    assert result(tmp_path)["gates"][0]["value"] == 1
    assert "no run" in run(tmp_path, gates=gates, baseline=str(tmp_path / "no run")).err
    assert run(tmp_path, "--baseline", tmp_path / "old", gates=gates).code == outcome.code
    assert result(tmp_path)["gates"][0]["value"] == 1
    assert "would do nothing" in refusal("run", recipe(tmp_path), "--baseline", tmp_path / "old")


def test_a_dry_run_tells_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    plan = run(tmp_path, "--dry-run", "--json").document
    assert plan["to_do"] == 9
    assert plan["seconds"] > 0
    assert plan["capture_bytes"] == pytest.approx(2 * 2 * 64 * 4 * (2 * 96 + 8 * 2))
    assert not (tmp_path / "runs" / "small").exists()
    run(tmp_path)
    assert run(tmp_path, "--dry-run", "--json").document["to_do"] == 0
    assert "0 to do" in run(tmp_path, "--dry-run").out


def test_inspect_tells_what_a_run_and_a_perplexity_run_hold(tmp_path: Path) -> None:
    run(tmp_path, measures={"memory": {}}, gates=[{"metric": "ratio", "min": 100}])
    found = done("inspect", tmp_path / "runs" / "small", "--json").document
    assert (found["kind"], found["measures"], found["gates"]) == ("run", "memory", "1 fail")
    there, kept = workplace(), tmp_path / "kept"
    size = ["--windows", 2, "--tokens", 96, "--codec", "affine@4", "--out", kept]
    done("eval", "perplexity", there / "model", "--dataset", there / "book.txt", *size)
    assert done("inspect", kept, "--json").document["windows"] == "2 of 2"
    (kept / "window-00001.safetensors").write_bytes(b"short")
    assert "window-00001" in refusal("inspect", kept)


def test_github_gets_annotations_and_a_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    gates = [{"metric": "kl_mean", "max": 1e-9}]
    outcome = run(tmp_path, "--ci", "github", gates=gates, measures={"perplexity": {}})
    assert "::error " in outcome.out
    assert "kl_mean" in (tmp_path / "summary.md").read_text()


def test_json_is_the_result(tmp_path: Path) -> None:
    assert run(tmp_path, "--json", measures={"memory": {}}).document == result(tmp_path)


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    there = tmp_path / "runs" / "small"
    there.mkdir(parents=True)
    (there / "thesis.txt").write_text("years of work")
    assert "holds other files (thesis.txt)" in refusal("run", recipe(tmp_path), folder=tmp_path)
    (there / "thesis.txt").rename(there / "result.json")
    assert "not valid JSON" in refusal("run", recipe(tmp_path), folder=tmp_path)
    (there / "result.json").write_text(json.dumps({"kind": "perplexity"}))
    assert "is not of a run" in refusal("run", recipe(tmp_path), folder=tmp_path)


def test_a_model_or_text_that_there_isnt(tmp_path: Path) -> None:
    for changes in ({"model": "smolm2"}, {"dataset": {"spec": "nothing.txt"}}):
        assert refusal("run", recipe(tmp_path, **changes), folder=tmp_path)
    assert tq("run", "smok").code == 2
