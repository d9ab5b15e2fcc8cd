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
