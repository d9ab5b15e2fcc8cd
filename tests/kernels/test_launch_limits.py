"""Calls whose launch no GPU can run, and float64, are told before anything is launched.

Arrays of zeros are lazy: none of these is ever allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from tqcli.kernels import (
    hadamard_dequantise,
    hadamard_quantise,
    pack_bits,
    prod_scores,
    sketch_scores,
    sketch_signs,
    unpack_bits,
    vector_dequantise,
    vector_quantise,
    vector_scores,
)
from tqcli.kernels.prod_scores.cases import coded
from tqcli.kernels.runtime import backend, reset_used, too_large, used
from tqcli.kernels.vector_quant import launch as vector_launch

MANY = 1 << 16
SIGNS, LEVELS, LIMITS = mx.ones((1, 64), dtype=mx.int8), mx.zeros((16,)), mx.zeros((15,))


@pytest.fixture(autouse=True)
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where MLX computes on an NVIDIA GPU."""
    monkeypatch.setattr(backend, "available", lambda: ("cuda", "mlx"))


def words(*shape: int) -> mx.array:
    return mx.zeros(shape, dtype=mx.uint32)


def halves(*lead: int) -> mx.array:
    return mx.zeros(lead, dtype=mx.bfloat16)


@pytest.mark.parametrize(
    ("grid", "group", "reason"),
    [
        ((2**31 - 128, 65535, 65535), (128, 1, 1), None),
        ((2**31, 1, 1), (128, 1, 1), "2147483648 threads along x"),
        ((32, 65536, 1), (32, 1, 1), "65536 threadgroups along y"),
        ((32, 131070, 1), (32, 2, 1), None),
        ((32, 1, 65536), (32, 1, 1), "65536 threadgroups along z"),
    ],
)
def test_a_grid_fits_every_back_end_or_a_reason_is_given(
    grid: tuple[int, int, int], group: tuple[int, int, int], reason: str | None
) -> None:
    assert (too_large(grid, group) or "None").startswith(f"a launch of {reason}" if reason else "None")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: sketch_signs(halves(1 << 14, 1 << 15, 4), mx.zeros((8, 4)), "cuda"), "2147483648 threads along x"),
        (lambda: sketch_signs(halves(7, 1), mx.zeros((MANY * 32, 1)), "cuda"), "65536 threadgroups along y"),
        (
            lambda: sketch_scores(
                mx.zeros((1, MANY * 8, 4)), words(1, 5, 1), halves(1, 5), mx.zeros((8, 4)), 1.0, "cuda"
            ),
            "65536 threadgroups along y",
        ),
        (
            lambda: hadamard_quantise(halves(1 << 13, 1 << 13, 64), SIGNS, LEVELS, LIMITS, (4,), False, None, "cuda"),
            "2147483648 threads along x",
        ),
        (
            lambda: hadamard_dequantise(
                (words(1 << 13, 1 << 13, 8),), halves(1 << 13, 1 << 13), SIGNS, LEVELS, (4,), mx.float16, "cuda"
            ),
            "2147483648 threads along x",
        ),
        (lambda: unpack_bits(words(1 << 16, 1 << 15, 1), 1, 5, "cuda"), r"2\*\*31 rows"),
        (
            lambda: pack_bits(mx.zeros((1 << 16, 1 << 15, 1), dtype=mx.uint8), 4, "cuda"),
            r"2\*\*31 rows",
        ),
        (lambda: unpack_bits(words(1, 2**31 // 32), 1, 2**31 - 1, "cuda"), "2147483648 threads along x"),
        (lambda: vector_quantise(halves(MANY, 3, 2), mx.zeros((MANY, 4, 2)), "cuda"), "65536 threadgroups along y"),
        (
            lambda: vector_dequantise(mx.zeros((MANY, 3), dtype=mx.uint8), mx.zeros((MANY, 4, 2)), "cuda"),
            "65536 threadgroups along y",
        ),
        (
            lambda: vector_scores(mx.zeros((MANY, 1, 8)), words(MANY, 3, 1), mx.zeros((16, 2)), 4, "cuda"),
            "65536 threadgroups along z",
        ),
        (
            lambda: vector_scores(mx.zeros((1, 1, 8)), words(1, 2**31 - 1, 1), mx.zeros((16, 2)), 4, "cuda"),
            "2147483648 threads along x",
        ),
    ],
)
def test_a_launch_too_large_for_a_gpu_is_refused_where_one_is_named(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(ValueError, match=f"no cuda kernel for this call: .*{reason}"):
        call()


def test_prod_scores_of_too_many_heads_are_refused_where_a_gpu_is_named() -> None:
    first, left = coded(mx.ones((1, 5, 64)), 2, 64)
    first = replace(first, codes=words(MANY, 5, 4), scales=halves(MANY, 5))
    left = replace(left, signs=words(MANY, 5, 2), scales=halves(MANY, 5))
    with pytest.raises(ValueError, match=r"no cuda kernel for this call: .*65536 threadgroups along z"):
        prod_scores(mx.zeros((MANY, 1, 64)), first, left, "cuda")


def test_many_queries_are_scored_by_several_launches_that_each_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    grids = []

    def noted(launch: vector_launch.Launch, _: str) -> list[mx.array]:
        launch.check()
        grids.append(launch.grid)
        return [mx.zeros(launch.output_shapes[0])]

    monkeypatch.setattr(vector_launch, "run", noted)
    queries = MANY * 8 // 32 + 5  # of 32 sub-vectors each, so that one launch of the tables is too few
    scores = vector_scores(mx.zeros((1, queries, 64)), words(1, 3, 1), mx.zeros((2, 2)), 1, "cuda")
    assert scores.shape == (1, queries, 3)
    assert len(grids) == 4


def wide(x: mx.array) -> mx.array:
    return x.astype(mx.float64, stream=mx.cpu)


def test_float64_takes_plain_operations_on_a_gpu_whichever_array_has_it() -> None:
    sketch = mx.array(np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32))
    x = mx.ones((1, 5, 64))
    signs, scales = sketch_signs(x, sketch, "mlx")
    first, left = coded(x, 2, 64)
    assert first.scales is not None
    planes, stored = hadamard_quantise(x, SIGNS, LEVELS, LIMITS, (4,), False, None, "mlx")
    assert stored is not None
    calls: list[Callable[[str | None], mx.array]] = [
        lambda name: sketch_scores(x, signs, wide(scales), sketch, 1.0, name),
        lambda name: prod_scores(x, replace(first, scales=wide(first.scales)), left, name),
        lambda name: prod_scores(x, replace(first, codebook=wide(first.codebook)), left, name),
        lambda name: prod_scores(x, first, replace(left, scales=wide(left.scales)), name),
        lambda name: hadamard_dequantise(planes, wide(stored), SIGNS, LEVELS, (4,), mx.float32, name),
        lambda name: hadamard_quantise(x, SIGNS, LEVELS, LIMITS, (4,), False, wide(x), name)[0][0],
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"no cuda kernel for this call: .*float64"):
            call("cuda")
    reset_used()
    with mx.stream(mx.cpu), pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "preferred", lambda: ("cuda", "MLX computes on this GPU"))
        patch.setitem(backend.CROSSOVER, "scalar_quantise", backend.NEVER)
        patch.setitem(backend.CROSSOVER, "scalar_dequantise", backend.NEVER)
        for call in calls:
            mx.eval(call(None))
    assert all(use.backend == "mlx" for use in used())
    reset_used()
