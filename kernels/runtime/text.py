"""The text that MLX compiles for a launch, written here, and as MLX itself writes it.

`metal_text` and `cuda_text` follow MLX's `metal_kernel.cpp` and `cuda/custom_kernel.cpp`. `golden_text` is MLX's own
Metal text, which it gives on any machine while it traces a function for export. They must be equal byte for byte: that
shows what a Mac would compile where there is none. MLX puts its own utils.h before the Metal text.
"""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx

from tqcli.kernels.runtime import cuda, metal
from tqcli.kernels.runtime.attributes import METAL_ATTRIBUTES, attributes_in
from tqcli.kernels.runtime.kernel import Kernel, Launch, Parameter, arguments

_METAL_TYPES = {"float32": "float", "float16": "float16_t", "bfloat16": "bfloat16_t", "bool": "bool"}
_CUDA_TYPES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16", "bool": "bool"}
_INTEGER = re.compile(r"u?int(8|16|32|64)")
_CONSTANT_BELOW = 8
"""Inputs of fewer elements lie in Metal's constant address space."""
_CUDA_START = '\n#include "mlx/backend/cuda/device/utils.cuh"\n\n#include <cooperative_groups.h>\n\n'


def metal_text(launch: Launch) -> str:
    """The Metal text of a launch: headers, signature, body, instantiation. Raises `ValueError` for a complex dtype."""
    kernel, name = launch.kernel, _metal_name(launch)
    buffers = [f"  {line} [[buffer({n})]]" for n, line in enumerate(metal_buffers(launch))]
    attributes = [f"  {METAL_ATTRIBUTES[known]} {known} [[{known}]]" for known in attributes_in(kernel.source)]
    text = kernel.header
    if kernel.template:
        kinds = [f"{_kind(launch.template[parameter])} {parameter}" for parameter in kernel.template]
        text += f"template <{', '.join(kinds)}>\n"
    text += f"[[kernel]] void {name}(\n" + ",\n".join(buffers + attributes) + f") {{\n{kernel.source}\n}}\n"
    if kernel.template:
        instance = name + _metal_parameters(launch)
        text += f'\ntemplate [[host_name("{name}")]] [[kernel]] decltype({instance}) {instance};\n'
    return text


def metal_buffers(launch: Launch) -> list[str]:
    """The declarations of a launch's buffers, `const device float* x`, in the signature's order."""
    kernel, body = launch.kernel, launch.kernel.source
    lines = []
    for name, array in zip(kernel.inputs, launch.inputs, strict=True):
        space = "constant" if array.size < _CONSTANT_BELOW else "device"
        lines.append(f"const {space} {metal_type(array.dtype)}* {name}")
        lines += [f"const constant {kind}{name}{end}" for end, kind in _METAL_EXTRAS if name + end in body]
    outputs = zip(kernel.outputs, launch.output_dtypes, strict=True)
    return lines + [f"device {output_type(kernel, dtype)}* {name}" for name, dtype in outputs]


def golden_text(launch: Launch, backend: str = "metal") -> str:
    """The text of a launch as MLX writes it, traced; nothing is compiled or run. `cuda` needs an MLX with CUDA."""
    build = cuda.built if backend == "cuda" else metal.built
    found: list[str] = []

    def look(part: dict[str, Any]) -> None:
        if part.get("name") == "CustomKernel":
            found.append(part["arguments"][1])

    def call(*inputs: mx.array) -> list[mx.array]:
        outputs: list[mx.array] = build(launch.kernel)(**{**arguments(launch), "inputs": list(inputs)})
        return outputs

    mx.export_function(look, call, *launch.inputs)
    return found[0]


def cuda_text(launch: Launch) -> str:
    """The CUDA text of a launch: Metal's vocabulary, headers, signature, body. Raises as `metal_text`."""
    kernel, body = launch.kernel, cuda.cuda_source(launch.kernel)
    lines = []
    for name, array in zip(kernel.inputs, launch.inputs, strict=True):
        lines.append(f"const {_cuda_type(array.dtype)}* {name}")
        lines += [f"const __grid_constant__ {kind} {name}{end}" for end, kind in _CUDA_EXTRAS if name + end in body]
    outputs = zip(kernel.outputs, launch.output_dtypes, strict=True)
    lines += [f"{_cuda_type(dtype)}* {name}" for name, dtype in outputs]
    parameters = "".join(_cuda_parameter(name, launch.template[name]) for name in kernel.template)
    return (
        f"{_CUDA_START}{cuda.cuda_header(kernel)}namespace mlx::core::cu {{\n\nnamespace cg = cooperative_groups;\n\n"
        f"__global__ void {_cuda_name(launch)}(\n" + ",\n".join(f"    {line}" for line in lines) + ") {\n"
        f"{parameters}{chr(10) if parameters else ''}{body}\n}}\n\n}} // namespace mlx::core::cu\n"
    )


_METAL_EXTRAS = (("_shape", "int* "), ("_strides", "int64_t* "), ("_ndim", "int& "))
_CUDA_EXTRAS = (("_shape", "Shape"), ("_strides", "Strides"), ("_ndim", "int"))


def metal_type(dtype: mx.Dtype) -> str:
    """A dtype as MLX's Metal text writes it."""
    return _type(dtype, _METAL_TYPES)


def output_type(kernel: Kernel, dtype: mx.Dtype) -> str:
    """What a kernel's outputs of a dtype point to in MLX's Metal text."""
    kind = metal_type(dtype)
    return f"atomic<{kind}>" if kernel.atomic_outputs else kind


def _cuda_type(dtype: mx.Dtype) -> str:
    return _type(dtype, _CUDA_TYPES)


def _type(dtype: mx.Dtype, names: dict[str, str]) -> str:
    name = str(dtype).removeprefix("mlx.core.")
    if _INTEGER.fullmatch(name):
        return f"{name}_t"
    if name not in names:
        raise ValueError(f"kernels have no arrays of dtype {name}")
    return names[name]


def _kind(parameter: Parameter) -> str:
    return "typename" if isinstance(parameter, mx.Dtype) else type(parameter).__name__


def _metal_parameters(launch: Launch) -> str:
    values = (launch.template[name] for name in launch.kernel.template)
    return f"<{', '.join(metal_type(v) if isinstance(v, mx.Dtype) else str(int(v)) for v in values)}>"


def _metal_name(launch: Launch) -> str:
    """MLX's name for the kernel: it tells apart whatever makes a difference to the text."""
    name = f"custom_kernel_{launch.kernel.name}"
    if launch.kernel.template:
        parameters = _metal_parameters(launch).replace(", ", "_")
        name += "_" + re.sub(r"[^A-Za-z0-9_]", "_", parameters)[:-1]
    for array in launch.inputs:
        name += f"_{metal_type(array.dtype)}" + ("c" if array.size < _CONSTANT_BELOW else "")
    return name + "".join(f"_{metal_type(dtype)}" for dtype in launch.output_dtypes)


def _cuda_name(launch: Launch) -> str:
    name = f"custom_kernel_{launch.kernel.name}"
    for parameter in (launch.template[name] for name in launch.kernel.template):
        if isinstance(parameter, mx.Dtype):
            name += f"_{metal_type(parameter)}"
        else:
            name += ("_t" if parameter else "_f") if isinstance(parameter, bool) else f"_{parameter}"
    return name


def _cuda_parameter(name: str, parameter: Parameter) -> str:
    if isinstance(parameter, mx.Dtype):
        return f"  using {name} = {_cuda_type(parameter)};\n"
    kind = "bool" if isinstance(parameter, bool) else "int"
    return f"  constexpr {kind} {name} = {str(parameter).lower()};\n"
