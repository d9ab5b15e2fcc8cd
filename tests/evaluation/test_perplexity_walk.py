"""Perplexity through caches, against the plain forward pass of the same model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from conftest import TinyModelDir

from tqcli.codecs.spec import parse_codec
from tqcli.compression.plan import CompressionPlan
from tqcli.datasets import Document, Text, load_text
from tqcli.errors import InputError
from tqcli.evaluation.head import OutputHead
from tqcli.evaluation.perplexity import Case, PerplexityRun, read_window
from tqcli.evaluation.perplexity_result import evaluate_perplexity, perplexity_result
from tqcli.models import LoadedModel, load
from tqcli.report.schema import SkippedTensor

# isort: split
import mlx.core as mx
import mlx.nn as nn
import numpy as np

TEXT = Text("words", (Document("words", "a single man, naïve and in possession of 7 good fortunes; " * 60),))
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-untied": {"tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2", "key_bias_std": 5.0},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": False},
    "gemma": {"model_type": "gemma", "max_position_embeddings": 256},
    "gemma3": {"model_type": "gemma3_text", "layers": 4},
    "gemma2": {"model_type": "gemma2", "final_logit_softcapping": 2.0},
    "cohere": {"model_type": "cohere", "logit_scale": 0.3, "layer_norm_eps": 1e-5},
}


class Rounded:
    """Stands in for a prompt cache of coded entries: mlx-lm's own, whose keys are rounded to a step."""

    def __init__(self, model: Any, step: float = 0.0, coded: int = 1) -> None:
        self.model, self.step, self.coded = model, step, coded
        self.made: list[tuple[int, int | None]] = []

    def make(self, plan: int, only: int | None = None) -> list[Any]:
        from mlx_lm.models.cache import make_prompt_cache

        self.made.append((plan, only))
        cache = list(make_prompt_cache(self.model))
        for layer, entry in enumerate(cache):
            if self.step and only in (None, layer):
                self._round(entry)
        return cache

    def _round(self, entry: Any) -> None:
        update, step = entry.update_and_fetch, self.step
        entry.update_and_fetch = lambda keys, values: update(mx.round(keys / step) * step, values)

    def reading(self) -> AbstractContextManager[None]:
        return nullcontext()

    def layers(self, plan: int) -> list[int]:
        return list(range(len(self.model.layers)))

    def skipped(self, plan: int) -> list[SkippedTensor]:
        return []

    def coded_tokens(self, cache: Sequence[Any]) -> tuple[int, int]:
        return self.coded, self.coded


def plans(*codecs: str) -> list[CompressionPlan]:
    return [CompressionPlan(parse_codec(codec)) for codec in codecs]


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: TinyModelDir) -> LoadedModel:
    return load(str(tiny_model_dir("llama", layers=3)), dtype="float32")


def exact_nll(model: Any, ids: np.ndarray, scored: int) -> np.ndarray:
    """-log of the probability of the last `scored` tokens, from one forward pass without a cache."""
    logits = np.array(model(mx.array(ids)[None])[0].astype(mx.float32), dtype=np.float64)[:-1]
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -log_p[np.arange(len(ids) - 1), ids[1:]][len(ids) - 1 - scored :]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hidden_states_give_the_models_own_logits(name: str, dtype: str, tiny_model_dir: TinyModelDir) -> None:
    from mlx_lm.models.cache import make_prompt_cache

    settings = {"model_type": "llama"} | MODELS[name]
    model = load(str(tiny_model_dir(**settings)), dtype=dtype).model
    head = OutputHead.find(model, range(1, 9))
    assert (head.keeps, head.name) == ("hidden states", "model")
    ids = mx.array(np.random.default_rng(0).integers(0, 280, 12))[None]
    expected = model(ids, cache=make_prompt_cache(model))[0].astype(mx.float32)
    hidden = head.hidden(ids, make_prompt_cache(model))
    assert hidden.shape == (12, 64)
    assert mx.array_equal(head.logits(hidden), expected).item()


def test_the_model_works_as_before_after_it_was_split(tiny: LoadedModel) -> None:
    body = type(tiny.model.model)
    before, ids = body.__call__, mx.array([[5, 6, 7]])
    expected = tiny.model(ids)
    head = OutputHead.find(tiny.model, [1, 2, 3])
    head.logits(head.hidden(ids, None))
    assert body.__call__ is before
    assert mx.array_equal(tiny.model(ids), expected).item()


def test_another_model_of_the_same_class_is_not_answered_for(tiny: LoadedModel, tiny_model_dir: TinyModelDir) -> None:
    other = load(str(tiny_model_dir("llama", seed=9)), dtype="float32").model
    ids = mx.array([[5, 6, 7]])
    expected = other(ids)
    seen = []
    original = type(tiny.model).__call__

    class Nested(type(tiny.model)):  # type: ignore[misc]
        def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
            seen.append(other(ids))
            result: mx.array = original(self, inputs, cache)
            return result

    model = tiny.model
    model.__class__ = Nested
    try:
        OutputHead.find(model, [1, 2, 3])
    finally:
        model.__class__ = Nested.__mro__[1]
    assert seen and all(mx.array_equal(logits, expected).item() for logits in seen)


def test_logits_are_kept_where_a_model_can_not_be_split(tiny: LoadedModel) -> None:
    """A model that does to its logits what depends on the text can't have them made of hidden states alone."""
    original = type(tiny.model).__call__

    class Biased(type(tiny.model)):  # type: ignore[misc]
        def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
            result: mx.array = original(self, inputs, cache)
            return result + inputs[..., None]

    model = tiny.model
    model.__class__ = Biased
    try:
        head = OutputHead.find(model, [1, 2, 3])
        ids = mx.array([[5, 6, 7]])
        assert (head.keeps, head.name) == ("logits", "")
        assert mx.array_equal(head.logits(head.hidden(ids, None)), model(ids)[0]).item()
        result = evaluate_perplexity(tiny, TEXT, plans("fp16"), windows=2, tokens=40, caches=Rounded(model))
        assert result.settings["kept"] == "logits"
        assert any("can't be split" in note for note in result.notes)
        assert result.codecs[0].total["kl_mean"].value == 0
    finally:
        model.__class__ = Biased.__mro__[1]


def test_perplexity_is_that_of_one_forward_pass_without_a_cache(tiny: LoadedModel) -> None:
    run = PerplexityRun(tiny, TEXT, plans("fp16"), windows=3, tokens=65, chunk=16, caches=Rounded(tiny.model))
    list(run.walk())
    result = perplexity_result(run)
    nll = np.concatenate([exact_nll(tiny.model, ids, 64) for ids in run.drawn.ids])
    assert result.settings["scored_tokens"] == 3 * 64 == len(nll)
    assert result.baseline["ppl"].value == pytest.approx(np.exp(nll.mean()), rel=1e-6)
    bits = nll.sum() / np.log(2) / sum(run.drawn.text_bytes)
    assert result.baseline["bits_per_byte"].value == pytest.approx(bits, rel=1e-6)
    total = result.codecs[0].total
    assert total["ppl"].value == total["ppl_base"].value == result.baseline["ppl"].value
    assert (total["kl_mean"].value, total["same_top1"].value, total["ppl_delta_percent"].value) == (0, 1, 0)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_steps_of_any_size_agree(chunk: int, tiny: LoadedModel) -> None:
    run = PerplexityRun(tiny, TEXT, plans("fp16"), windows=1, tokens=80, chunk=chunk, caches=Rounded(tiny.model))
    (window,) = run.walk()
    expected = exact_nll(tiny.model, run.drawn.ids[0], 79)
    np.testing.assert_allclose(window.scores[Case(0)].nll_exact, expected, atol=1e-6 * expected.max())


@pytest.mark.parametrize("stride", [1, 20, 39])
@pytest.mark.parametrize("bos", [False, True])
def test_a_stride_scores_the_last_tokens_and_counts_their_bytes(
    stride: int, bos: bool, tiny_model_dir: TinyModelDir
) -> None:
    loaded = load(str(tiny_model_dir("llama", bos=bos)), dtype="float32")
    settings = {"windows": 2, "tokens": 40, "chunk": 7, "caches": Rounded(loaded.model)}
    run = PerplexityRun(loaded, TEXT, plans("fp16"), stride=stride, **settings)
    for index, window in enumerate(run.walk()):
        ids = run.drawn.ids[index]
        expected = exact_nll(loaded.model, ids, stride)
        np.testing.assert_allclose(window.scores[Case(0)].nll_exact, expected, rtol=1e-5, atol=1e-5)
        if stride == 39:
            assert window.text_bytes == run.drawn.text_bytes[index]
        else:
            text = loaded.tokenizer.decode(ids[-stride:].tolist()).encode()
            # A byte of a cut character shows as U+FFFD, of 3 bytes.
            assert abs(window.text_bytes - len(text)) <= 2
    assert perplexity_result(run).settings["scored_tokens"] == 2 * stride


def test_layers_alone_and_together_and_rechunked(tiny: LoadedModel) -> None:
    caches = Rounded(tiny.model, step=0.5)
    result = evaluate_perplexity(
        tiny, TEXT, plans("fp16"), windows=4, tokens=50, chunk=25, rechunk=10, per_layer=True, caches=caches
    )
    codec = result.codecs[0]
    whole = codec.total["kl_mean"].value
    assert whole is not None and whole > 0
    assert [row.layer for row in codec.layers] == [0, 1, 2]
    alone = [row.metrics["kl_mean"].value for row in codec.layers]
    assert all(kl is not None and 0 < kl < 3 * whole for kl in alone)
    assert len(set(alone)) == 3
    assert caches.made.count((0, None)) == 2 * 4  # rechunked too
    assert caches.made.count((0, 1)) == 4
    floor = result.baseline["kl_mean_rechunked"].value
    assert floor is not None and floor < 1e-9
    assert codec.total["kl_mean_rechunked"].value is not None
    low, high = codec.total["kl_mean"].ci_low, codec.total["kl_mean"].ci_high
    assert low is not None and high is not None and low < whole < high


def test_a_layer_is_chosen_by_number(tiny: LoadedModel) -> None:
    settings: dict[str, Any] = {"windows": 1, "tokens": 30, "caches": Rounded(tiny.model)}
    run = PerplexityRun(tiny, TEXT, plans("fp16"), per_layer=[2], **settings)
    assert run.cases == [Case(0), Case(0, 2)]
    with pytest.raises(InputError, match="doesn't compress layer 3"):
        PerplexityRun(tiny, TEXT, plans("fp16"), per_layer=[3], **settings)


def test_many_codecs_are_scored_in_groups_as_one_alone(tiny: LoadedModel) -> None:
    settings: dict[str, Any] = {"windows": 1, "tokens": 40, "caches": Rounded(tiny.model, step=0.25)}
    many = evaluate_perplexity(tiny, TEXT, plans(*["fp16"] * 9), **settings)
    one = evaluate_perplexity(tiny, TEXT, plans("fp16"), **settings)
    expected = one.codecs[0].total["kl_mean"].value
    assert [codec.total["kl_mean"].value for codec in many.codecs] == pytest.approx([expected] * 9, rel=1e-6)


def test_a_stopped_run_keeps_its_finished_windows_and_goes_on(tiny: LoadedModel) -> None:
    def run() -> PerplexityRun:
        return PerplexityRun(tiny, TEXT, plans("fp16"), windows=3, tokens=40, caches=Rounded(tiny.model, step=0.25))

    stopped = run()
    cases = iter([None, KeyboardInterrupt()])

    def stop() -> None:
        if (error := next(cases)) is not None:
            raise error

    with pytest.raises(KeyboardInterrupt):
        list(stopped.walk(on_case=stop))
    assert list(stopped.finished) == [0]
    partial = perplexity_result(stopped)
    assert partial.settings["windows"] == 1
    assert "1 of 3 windows are finished" in partial.notes
    resumed, whole = run(), run()
    resumed.finished |= stopped.finished
    assert [window.window for window in resumed.walk()] == [1, 2]
    list(whole.walk([2, 1, 0]))  # in any order, as by several processes
    names = ("ppl", "kl_mean", "kl_p99", "rms_delta_p")
    figures = [[perplexity_result(r).codecs[0].total[name] for name in names] for r in (resumed, whole)]
    assert figures[0] == figures[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk": 0}, "--chunk must be 1 or more, not 0"),
        ({"rechunk": 0}, "--rechunk must be 1 or more, not 0"),
        ({"rechunk": 50, "chunk": 40}, "--rechunk 50 makes the same steps of 40 tokens as --chunk 40"),
        ({"stride": 0}, "--stride must be from 1 to 39 for windows of 40 tokens, not 0"),
        ({"stride": 40}, "--stride must be from 1 to 39"),
        ({"windows": 0}, "--windows must be 1 or more, not 0"),
    ],
)
def test_values_that_can_not_be_end_in_one_line(settings: dict[str, Any], message: str, tiny: LoadedModel) -> None:
    with pytest.raises(InputError, match=message):
        PerplexityRun(tiny, TEXT, plans("fp16"), **{"tokens": 40, "caches": Rounded(tiny.model)} | settings)


def test_a_run_that_compressed_nothing_fails(tiny: LoadedModel) -> None:
    with pytest.raises(InputError, match="fp16 compressed nothing: windows of 40 tokens"):
        evaluate_perplexity(tiny, TEXT, plans("fp16"), windows=1, tokens=40, caches=Rounded(tiny.model, coded=0))


def test_no_finished_window_is_nothing_to_report(tiny: LoadedModel) -> None:
    run = PerplexityRun(tiny, TEXT, plans("fp16"), windows=1, tokens=40, caches=Rounded(tiny.model))
    with pytest.raises(InputError, match="not one window is finished"):
        perplexity_result(run)


def test_sizes_and_speed_are_reported(tiny: LoadedModel) -> None:
    result = evaluate_perplexity(tiny, TEXT, plans("fp16"), windows=2, tokens=40, caches=Rounded(tiny.model))
    total = result.codecs[0].total
    assert total["bytes_fp16"].value == 3 * 2 * 40 * 2 * 16 * 2  # layers, tensors, tokens, heads, head_dim, bytes
    assert total["bytes_resident"].value == 3 * 2 * 256 * 2 * 16 * 4  # mlx-lm's room for 256 tokens, in float32
    for metrics in (total, result.baseline):
        assert (metrics["tokens_per_second"].value or 0) > 0
        assert (metrics["peak_bytes"].value or 0) > 0
    assert type(result).model_validate_json(result.to_json()) == result


def test_a_coded_run_takes_less_memory_at_its_peak_than_one_in_float16(tiny_model_dir: TinyModelDir) -> None:
    loaded = load(str(tiny_model_dir("llama", layers=6, head_dim=64)), dtype="float32")
    codecs = ("fp16", "turboquant-mse@4", "turboquant-mse@3", "turboquant-prod@4", "qjl@4", "affine@4")
    of = [CompressionPlan(parse_codec(codec), sinks=4, recent=32) for codec in codecs]
    text = Text("words", (Document("words", TEXT.documents[0].text * 3),))
    window = next(PerplexityRun(loaded, text, of, windows=1, tokens=2048, stride=16).walk())
    fp16, *coded = (window.readings[Case(index)].peak_bytes for index in range(len(codecs)))
    assert max(coded) < 0.8 * fp16
    assert fp16 < window.baseline.peak_bytes


def test_the_real_caches_leave_identity_untouched_and_cost_a_codec_something(tiny_model_dir: TinyModelDir) -> None:
    pytest.importorskip("tqcli.cache")
    loaded = load(str(tiny_model_dir("llama", head_dim=32, kv_heads=1)), dtype="float32")
    coded = plans("identity", "fp16", "turboquant-mse@4,center=none", "turboquant-mse@2,center=none")
    result = evaluate_perplexity(loaded, TEXT, coded, windows=3, tokens=96, chunk=32)
    kl = [codec.total["kl_mean"].value for codec in result.codecs]
    assert kl[0] == 0
    assert all(value is not None for value in kl)
    assert sorted(kl) == kl  # type: ignore[type-var]
    assert result.codecs[0].total["same_top1"].value == 1
    assert (result.codecs[1].total["kl_mean"].value or 0) < 1e-6
    sizes = [codec.total["bytes_resident"].value or 0 for codec in result.codecs]
    assert sizes[3] < sizes[2] < sizes[1] < sizes[0]


def test_smollm2_has_the_perplexity_of_its_full_forward_pass(smollm2: LoadedModel) -> None:
    settings: dict[str, Any] = {"windows": 2, "tokens": 256, "chunk": 128, "caches": Rounded(smollm2.model)}
    run = PerplexityRun(smollm2, load_text("sample"), plans("fp16"), **settings)
    list(run.walk())
    nll = np.concatenate([exact_nll(smollm2.model, ids, 255) for ids in run.drawn.ids])
    baseline = perplexity_result(run).baseline
    assert baseline["ppl"].value == pytest.approx(np.exp(nll.mean()), rel=1e-6)
    assert baseline["bits_per_byte"].value == pytest.approx(nll.sum() / np.log(2) / sum(run.drawn.text_bytes), rel=1e-6)
    # As `mlx_lm.perplexity` has it: its sum over the vocabulary is in float32, one after the other on a CPU.
    batch = mx.array(run.drawn.ids)
    logits = smollm2.model(batch[:, :-1]).astype(mx.float32)
    loss = nn.losses.cross_entropy(logits, batch[:, 1:], reduction="mean").item()
    assert baseline["ppl"].value == pytest.approx(np.exp(loss), rel=1e-3)


def test_a_window_is_read_without_making_logits(tiny: LoadedModel) -> None:
    from mlx_lm.models.cache import make_prompt_cache

    head = OutputHead.find(tiny.model, [1, 2, 3])
    cache = make_prompt_cache(tiny.model)
    ids = np.arange(50, dtype=np.int32)
    hidden, seconds, peak = read_window(head, cache, ids, 10, 20)
    assert hidden.shape == (10, 64)
    assert cache[0].offset == 50
    assert seconds > 0 and peak > 0


def test_bytes_of_a_sliding_window_are_of_the_window_whatever_the_steps(tiny_model_dir: TinyModelDir) -> None:
    loaded, plan = load(str(tiny_model_dir(**MODELS["gemma3"]))), plans("turboquant-mse@4,center=none")
    results = [evaluate_perplexity(loaded, TEXT, plan, windows=1, tokens=130, chunk=chunk) for chunk in (7, 64, 130)]
    assert len({result.codecs[0].total["bytes_fp16"].value for result in results}) == 1
