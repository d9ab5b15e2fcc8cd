"""What cases of vector quantisation's kernels let pass, and what they don't."""

import mlx.core as mx
import numpy as np
import pytest

from tqcli.kernels.vector_quant.cases import NearlyNearest
from tqcli.kernels.vector_quant.launch import quantise_launch

X = mx.array([[[0.0, 1e-8], [3.0, 1.0]]])
CODEBOOK = mx.array([[0.0, 1.0], [0.0, -1.0], [4.0, 1.0]])


def coded(*codes: int) -> list[np.ndarray]:
    return [np.array([codes], dtype=np.uint8)]


@pytest.mark.parametrize(
    ("codes", "found"),
    [
        ((0, 2), "None"),
        ((1, 2), "None"),
        ((0, 0), "code 0 at [0, 1], not 2: 9 away, not 1"),
        ((0, 3), "code 3 at [0, 1], not 2: there are 3 entries"),
    ],
)
def test_a_code_may_differ_only_where_its_entry_is_as_near(codes: tuple[int, int], found: str) -> None:
    assert str(NearlyNearest.of(X, CODEBOOK)(coded(*codes), coded(0, 2))) == found


def test_codes_that_differ_are_counted() -> None:
    assert NearlyNearest.of(X, CODEBOOK).boundary_codes(coded(1, 2), coded(0, 2)) == (1, 2)


def test_few_sub_vectors_have_a_simdgroup_each() -> None:
    few, many = mx.zeros((1, 100, 8)), mx.zeros((1, 1 << 15, 8))
    codebook = mx.zeros((256, 8))
    assert quantise_launch(few, codebook).grid == (100 * 32, 1, 1)
    assert quantise_launch(many, codebook).grid == ((1 << 15) // 4, 1, 1)
