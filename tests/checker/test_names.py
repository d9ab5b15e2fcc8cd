"""Names and template values that no kernel can have are refused before anything is compiled."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest
from bodies import launch

from tqcli.kernels.checker import check
from tqcli.kernels.checker.names import refuse_names


@pytest.mark.parametrize(
    ("inputs", "outputs", "template", "words"),
    [
        (["int"], ["y"], {}, "inputs.int: 'int' is a word of C++; take another name"),
        (["x"], ["half"], {}, "outputs.half: 'half' is a word of Metal; take another name"),
        (["x"], ["y"], {"threadgroup": 3}, "template.threadgroup: 'threadgroup' is a word of Metal"),
        (["uint4"], ["y"], {}, "inputs.uint4: 'uint4' is a word of Metal"),
        (["x"], ["y"], {"INFINITY": 3}, "template.INFINITY: 'INFINITY' is a word of Metal"),
        (["thread_position_in_grid"], ["y"], {}, "is what Metal tells a thread of itself"),
        (["tq_x"], ["y"], {}, "inputs.tq_x: 'tq_x' is a name kept for compilers and checkers"),
        (["x", "x"], ["y"], {}, "inputs.x: 'x' is a name in inputs too; give each its own"),
        (["x"], ["x"], {}, "outputs.x: 'x' is a name in inputs too; give each its own"),
        (["x"], ["y"], {"y": 1}, "template.y: 'y' is a name in outputs too; give each its own"),
        (["x", "x_shape"], ["y"], {}, "inputs.x_shape: MLX gives the input 'x' a parameter 'x_shape'"),
        (["x"], ["y"], {"N": 2**31}, "template.N: 2147483648 is beyond an int, -2147483648 to 2147483647; pass it as"),
    ],
)
def test_a_name_or_value_that_cannot_be(
    inputs: list[str], outputs: list[str], template: dict[str, int], words: str
) -> None:
    with pytest.raises(ValueError, match=r"^[a-z]+\.") as caught:
        refuse_names(inputs, outputs, template)
    assert words in str(caught.value)


def test_other_names_pass() -> None:
    refuse_names(["x", "exp", "n_shape"], ["out", "x_"], {"D": -(2**31), "T": "float16", "M_ROWS": True})


def test_a_launch_with_such_a_name_is_refused() -> None:
    right = launch("y0[0] = 1.0f;", [mx.zeros((1,))])
    wrong = replace(right, kernel=replace(right.kernel, inputs=("y0",)))
    with pytest.raises(ValueError, match=r"launch of body: outputs\.y0: 'y0' is a name in inputs too"):
        check(wrong)
