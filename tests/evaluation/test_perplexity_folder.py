"""A perplexity run's windows on disk: written by several, read back to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyModelDir

from tqcli.codecs.spec import parse_codec
from tqcli.compression.plan import CompressionPlan
from tqcli.datasets import Document, Text
from tqcli.errors import InputError
from tqcli.evaluation.perplexity import Case, PerplexityRun, run_all
from tqcli.evaluation.perplexity_folder import PerplexityFolder
from tqcli.evaluation.perplexity_result import perplexity_result
from tqcli.models import LoadedModel, load

# isort: split
import numpy as np

TEXT = Text("words", (Document("words", "a single man, naïve and in possession of 7 good fortunes; " * 60),))


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: TinyModelDir) -> LoadedModel:
    return load(str(tiny_model_dir("qwen2", heads=14, kv_heads=2, head_dim=80, layers=2)), dtype="bfloat16")


def new_run(loaded: LoadedModel, layer_bits: Any = None, **settings: Any) -> PerplexityRun:
    plans = [
        CompressionPlan(parse_codec("turboquant-mse@3,center=none"), layer_bits or {}),
        CompressionPlan(parse_codec("fp16")),
    ]
    return PerplexityRun(loaded, TEXT, plans, **{"windows": 4, "tokens": 63, "chunk": 20} | settings)


def figures(run: PerplexityRun) -> list[float | None]:
    codec = perplexity_result(run).codecs[0]
    rows = [codec.total, *[row.metrics for row in codec.layers]]
    return [of.value for row in rows for name, of in row.items() if name not in ("tokens_per_second", "peak_bytes")]


def test_windows_of_several_processes_come_to_what_one_measures(tiny: LoadedModel, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"per_layer": [1], "rechunk": 7, "stride": 50}
    first, second = new_run(tiny, **settings), new_run(tiny, **settings)
    folders = [PerplexityFolder(tmp_path / "run", run) for run in (first, second)]
    folders[0].begin()
    walks = [first.walk([3, 1]), second.walk([0, 2])]
    for _ in range(2):
        for folder, walk in zip(folders, walks, strict=True):
            folder.add(next(walk))
    together, alone = new_run(tiny, **settings), run_all(new_run(tiny, **settings))
    together.finished |= PerplexityFolder(tmp_path / "run", together).finished()
    assert list(together.finished) == [0, 1, 2, 3]
    assert figures(together) == figures(alone)
    for window, scores in (first.finished | second.finished).items():
        read = together.finished[window]
        assert (read.text_bytes, read.baseline, read.readings) == (scores.text_bytes, scores.baseline, scores.readings)
        assert read.backends == scores.backends != []
    assert perplexity_result(together).backends == perplexity_result(alone).backends


def test_what_is_not_finite_comes_back_as_it_was(tiny: LoadedModel, tmp_path: Path) -> None:
    run = new_run(tiny, windows=1)
    (window,) = run.walk()
    broken = window.scores[Case(0)]
    broken.kl[:3] = np.inf
    broken.nll_coded[0], broken.delta_p[1] = np.inf, -0.0
    folder = PerplexityFolder(tmp_path / "run", run)
    folder.begin()
    folder.add(replace(window, scores=window.scores | {Case(0): broken}))
    read = folder.finished()[0].scores[Case(0)]
    for name, expected in vars(broken).items():
        assert getattr(read, name).tobytes() == expected.tobytes(), name


def test_a_window_that_was_not_written_yet_is_written_in_the_end(tiny: LoadedModel, tmp_path: Path) -> None:
    run = new_run(tiny, windows=2)
    folder = PerplexityFolder(tmp_path / "run", run)
    folder.begin()
    list(run.walk())
    folder.add(run.finished[1])
    written = (tmp_path / "run" / "window-00001.json").stat().st_mtime_ns
    folder.add_missing()
    assert sorted(PerplexityFolder(tmp_path / "run", run).finished()) == [0, 1]
    assert (tmp_path / "run" / "window-00001.json").stat().st_mtime_ns == written


def test_other_bits_of_a_layer_are_another_run(tiny: LoadedModel, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"layer_bits": {0: (4, None)}, "windows": 1}
    first = new_run(tiny, **settings)
    folder = PerplexityFolder(tmp_path / "run", first)
    folder.begin()
    run_all(first, folder.add)
    again = PerplexityFolder(tmp_path / "run", new_run(tiny, **settings))
    again.begin(resume=True)
    assert list(again.finished()) == [0]
    with pytest.raises(InputError, match="another layer bits"):
        PerplexityFolder(tmp_path / "run", new_run(tiny, windows=1)).begin(resume=True)
    with pytest.raises(InputError, match="another per layer"):
        PerplexityFolder(tmp_path / "run", new_run(tiny, **settings, per_layer=[0])).begin(resume=True)
