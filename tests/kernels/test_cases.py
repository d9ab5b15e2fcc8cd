"""The small launches of every operation's cases.py, by themselves."""

import pytest

from tqcli.kernels.runtime.case import to_numpy
from tqcli.kernels.runtime.registry import cases, operations


@pytest.mark.parametrize("operation", operations())
def test_every_launch_fits_and_its_expected_outputs_pass(operation: str) -> None:
    for case in cases(operation):
        case.launch.check()
        expected = [to_numpy(array) for array in case.expected()]
        shapes = [tuple(shape) for shape in case.launch.output_shapes]
        assert [array.shape for array in expected] == shapes, case.launch.note
        assert case.differs(expected, expected) is None, case.launch.note
