"""`tq diff`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from made_runs import TEXT, codec, failure, measure, metric, row, run
from running import done, make_capture, refusal, tq

from tqcli.report.run import RunResult
from tqcli.report.schema import Result


def study(kl: float = 0.1, layers: int = 2, seed: int = 0) -> RunResult:
    rows = [row(layer, kl_mean=metric(kl * (1 + layer))) for layer in range(layers)]
    total = {"kl_mean": metric(kl, 0.9 * kl, 1.1 * kl), "same_top1": metric(0.9, higher_is_better=True)}
    return run(measure("perplexity", codec("mse@4 | affine@4", total, rows)), dataset=TEXT | {"seed": seed})


def write(folder: Path, of: RunResult | Result) -> Path:
    folder.mkdir()
    (folder / "result.json").write_text(of.to_json(), encoding="utf-8")
    return folder


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return write(tmp_path / "before", study())


def test_identical_runs_are_one_line(before: Path) -> None:
    for form in ("terminal", "md"):
        lines = done("diff", before, before / "result.json", "--format", form).out.splitlines()
        assert len(lines) == 1
        assert "no difference: all 4 metrics are the same" in lines[0]


def test_a_regression_is_exit_code_1_and_within_the_tolerance_0(before: Path, tmp_path: Path) -> None:
    after = write(tmp_path / "after", study(0.2))
    outcome = tq("diff", before, after)
    assert outcome.code == 1
    assert outcome.out.startswith("3 of 4 metrics differ: 3 worse\n")
    assert "0.1 (0.09 to 0.11) nats" in outcome.out and "+100.0 %" in outcome.out
    assert "3 worse within the tolerance" in done("diff", before, after, "--tolerance", 1).out
    assert "3 worse by more than 99.5 %" in tq("diff", before, after, "--tolerance", 0.995).out
    assert "3 better" in done("diff", after, before).out
    assert "1 of 1 metrics differ" not in done("diff", before, after, "--metric", "same_*").out


def test_within_the_intervals_there_is_no_difference(before: Path, tmp_path: Path) -> None:
    after = write(tmp_path / "after", study(0.11, layers=0))
    outcome = done("diff", after, before)
    assert outcome.out.startswith("no difference: of 2 metrics 1 are the same, the intervals of the others overlap\n")
    assert "only B has perplexity: mse@4 | affine@4, layer 0; perplexity: mse@4 | affine@4, layer 1" in outcome.out


@pytest.mark.parametrize("form", ["terminal", "md"])
def test_what_only_a_has_is_exit_code_1(before: Path, tmp_path: Path, form: str) -> None:
    after = write(tmp_path / "after", study(0.11, layers=0))
    outcome = tq("diff", before, after, "--format", form)
    assert outcome.code == 1
    assert outcome.out.splitlines()[0].removeprefix("**tq diff**: ") == (
        "nothing that both have is different: of 2 metrics 1 are the same, the intervals of the others overlap; "
        "B lacks 2 of what A has"
    )
    if form == "md":
        return
    assert "only A has perplexity: mse@4 | affine@4, layer 0; perplexity: mse@4 | affine@4, layer 1" in outcome.out


def test_a_value_that_became_none_is_exit_code_1(before: Path, tmp_path: Path) -> None:
    broken = study()
    broken.measures["perplexity"].codecs[0].total["kl_mean"] = metric(None)
    outcome = tq("diff", before, write(tmp_path / "after", broken))
    assert outcome.code == 1
    assert "only A has perplexity: mse@4 | affine@4, total, kl_mean" in outcome.out


def test_failures_of_b_are_listed(before: Path, tmp_path: Path) -> None:
    after = write(tmp_path / "after", study().model_copy(update={"failures": [failure()]}))
    out = done("diff", before, after).out
    assert out.startswith("no difference: all 4 metrics are the same; 1 step of B failed\n")
    assert "failed in B: perplexity of qjl@4: no memory" in out
    assert "- failed in B: perplexity of qjl@4: no memory" in done("diff", before, after, "--format", "md").out


def test_the_json_is_one_document_either_way(before: Path, tmp_path: Path) -> None:
    after = write(tmp_path / "after", study(0.2))
    for words in (["--json"], ["--format", "json"]):
        document = tq("diff", before, after, *words).document
        assert document["kind"] == "diff"
        assert [change["metric"] for change in document["changes"] if change["regression"]] == ["kl_mean"] * 3


def test_markdown_has_totals_in_a_table_and_folds_the_rest(before: Path, tmp_path: Path) -> None:
    after = write(tmp_path / "after", study(0.2, layers=3, seed=1))
    lines = tq("diff", before, after, "--format", "md").out.splitlines()
    assert lines[0] == "**tq diff**: 3 of 4 metrics differ: 3 worse"
    assert "**Not of the same text or windows: values without an interval differ by that alone.**" in lines
    folded = [line.removeprefix("<summary>").removesuffix("</summary>") for line in lines if "<summary>" in line]
    assert folded == ["What else differs between the runs", "Layers that differ: 2", "What was not compared"]
    first_fold = lines.index("<summary>Layers that differ: 2</summary>")
    rows = [line for line in lines[:first_fold] if line.startswith("| **worse**")]
    assert rows == [
        r"| **worse** | perplexity | `mse@4 \| affine@4` | total | `kl_mean` | 0.1 (0.09 to 0.11) nats | "
        "0.2 (0.18 to 0.22) nats | +100.0 % |"
    ]
    assert "- text seed differs: 0 in A, 1 in B" in lines
    assert any(line.startswith("- only B has perplexity: mse@4 &#124; affine@4, layer 2") for line in lines)
    assert lines.count("<details>") == lines.count("</details>") == 3


def test_long_tables_are_cut_and_say_so(before: Path, tmp_path: Path) -> None:
    a, b = (write(tmp_path / name, study(kl, layers=31)) for name, kl in (("a", 0.1), ("b", 0.2)))
    out = tq("diff", a, b).out
    assert "Layers that differ: the 20 worst of 31" in out
    assert out.count(" layer ") == 20


def test_what_tq_eval_printed_is_compared_too(tmp_path: Path) -> None:
    capture = make_capture(tmp_path / "captures" / "tiny")
    files = []
    for bits in (4, 3):
        files.append(tmp_path / f"{bits}.json")
        out = done("eval", "distortion", capture, "--codec", f"turboquant-mse@{bits}", "--json").out
        # As if both were settings of the same codec.
        files[-1].write_text(out.replace("turboquant-mse@3", "turboquant-mse@4"), encoding="utf-8")
    assert done("diff", files[0], files[0]).out.startswith("no difference: all ")
    outcome = tq("diff", *files, "--metric", "relative_mse", "--json")
    assert outcome.code == 1
    totals = [change for change in outcome.document["changes"] if change["where"] == "total"]
    assert totals[0]["better"] is False
    assert totals[0]["relative"] > 1


def test_infinite_values_are_read_back(before: Path, tmp_path: Path) -> None:
    broken = study()
    broken.measures["perplexity"].codecs[0].total["kl_mean"] = metric(math.inf, 0.1, math.inf)
    after = write(tmp_path / "after", broken)
    assert done("diff", after, after).out.startswith("no difference")
    outcome = tq("diff", before, after)
    assert outcome.code == 1
    assert "infinite (0.1 to infinite) nats" in outcome.out


def test_bad_input_is_one_line(before: Path, tmp_path: Path) -> None:
    assert "name a run's folder" in refusal("diff", before, tmp_path / "nowhere")
    assert "no finished run" in refusal("diff", before, tmp_path)
    assert "0.05, not -1" in refusal("diff", before, before, "--tolerance", -1)
    assert "not nan" in refusal("diff", before, before, "--tolerance", "nan")
    assert "called kl_meen" in refusal("diff", before, before, "--metric", "kl_meen")
    for text, words in (("[]", "no `kind`"), ("{", "no JSON"), ("\\xff", "no JSON")):
        path = tmp_path / "broken.json"
        path.write_bytes(text.encode("latin-1"))
        assert words in refusal("diff", path, before)
    document = json.loads(study().to_json())
    for change, words in (({"version": 9}, "version 9"), ({"codecs": 3}, "codecs"), ({"kind": "poem"}, "kind")):
        path.write_text(json.dumps(document | change), encoding="utf-8")
        assert words in refusal("diff", before, path)
    other = write(tmp_path / "other", measure("memory", codec("mse@4", {"ratio": metric(3)})))
    assert "in common" in refusal("diff", before, other)
