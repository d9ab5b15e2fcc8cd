"""Every evaluation's result says which back-end its operations took."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyModelDir
from small_captures import write_capture

from tqcli.capture.store import Capture, open_capture
from tqcli.codecs.spec import parse_codec
from tqcli.compression.plan import CompressionPlan
from tqcli.datasets import Document, Text
from tqcli.errors import InputError
from tqcli.evaluation import perplexity_folder
from tqcli.evaluation.attention import evaluate_attention
from tqcli.evaluation.compress import compress
from tqcli.evaluation.distortion import evaluate_distortion
from tqcli.evaluation.memory import evaluate_memory
from tqcli.evaluation.perplexity import PerplexityRun, run_all
from tqcli.evaluation.perplexity_folder import PerplexityFolder
from tqcli.evaluation.perplexity_result import perplexity_result
from tqcli.kernels.runtime import Use, added, set_backend
from tqcli.models import LoadedModel, load
from tqcli.report.schema import Result

TEXT = Text("words", (Document("words", "a single man, naïve and in possession of 7 good fortunes; " * 60),))
PLAIN = "plain operations were faster at every size"
BY_MLX = "MLX's own operation is what affine stands for"


@pytest.fixture
def named_backend() -> Iterator[Callable[[str | None], None]]:
    yield set_backend
    set_backend(None)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return open_capture(write_capture(tmp_path_factory.mktemp("made") / "capture", tokens=99, last_queries=True))


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: TinyModelDir) -> LoadedModel:
    return load(str(tiny_model_dir("llama", layers=2)))


def plans(*codecs: str) -> list[CompressionPlan]:
    return [CompressionPlan(parse_codec(codec), sinks=2) for codec in codecs]


def new_run(tiny: LoadedModel, *codecs: str, **settings: Any) -> PerplexityRun:
    return PerplexityRun(tiny, TEXT, plans(*codecs), **{"windows": 2, "tokens": 99} | settings)


def reasons(result: Result) -> dict[str, str]:
    """The reason of each operation that had one."""
    assert {use.backend for use in result.backends} == {"mlx"}
    assert len({use.operation for use in result.backends}) == len(result.backends)
    return {use.operation: use.reason for use in result.backends}


@pytest.mark.usefixtures("gpu_left_alone")
def test_measures_of_a_capture_count_their_own_calls(capture: Capture, tmp_path: Path) -> None:
    mse = {"hadamard_quantise": PLAIN, "hadamard_dequantise": PLAIN}
    for _ in range(2):
        result = evaluate_distortion(capture, plans("turboquant-mse@4"))
        assert reasons(result) == mse
        # 2 windows, 2 layers, keys and values; keys are decoded again for their inner products.
        assert [use.calls for use in result.backends] == [12, 8]
    assert reasons(compress(capture, plans("turboquant-mse@4")[0], tmp_path / "encoded")) == mse
    assert reasons(evaluate_memory(capture, plans("turboquant-mse@4"))) == {"hadamard_quantise": PLAIN}
    attention = evaluate_attention(capture, plans("qjl@2 | fp16", "turboquant-prod@3 | affine@4"))
    assert reasons(attention) == mse | {
        "mx.dequantize": BY_MLX,
        "mx.quantize": BY_MLX,
        "prod_scores": PLAIN,
        "qjl_encode": PLAIN,
        "qjl_scores": PLAIN,
    }


@pytest.mark.usefixtures("gpu_left_alone")
def test_what_has_no_kernel_says_so(capture: Capture) -> None:
    found = reasons(evaluate_distortion(capture, plans("turboquant-mse@4,rotation=qr", "qjl@2 | identity")))
    assert found["rotate_quantise"] == found["unrotate_dequantise"]
    assert "no kernel" in found["rotate_quantise"] and "no kernel" in found["unsketch"]


@pytest.mark.usefixtures("gpu_left_alone")
def test_perplexity_tells_why_attention_was_not_fused(tiny: LoadedModel) -> None:
    def attend(*codecs: str, **settings: Any) -> dict[str, int]:
        result = perplexity_result(run_all(new_run(tiny, *codecs, **settings)))
        return {use.reason: use.calls for use in result.backends if use.operation == "attend"}

    uncoded = "no query sees anything coded with loss: mlx-lm's own attention"
    assert attend("identity") == {uncoded: 4}
    assert attend("turboquant-mse@4,center=none") == {"more than 16 query positions": 4}
    # Keys wait for 64 tokens; till then values alone are coded.
    found = attend("turboquant-mse@4", windows=1, chunk=11)
    assert found["keys of which none is coded yet"] > found[PLAIN] > 0


def test_windows_of_several_back_ends_are_told_apart(
    tiny: LoadedModel, named_backend: Callable[[str | None], None], tmp_path: Path
) -> None:
    first, second = new_run(tiny, "turboquant-mse@4"), new_run(tiny, "turboquant-mse@4")
    folder = PerplexityFolder(tmp_path / "run", first)
    folder.begin()
    named_backend("mlx")
    folder.add(next(first.walk()))
    named_backend("auto")
    second.finished |= PerplexityFolder(tmp_path / "run", second).finished()
    whole = perplexity_result(run_all(second)).backends
    parts = [second.finished[window].backends for window in (0, 1)]
    assert {use.reason for use in parts[0]} == {"named by --backend"}
    assert whole == added(parts)
    of_attend = {use.reason: use.calls for use in whole if use.operation == "attend"}
    assert len(of_attend) == 2 and len(set(of_attend.values())) == 1


def test_windows_with_other_kernels_are_another_run(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tiny, "turboquant-mse@4", windows=1)
    folder = PerplexityFolder(tmp_path / "run", run)
    folder.begin()
    run_all(run, folder.add)
    ours = folder.manifest.kernel_backend
    monkeypatch.setattr(perplexity_folder, "preferred", lambda: ("other", "made up"))
    other = PerplexityFolder(tmp_path / "run", new_run(tiny, "turboquant-mse@4", windows=1))
    with pytest.raises(InputError, match=rf"another kernel backend \({ours}, now other\)"):
        other.begin(resume=True)
    assert other.finished() == {}


def test_what_learning_took_is_told_with_the_windows(tiny: LoadedModel) -> None:
    learning = [Use("vector_quantise", "mlx", "made up", 60)]
    run = run_all(new_run(tiny, "fp16", windows=1, learning=learning))
    assert perplexity_result(run).backends == added([learning, run.finished[0].backends])
