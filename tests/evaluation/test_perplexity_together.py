"""A perplexity run whose windows several processes share, rehearsed one after the other in one process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TinyModelDir

from tqcli.codecs.spec import parse_codec
from tqcli.compression.plan import CompressionPlan
from tqcli.datasets import Document, Text
from tqcli.distributed import ALONE, Group
from tqcli.evaluation.perplexity import PerplexityRun
from tqcli.evaluation.perplexity_folder import PerplexityFolder
from tqcli.evaluation.perplexity_result import perplexity_result
from tqcli.evaluation.perplexity_together import begin_together, run_together
from tqcli.kernels.runtime import preferred
from tqcli.models import LoadedModel, load

TEXT = Text("words", (Document("words", "a single man, naïve and in possession of 7 good fortunes; " * 60),))
WINDOWS = 3


class Rehearsal(Group):
    """One process's part: what the others give is known already, or left out."""

    def __init__(self, rank: int, size: int, others: Mapping[int, bytes]) -> None:
        super().__init__()
        self.rank, self.size, self.others = rank, size, others
        self.facts: list[Mapping[str, Any]] = []

    def gather(self, payload: bytes = b"") -> list[bytes]:
        self.gave = payload
        return [self.others.get(rank, payload) for rank in range(self.size)]

    def check_alike(self, facts: Mapping[str, Any]) -> None:
        self.facts.append(facts)


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: TinyModelDir) -> LoadedModel:
    return load(str(tiny_model_dir()))


def new_run(tiny: LoadedModel) -> PerplexityRun:
    plans = [CompressionPlan(parse_codec(codec)) for codec in ("turboquant-mse@4", "fp16")]
    return PerplexityRun(tiny, TEXT, plans, windows=WINDOWS, tokens=63, rechunk=20, per_layer=True)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_process_ends_with_the_scores_of_all(tiny: LoadedModel, size: int) -> None:
    one = run_together(new_run(tiny), ALONE)
    gave: dict[int, bytes] = {}
    for rank in range(1, size):
        group = Rehearsal(rank, size, {})
        part = run_together(new_run(tiny), group)
        assert sorted(part.finished) == list(range(rank, WINDOWS, size))
        gave[rank] = group.gave
    first = run_together(new_run(tiny), Rehearsal(0, size, gave))
    assert (one.processes, first.processes) == (1, size)
    assert sorted(first.finished) == list(range(WINDOWS))
    for window, scores in first.finished.items():
        expected = one.finished[window]
        assert list(scores.scores) == list(expected.scores) and list(scores.readings) == list(expected.readings)
        assert scores.text_bytes == expected.text_bytes
        assert scores.baseline.cache == expected.baseline.cache
        for case, of in scores.scores.items():
            for name in ("nll_exact", "nll_coded", "kl", "delta_p", "same_top1"):
                np.testing.assert_array_equal(getattr(of, name), getattr(expected.scores[case], name), strict=True)
    total, expected_total = (perplexity_result(run).codecs[0].total for run in (first, one))
    assert total["kl_mean"] == expected_total["kl_mean"]
    assert perplexity_result(first).backends == perplexity_result(one).backends != []


def test_what_the_figures_depend_on_is_compared(tiny: LoadedModel, tmp_path: Path) -> None:
    group = Rehearsal(0, 2, {})
    begin_together(PerplexityFolder(tmp_path / "run", new_run(tiny)), group, overwrite=False, resume=False)
    (facts,) = group.facts
    assert facts["model weights sha256"] == tiny.weights_sha256
    assert facts["kernel backend"] == preferred()[0]
    assert (facts["calibration"], facts["dataset tokens"], facts["rechunk"]) == (None, 63, 20)
