"""What a launch brings with it: what outputs hold at first, and how large it may be."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from bodies import launch

from tqcli.kernels.checker import check


@pytest.mark.parametrize(
    ("dtype", "value", "held"),
    [
        (mx.uint8, 7, 7),
        (mx.int16, -3, -3),
        (mx.uint32, 2**32 - 1, 2**32 - 1),
        (mx.int64, -(2**40), -(2**40)),
        (mx.bool_, 1, True),
        (mx.float16, 1.5, 1.5),
        (mx.bfloat16, 1.5, 1.5),
        (mx.float32, 0.1, np.float32(0.1)),
    ],
    ids=str,
)
def test_an_output_of_any_dtype_holds_the_initial_value(dtype: mx.Dtype, value: float, held: float) -> None:
    other = launch("y0[2] = y0[3];", outputs=((5, 7),), grid=1, threadgroup=1, dtypes=[dtype], init_value=value)
    checked = check(other)
    assert checked.findings == []
    assert (checked.outputs[0] == held).all()


def test_a_grid_that_would_never_end_is_refused() -> None:
    with pytest.raises(ValueError, match=r"4294967296 threads, and the checker runs at most 1073741824; give it"):
        check(launch("y0[0] = 1.0f;", grid=(65536, 65536, 1), threadgroup=1))


def test_more_arrays_than_there_is_room_for_are_refused() -> None:
    body = "".join(f"threadgroup float a{n}[2];\na{n}[0] = 1.0f;\n" for n in range(64)) + "y0[0] = 1.0f;"
    with pytest.raises(ValueError, match="a63 is one too many: a launch has at most 64 arrays"):
        check(launch(body, outputs=((1,),), grid=1, threadgroup=1))


@pytest.mark.parametrize(
    "end", ["__builtin_exit(0);", "__builtin_exit(3);", "__builtin__Exit(3);", "__builtin_abort();"]
)
def test_a_body_that_ends_the_program_has_crashed(end: str) -> None:
    faulty = launch(f"y0[0] = 2.0f;\nif (y0[0] > 1.0f) {end}", outputs=((7,),), grid=1, threadgroup=1, init_value=5)
    checked = check(faulty)
    assert [finding.kind for finding in checked.findings] == ["crash"]
    assert checked.outputs[0].shape == (7,)


def test_a_crash_by_exit_is_told_at_its_line() -> None:
    (finding,) = check(launch("y0[0] = 2.0f;\n__builtin_exit(0);", outputs=((1,),), grid=1, threadgroup=1)).findings
    assert str(finding) == "body.metal:2: crash: thread 0 ends the program that runs it"


def test_what_a_body_prints_is_told_and_goes_nowhere() -> None:
    body = '__builtin_printf("%d\\n", 7);\ny0[0] = 2.0f;'
    checked = check(launch(body, outputs=((1,),), grid=1, threadgroup=1))
    assert [str(finding) for finding in checked.findings] == [
        "body.metal: print: the body writes to stdout, which a GPU hasn't"
    ]
    assert checked.outputs[0].tolist() == [2.0]
