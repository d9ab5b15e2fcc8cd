"""The text that we write for a launch is what MLX compiles on a Mac, byte for byte; no GPU is needed for that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from tqcli.kernels.runtime import Kernel, Launch
from tqcli.kernels.runtime.attributes import METAL_ATTRIBUTES
from tqcli.kernels.runtime.registry import cases, operations
from tqcli.kernels.runtime.text import cuda_text, golden_text, metal_text


@pytest.mark.parametrize("operation", operations())
def test_every_case_of_every_operation(operation: str) -> None:
    found = list(cases(operation))
    assert found
    for case in found:
        case.launch.check()
        assert metal_text(case.launch) == golden_text(case.launch)


def launch(folder: Path, source: str, inputs: dict[str, mx.array], template: dict[str, Any], *out: mx.Dtype) -> Launch:
    body = folder / "body.metal"
    body.write_text(source)
    outputs = tuple(f"out{n}" for n in range(len(out)))
    kernel = Kernel("sample", body, tuple(inputs), outputs, tuple(template))
    return Launch(kernel, list(inputs.values()), template, (64, 1, 1), (32, 1, 1), [(7,)] * len(out), list(out))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32, mx.bool_, mx.int8, mx.uint16, mx.int64])
def test_types_of_buffers_and_of_the_template(tmp_path: Path, dtype: mx.Dtype) -> None:
    x = mx.zeros((63,), dtype=dtype)
    it = launch(
        tmp_path, "out0[thread_position_in_grid.x] = T(x[0]);", {"x": x}, {"T": dtype, "D": 80}, dtype, mx.uint8
    )
    assert metal_text(it) == golden_text(it)


@pytest.mark.parametrize("elements", [1, 7, 8])
def test_inputs_of_less_than_eight_elements_are_constant(tmp_path: Path, elements: int) -> None:
    it = launch(tmp_path, "out0[thread_position_in_grid.x] = x[0];", {"x": mx.zeros((elements,))}, {}, mx.float32)
    assert metal_text(it) == golden_text(it)
    assert f"const {'constant' if elements < 8 else 'device'} float* x" in metal_text(it)


def test_shapes_strides_and_attributes_that_the_body_mentions_even_in_a_comment(tmp_path: Path) -> None:
    source = (
        "// y_strides, x_ndim\n" + "".join(f"(void){name};\n" for name in METAL_ATTRIBUTES) + "out0[0] = x_shape[1];"
    )
    inputs = {"x": mx.zeros((3, 5)), "y": mx.zeros((9,), dtype=mx.uint32)}
    it = launch(tmp_path, source, inputs, {"FLAG": True, "OTHER": False, "N": 0}, mx.float16)
    assert metal_text(it) == golden_text(it)
    assert "const constant int64_t* y_strides [[buffer(4)]]" in metal_text(it)


def test_no_attributes_and_no_template(tmp_path: Path) -> None:
    it = launch(tmp_path, "out0[0] = x[0];", {"x": mx.zeros((64,))}, {}, mx.float32, mx.int32)
    assert metal_text(it) == golden_text(it)


def test_types_that_no_gpu_has_are_refused(tmp_path: Path) -> None:
    it = launch(tmp_path, "out0[0] = x[0];", {"x": mx.zeros((64,), dtype=mx.complex64)}, {}, mx.float32)
    with pytest.raises(ValueError, match="no arrays of dtype complex64"):
        metal_text(it)


def test_atomic_outputs(tmp_path: Path) -> None:
    source = "atomic_fetch_add_explicit(&out0[0], 1.0f, memory_order_relaxed);"
    it = launch(tmp_path, source, {"x": mx.zeros((9,))}, {"N": 3}, mx.float32, mx.int32)
    it = replace(it, kernel=replace(it.kernel, atomic_outputs=True))
    assert metal_text(it) == golden_text(it)
    assert "device atomic<float>* out0" in metal_text(it)
    with pytest.raises(ValueError, match="sample has atomic outputs, which MLX gives kernels on Metal alone"):
        cuda_text(it)
