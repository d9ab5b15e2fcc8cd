"""What cases of the sketches' kernels let pass, and what they don't."""

import mlx.core as mx
import numpy as np
import pytest

from tqcli.kernels.qjl.cases import NearZero
from tqcli.kernels.qjl.launch import encode_launch, scores_launch

SCALES = np.array([16000, 16001], dtype=np.uint16)
PROJECTED = np.array([[1.0, -2.0, 1e-7], [3.0, 0.5, -4.0]])


def outputs(words: list[int], scales: np.ndarray = SCALES) -> list[np.ndarray]:
    return [np.array(words, dtype=np.uint32)[:, None], scales]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([0b101, 0b011], "None"),
        ([0b001, 0b011], "None"),
        ([0b100, 0b011], "1 of 6 signs differ, first at [0, 0]: -, not +, of a projection of 1"),
        ([0b101, 0b1011], "the bits beyond the last sign are 0x1, not 0"),
    ],
)
def test_a_sign_may_differ_only_where_the_projection_is_nearly_0(words: list[int], found: str) -> None:
    rule = NearZero(PROJECTED, np.full((2, 3), 1e-6))
    assert str(rule(outputs(words), outputs([0b101, 0b011]))) == found


def test_signs_that_differ_are_counted() -> None:
    rule = NearZero(PROJECTED, np.full((2, 3), 1e-6))
    assert rule.boundary_codes(outputs([0b001, 0b011]), outputs([0b101, 0b011])) == (1, 6)


def test_a_scale_may_differ_by_one_step() -> None:
    rule, expected = NearZero(PROJECTED, np.full((2, 3), 1e-6)), outputs([0b101, 0b011])
    assert rule(outputs([0b101, 0b011], SCALES + np.uint16(1)), expected) is None
    assert ": 2 steps of a bfloat16 off" in str(rule(outputs([0b101, 0b011], SCALES + np.uint16(2)), expected))


def test_few_kernels_serve_all_numbers_of_queries() -> None:
    signs, scales = mx.zeros((2, 7, 3), dtype=mx.uint32), mx.zeros((2, 7), dtype=mx.bfloat16)
    blocks = {
        queries: scores_launch(mx.zeros((2, queries, 80)), signs, scales).template["QUERIES"]
        for queries in range(1, 30)
    }
    assert sorted(set(blocks.values())) == [1, 2, 4, 8]


def test_each_vector_and_each_word_of_signs_has_a_threadgroup() -> None:
    launch = encode_launch(mx.zeros((33, 80), dtype=mx.bfloat16), mx.zeros((100, 80)))
    assert [side // group for side, group in zip(launch.grid, launch.threadgroup, strict=True)] == [2, 4, 1]
