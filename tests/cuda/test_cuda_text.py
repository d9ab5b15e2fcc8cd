"""The CUDA text that we write for a launch is what MLX compiles, byte for byte."""

from __future__ import annotations

import pytest
from on_cuda import cuda, no_back_end_named  # noqa: F401  # fixtures for every test here

from tqcli.kernels.runtime.registry import cases, operations
from tqcli.kernels.runtime.text import cuda_text, golden_text


@pytest.mark.parametrize("operation", operations())
def test_every_case_of_every_operation(operation: str) -> None:
    for case in cases(operation):
        assert cuda_text(case.launch) == golden_text(case.launch, "cuda")
