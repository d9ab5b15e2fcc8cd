"""What cases of the Hadamard kernels let pass, and what they don't."""

import mlx.core as mx
import numpy as np
import pytest

from tqcli.kernels.bit_pack.reference import pack_bits
from tqcli.kernels.hadamard_quant.cases import FLOAT_ERROR, NearThresholds

LIMITS = np.array([-1.0, 0.0, 1.0])
Y = np.linspace(-1.5, 1.4, 64).reshape(2, 32)


def coded(codes: np.ndarray, scales: tuple[int, int] = (16000, 16001)) -> list[np.ndarray]:
    words = np.array(pack_bits(mx.array(codes.astype(np.uint8)), 2))
    return [words, np.zeros(1, dtype=np.uint32), np.array(scales, dtype=np.uint16)]


@pytest.mark.parametrize(("distance", "passes"), [(0.5 * FLOAT_ERROR, True), (10 * FLOAT_ERROR, False)])
def test_a_code_may_differ_only_at_a_threshold(distance: float, passes: bool) -> None:
    y = Y.copy()
    y[1, 5] = 0 + distance
    expected = np.searchsorted(LIMITS, y)
    other = expected.copy()
    other[1, 5] -= 1
    rule = NearThresholds(y, LIMITS, (2,))
    found = rule(coded(other), coded(expected))
    assert found is None if passes else found is not None and "code [1, 5]" in found
    assert rule.boundary_codes(coded(other), coded(expected)) == (1, 64)


def test_a_code_two_levels_off_differs_even_at_a_threshold() -> None:
    y = Y.copy()
    y[0, 0] = -1
    expected = np.searchsorted(LIMITS, y)
    other = expected.copy()
    other[0, 0] += 2
    assert "code [0, 0]" in str(NearThresholds(y, LIMITS, (2,))(coded(other), coded(expected)))


def test_a_scale_may_differ_by_one_step() -> None:
    codes = np.searchsorted(LIMITS, Y)
    rule = NearThresholds(Y, LIMITS, (2,))
    assert rule(coded(codes, (16000, 16002)), coded(codes)) is None
    assert "scale [1] is 0.2558594, not 0.2519531: 2 steps" in str(rule(coded(codes, (16000, 16003)), coded(codes)))


def test_what_is_unused_must_be_zero() -> None:
    codes = np.searchsorted(LIMITS, Y)
    outputs = coded(codes)
    outputs[1] = np.ones(1, dtype=np.uint32)
    assert "is 1, not 0" in str(NearThresholds(Y, LIMITS, (2,))(outputs, coded(codes)))
