"""Bits by layer from a sweep: allocation, curves, `tq plan`."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import MODEL, TEXT, codec, measure, metric, row, run
from running import done, refusal, tq
from studies import recipe, result

from tqcli.cli.plan import parse_size
from tqcli.errors import InputError
from tqcli.recipes.allocate import Choice, allocate, hull
from tqcli.recipes.curves import read_curves
from tqcli.recipes.sweep import sweep_of

BITS = (1, 2, 3, 4)


@st.composite
def curves(draw: st.DrawFn) -> dict[int, list[Choice]]:
    """Divergence that falls by about four a bit, of tensors that it matters for by up to a thousand times more."""
    weights = draw(st.lists(st.floats(1e-3, 1), min_size=1, max_size=4))
    sizes = draw(st.lists(st.integers(1, 5), min_size=len(weights), max_size=len(weights)))
    return {
        n: [Choice(bits, size * (bits + 0.25), weight * 4.0**-bits) for bits in BITS]
        for n, (weight, size) in enumerate(zip(weights, sizes, strict=True))
    }


@given(curves(), st.floats(0, 1))
def test_an_allocation_keeps_to_its_bytes_and_is_no_worse_than_uniform_bits_but_for_a_step(
    of: dict[int, list[Choice]], share: float
) -> None:
    least, most = (sum(choices[n].bytes for choices in of.values()) for n in (0, -1))
    budget = least + share * (most - least)
    taken = allocate(of, byte_budget=budget)
    assert sum(choice.bytes for choice in taken.values()) <= budget
    # The first step that no longer fits is all that whole steps can lack to the best that fractions of one could do.
    step = max(a.kl - b.kl for choices in of.values() for a, b in pairwise(choices))
    for n in range(len(BITS)):
        if sum(choices[n].bytes for choices in of.values()) <= budget:
            uniform = sum(choices[n].kl for choices in of.values())
            assert sum(choice.kl for choice in taken.values()) <= uniform + step * (1 + 1e-9)


@given(curves())
def test_on_its_own_bytes_no_other_allocation_is_better_by_a_step(of: dict[int, list[Choice]]) -> None:
    least, most = (sum(choices[n].bytes for choices in of.values()) for n in (0, -1))
    taken = allocate(of, byte_budget=(least + most) / 2)
    spent, lost = (sum(getattr(choice, name) for choice in taken.values()) for name in ("bytes", "kl"))
    step = max(a.kl - b.kl for choices in of.values() for a, b in pairwise(choices))
    for combination in product(*of.values()):
        if sum(choice.bytes for choice in combination) <= spent:
            assert sum(choice.kl for choice in combination) >= lost - step * (1 + 1e-9)


@given(curves(), st.floats(0, 1))
def test_a_divergence_is_kept_with_fewer_bytes_the_larger_it_is(of: dict[int, list[Choice]], share: float) -> None:
    least, most = (sum(choices[n].kl for choices in of.values()) for n in (-1, 0))
    budget = least + share * (most - least) + 1e-12
    taken = allocate(of, kl_budget=budget)
    assert sum(choice.kl for choice in taken.values()) <= budget * (1 + 1e-9)
    larger = allocate(of, kl_budget=budget * 2)
    assert sum(c.bytes for c in larger.values()) <= sum(c.bytes for c in taken.values())


def test_what_lies_above_the_hull_is_never_chosen() -> None:
    points = [Choice(1, 1, 1.0), Choice(2, 2, 0.9), Choice(3, 3, 0.1), Choice(4, 4, 0.2)]
    assert [point.bits for point in hull(points)] == [1, 3]
    with pytest.raises(ValueError, match="without a choice"):
        hull([])


def test_budgets_that_cannot_be_kept() -> None:
    of = {0: [Choice(2, 10, 0.5), Choice(4, 20, 0.1)]}
    for budget in ({"byte_budget": 9}, {"kl_budget": 0.05}, {}, {"byte_budget": 9, "kl_budget": 1}):
        with pytest.raises(ValueError, match=r"more than|either"):
            allocate(of, **budget)  # type: ignore[arg-type]


def swept(name: str, kl: float, layers: tuple[float, ...] = ()) -> object:
    return codec(name, {"kl_mean": metric(kl)}, [row(n, kl_mean=metric(of)) for n, of in enumerate(layers)])


def test_curves_are_read_by_tensor_and_parts_that_do_not_add_up_are_corrected() -> None:
    sweep = measure(
        "perplexity",
        swept("turboquant-mse@2 | identity", 0.3, (0.1, 0.2)),
        swept("identity | turboquant-mse@2", 0.1, (0.05, 0.05)),
        swept("turboquant-mse@4 | identity", 0.03, (0.01, 0.02)),
        swept("identity | turboquant-mse@4", 0.01, (0.005, 0.005)),
        swept("turboquant-mse@2", 0.6),
        swept("turboquant-mse@4", 0.04),
        swept("affine@4", 0.5),
    )
    found = read_curves(sweep)
    assert found.kl[1, "keys"] == {2: 0.2, 4: 0.02}
    assert found.kl[0, "values"] == {2: 0.05, 4: 0.005}
    assert found.predicted(0.4) == pytest.approx(0.6)
    assert found.predicted(0.04) == pytest.approx(0.04)
    assert found.predicted(0.02) == pytest.approx(0.02)
    assert 0.04 < found.predicted(0.1) < 0.6


@pytest.mark.parametrize(
    ("codecs", "words"),
    [
        ([swept("turboquant-mse@2", 0.1)], "no divergence of single layers"),
        ([swept("turboquant-mse@2", 0.1, (0.1,))], "at 2 bits alone"),
        ([swept("turboquant-mse@2", 0.1, (0.1,)), swept("affine@4", 0.1, (0.1,))], "several codecs"),
        (
            [
                swept("affine@2 | identity", 0.1, (0.1, 0.1)),
                swept("affine@4 | identity", 0.1, (0.1, 0.1)),
                swept("identity | affine@2", 0.1, (0.1,)),
                swept("identity | affine@4", 0.1, (0.1,)),
            ],
            "the values of layer 1 were not swept",
        ),
    ],
)
def test_sweeps_that_are_not_whole(codecs: list[object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_curves(measure("perplexity", *codecs))  # type: ignore[arg-type]


def test_what_a_sweep_learned_from_is_learned_from_again_but_for_other_windows() -> None:
    dataset = TEXT | {"windows": 2, "tokens": 96}
    of = measure("perplexity", swept("affine@2", 0.1, (0.1,)), dataset=dataset, model=MODEL | {"compute_dtype": "f"})  # type: ignore[arg-type]
    calibration = {"spec": "sample", "windows": 1, "tokens": 64, "seed": 1}
    settings = sweep_of(run(of, recipe={"calibration": calibration})).settings
    assert settings["calibration"] == {"spec": "sample", "windows": 1, "tokens": 64}
    assert settings["seed"] == 1
    assert "calibration" not in sweep_of(run(of)).settings


def test_plain_results_with_layers_of_other_bits_are_no_sweep() -> None:
    settings, dataset = {"layer_bits": {"0": [8, None]}}, TEXT | {"windows": 2, "tokens": 96}
    with pytest.raises(InputError, match="measure it without --layer-bits"):
        sweep_of(measure("perplexity", dataset=dataset, model=MODEL | {"compute_dtype": "f"}, settings=settings))


@pytest.mark.parametrize(("text", "size"), [("200MB", 2e8), ("1.5GiB", 1.5 * 2**30), ("7", 7), ("3 kb", 3000)])
def test_sizes(text: str, size: float) -> None:
    assert parse_size(text) == size


def test_a_plan_from_a_sweep_is_confirmed_by_running_it(tmp_path: Path) -> None:
    codecs: list[object] = ["turboquant-mse@2", "turboquant-mse@4"]
    codecs += [f"turboquant-mse@{bits} | identity" for bits in (2, 4)]
    codecs += [f"identity | turboquant-mse@{bits}" for bits in (2, 4)]
    sweep = recipe(tmp_path, name="sweep", codecs=codecs, control=None, measures={"perplexity": {"per_layer": True}})
    done("run", sweep, folder=tmp_path)
    planned = done("plan", tmp_path / "runs" / "sweep", "--bits", 3.3, "--json", folder=tmp_path).document
    assert planned["codecs"][1] == "turboquant-mse@2.5" or planned["codecs"][1].startswith("turboquant-mse@")
    (tmp_path / "plan.yaml").write_text(done("plan", tmp_path / "runs" / "sweep", "--bits", 3.3, folder=tmp_path).out)
    outcome = tq("run", tmp_path / "plan.yaml", folder=tmp_path)
    assert outcome.code in (0, 1, 3), outcome.err
    found = result(tmp_path, "plan")
    measured = found["measures"]["perplexity"]["codecs"][0]["total"]["kl_mean"]["value"]
    foretold = found["codecs"][0]["predicted"]["kl_mean"]
    assert foretold / 3 < measured < foretold * 3
    assert "foretold" in outcome.out
    again = done("plan", tmp_path / "runs" / "sweep", "--kl", foretold * 1.001, folder=tmp_path)
    assert "name: plan" in again.out


def test_what_a_plan_refuses(tmp_path: Path) -> None:
    (tmp_path / "eval.json").write_text(measure("memory", codec("affine@4")).to_json())
    assert "one of --bits, --memory and --kl" in refusal("plan", tmp_path / "eval.json")
    assert "has no perplexity" in refusal("plan", tmp_path / "eval.json", "--bits", 3)
    assert "is not a size" in refusal("plan", tmp_path / "eval.json", "--memory", "much")
    assert "there is no" in refusal("plan", tmp_path / "nothing", "--bits", 3)
    assert "more than 0" in refusal("plan", tmp_path / "eval.json", "--kl", -1)
