"""The small launches of every operation's cases.py, by themselves."""

from dataclasses import replace

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


@pytest.mark.parametrize(
    ("note", "title"),
    [
        ("1 heads, 1 queries, 11 tokens, scales mlx.core.bfloat16", "1 head, 1 query, 11 tokens, scales bfloat16"),
        ("d 32 of 1 bits, 31 rows", "d 32 of 1 bit, 31 rows"),
        ("mlx.core.uint8 [3, 1] codes", "uint8 [3, 1] codes"),
    ],
)
def test_titles_are_notes_as_people_write_them(note: str, title: str) -> None:
    assert replace(next(iter(cases())).launch, note=note).title == title
