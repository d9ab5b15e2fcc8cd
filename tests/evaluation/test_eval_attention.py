"""What attention sees of a codec, against a plain computation over decoded keys and values."""

import json
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from small_captures import write_capture

from tqcli.capture.store import Capture, open_capture
from tqcli.codecs.spec import parse_codec
from tqcli.compression.plan import CompressionPlan
from tqcli.errors import InputError
from tqcli.evaluation.attention import evaluate_attention
from tqcli.evaluation.distortion import evaluate_distortion
from tqcli.report.schema import Result
from tqcli.storage import MANIFEST, write_json, write_shard


def plan(codec: str, sinks: int = 0, recent: int = 0) -> CompressionPlan:
    return CompressionPlan(parse_codec(codec), sinks=sinks, recent=recent)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def by_hand(capture: Capture, codec: str, sinks: int, recent: int, first: int) -> tuple[float, float]:
    """KL and output error of layer 0, query by query, each with a cache that ends where the query stands."""
    kl, error, energy, queries = 0.0, 0.0, 0.0, 0
    coders = {t: parse_codec(codec).of(t).build(t) for t in ("keys", "values")}
    for window in capture.windows():
        q = np.array(window.queries(0), dtype=np.float64)
        for column, t in enumerate(window.query_positions):
            if t < first:
                continue
            queries += q.shape[0]
            exact, cached = {}, {}
            for tensor, codec_of in coders.items():
                x, ctx = window.tensor(0, tensor)[:, : t + 1], capture.context(0, tensor)  # type: ignore[arg-type]
                assert ctx.rotary is not None
                middle = x[:, sinks : t + 1 - recent]
                inner = replace(ctx, positions=np.arange(sinks, t + 1 - recent))
                decoded = codec_of.decode(codec_of.encode(middle, inner), inner)
                ends = x.astype(mx.float16).astype(mx.float32)
                joined = mx.concatenate([ends[:, :sinks], decoded, ends[:, t + 1 - recent :]], axis=1)
                exact[tensor], cached[tensor] = np.array(x, dtype=np.float64), np.array(joined, dtype=np.float64)
            for head in range(q.shape[0]):
                kv = head // ctx.gqa_ratio
                seen = slice(0 if ctx.window is None else max(0, t + 1 - ctx.window), None)
                p, r = (softmax(c["keys"][kv, seen] @ q[head, column] * ctx.scale) for c in (exact, cached))
                kl += float(np.sum(p * np.log(p / r)))
                o, u = p @ exact["values"][kv, seen], r @ cached["values"][kv, seen]
                error += float(np.sum((o - u) ** 2))
                energy += float(np.sum(o**2))
    return kl / queries, error / energy


@pytest.mark.parametrize(
    ("codec", "sinks", "recent", "sizes"),
    [
        ("turboquant-mse@2", 0, 0, {}),
        ("turboquant-mse@2,center=none", 0, 0, {"head_dim": 80, "value_head_dim": 96}),
        ("turboquant-mse@3/2", 4, 9, {"q_heads": 9, "kv_heads": 3}),
        ("turboquant-rvq@2", 1, 30, {"q_heads": 14, "kv_heads": 2}),
        ("affine@4,center=none", 0, 200, {"tokens": 300}),
    ],
)
def test_a_query_sees_what_it_would_see_while_decoding(
    tmp_path: Path, codec: str, sinks: int, recent: int, sizes: dict[str, int]
) -> None:
    size = {"tokens": 160, "layers": 1} | sizes
    capture = open_capture(write_capture(tmp_path / "c", last_queries=True, **size))  # type: ignore[arg-type]
    result = evaluate_attention(capture, [plan(codec, sinks, recent)])
    total = result.codecs[0].total
    kl, error = by_hand(capture, codec, sinks, recent, result.settings["first_position"])
    assert total["attention_kl"].value == pytest.approx(kl, rel=2e-3)
    assert total["attention_error"].value == pytest.approx(error, rel=2e-3)


@pytest.mark.parametrize(("sinks", "recent"), [(0, 0), (4, 9)])
def test_a_sliding_window_hides_what_has_left_it(tmp_path: Path, sinks: int, recent: int) -> None:
    capture = open_capture(write_capture(tmp_path / "c", layers=1, tokens=160, window=70, last_queries=True))
    result = evaluate_attention(capture, [plan("turboquant-mse@2", sinks, recent)])
    kl, error = by_hand(capture, "turboquant-mse@2", sinks, recent, result.settings["first_position"])
    assert result.codecs[0].total["attention_kl"].value == pytest.approx(kl, rel=2e-3)
    assert result.codecs[0].total["attention_error"].value == pytest.approx(error, rel=2e-3)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = write_capture(tmp_path_factory.mktemp("c") / "c", tokens=160, layers=3, last_queries=True)
    codecs = ("identity", "fp16", "qjl@1", "turboquant-prod@3", "turboquant-mse@4", "turboquant-mse@2")
    return evaluate_attention(open_capture(folder), [plan(codec) for codec in codecs])


def test_a_codec_that_loses_nothing_changes_nothing(result: Result) -> None:
    total = result.codecs[0].total
    assert total["attention_error"].value == 0
    assert total["attention_kl"].value == 0
    assert total["logit_correlation"].value == pytest.approx(1)
    assert total["topk_overlap"].value == 1


def test_more_bits_are_nearer(result: Result) -> None:
    kl = [codec.total["attention_kl"].value or 0 for codec in result.codecs]
    assert kl[0] <= kl[1] < 1e-5 < kl[4] < kl[5]
    assert kl[5] < kl[2]


def test_layers_and_heads_make_up_the_totals(result: Result) -> None:
    codec = result.codecs[4]
    assert [row.layer for row in codec.layers] == [0, 1, 2]
    assert {row.tensor for row in codec.layers} == {"both"}
    for name in ("attention_kl", "logit_correlation", "topk_overlap"):
        values = [row.metrics[name].value or 0 for row in codec.layers]
        assert codec.total[name].value == pytest.approx(np.mean(values))
        assert codec.total[f"{name}_median"].value == pytest.approx(np.median(values))
        worst = codec.total[f"{name}_worst"].value
        assert worst == (max(values) if name == "attention_kl" else min(values))
        assert values[int(codec.total[f"{name}_worst_layer"].value or 0)] == worst
        for row in codec.layers:
            assert len(row.heads) == 6
            assert row.metrics[name].value == pytest.approx(np.mean([h[name].value or 0 for h in row.heads]))
    for name in ("attention_kl", "attention_error", "logit_correlation", "topk_overlap"):
        interval = codec.total[name]
        assert interval.n == 2
        assert interval.ci_low is not None
        assert interval.ci_high is not None
        assert interval.ci_low <= (interval.value or 0) <= interval.ci_high


def test_estimators_are_measured_through_their_scores_and_their_theory_holds(tmp_path: Path) -> None:
    capture = open_capture(write_capture(tmp_path / "c", tokens=512, layers=2, shift=0.0, last_queries=True))
    codecs = ("turboquant-prod@1", "turboquant-prod@3", "qjl@2", "turboquant-mse@3", "turboquant-rvq@3")
    for codec in evaluate_distortion(capture, [plan(f"{c},center=none") for c in codecs]).codecs:
        keys = codec.by_tensor["keys"]
        assert keys["ip_variance_d"].value == pytest.approx(keys["ip_variance_d_theory"].value, rel=0.1), codec.codec
        if "mse" not in codec.codec and "rvq" not in codec.codec:
            assert keys["ip_slope"].value == pytest.approx(1, abs=0.02)
        assert keys["ip_bias"].value == pytest.approx(0, abs=0.002)


@pytest.mark.parametrize(
    ("changes", "codec", "says"),
    [
        ({"queries": 0}, "turboquant-mse@2", "has no queries; capture anew with --queries"),
        ({"tokens": 40}, "turboquant-mse@2", "no query at position 64 or later.*windows than 40 tokens"),
    ],
)
def test_a_capture_without_queries_to_measure_is_refused(
    tmp_path: Path, changes: dict[str, int], codec: str, says: str
) -> None:
    capture = open_capture(write_capture(tmp_path / "c", **changes))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=says):
        evaluate_attention(capture, [plan(codec)])


def test_layers_whose_keys_are_not_coded_are_not_among_those_measured(tmp_path: Path) -> None:
    """affine can't group 80 channels: attention to values is all that is left to measure."""
    capture = open_capture(write_capture(tmp_path / "c", head_dim=80, value_head_dim=64, tokens=160, last_queries=True))
    codec = evaluate_attention(capture, [plan("affine@2")]).codecs[0]
    assert {(s.layer, s.tensor) for s in codec.skipped} == {(0, "keys"), (1, "keys")}
    assert "attention_kl" not in codec.total
    assert (codec.total["attention_error"].value or 0) > 0.05
    assert codec.by_tensor["keys"]["bits_nominal"].value == 16
    with pytest.raises(InputError, match=r"compressed nothing: .*head_dim 80 is not a multiple"):
        evaluate_attention(capture, [plan("affine@2 | affine@2,group=128")])


def test_plans_with_other_sinks_are_not_compared(tmp_path: Path) -> None:
    capture = open_capture(write_capture(tmp_path / "c", tokens=160, last_queries=True))
    with pytest.raises(ValueError, match="the same sinks"):
        evaluate_attention(capture, [plan("affine@2"), plan("affine@2", sinks=4)])


def test_queries_that_are_not_finite_and_logits_that_overflow_are_refused(tmp_path: Path) -> None:
    for name, value, says in (
        ("q", np.nan, r"NaN or inf in the queries of layer 0, head 1, token 3"),
        ("k", 1e30, "overflow float32"),
    ):
        folder = write_capture(tmp_path / name, tokens=160, last_queries=True, layers=1, windows=1)
        path = folder / "window-00000.safetensors"
        arrays = mx.load(str(path))
        assert isinstance(arrays, dict)
        queries = np.array(arrays["layers.0.queries"])
        queries[1, 3, 5] = value
        arrays["layers.0.queries"] = mx.array(queries)
        if name == "k":
            arrays["layers.0.keys"] = arrays["layers.0.keys"] * 1e10
        record = write_shard(folder, path.name, arrays, {"format": "tq-capture"})
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["shards"][0] |= vars(record)
        write_json(folder / MANIFEST, manifest)
        with pytest.raises(InputError, match=says):
            evaluate_attention(open_capture(folder), [plan("turboquant-mse@4")])


def test_a_number_of_keys_below_one_is_refused(tmp_path: Path) -> None:
    capture = open_capture(write_capture(tmp_path / "c", tokens=160, last_queries=True))
    with pytest.raises(InputError, match="--top-k must be 1 or more, not 0"):
        evaluate_attention(capture, [plan("affine@2")], top_k=0)
