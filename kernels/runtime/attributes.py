"""What Metal tells a thread about itself, by the names that MLX injects into a body that mentions them."""

from __future__ import annotations

METAL_ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": "uint",
    "dispatch_simdgroups_per_threadgroup": "uint",
    "dispatch_threads_per_threadgroup": "uint3",
    "grid_origin": "uint3",
    "grid_size": "uint3",
    "quadgroup_index_in_threadgroup": "uint",
    "quadgroups_per_threadgroup": "uint",
    "simdgroup_index_in_threadgroup": "uint",
    "simdgroups_per_threadgroup": "uint",
    "thread_execution_width": "uint",
    "thread_index_in_quadgroup": "uint",
    "thread_index_in_simdgroup": "uint",
    "thread_index_in_threadgroup": "uint",
    "thread_position_in_grid": "uint3",
    "thread_position_in_threadgroup": "uint3",
    "threadgroup_position_in_grid": "uint3",
    "threadgroups_per_grid": "uint3",
    "threads_per_grid": "uint3",
    "threads_per_simdgroup": "uint",
    "threads_per_threadgroup": "uint3",
}
"""Name: type, in the order in which MLX's signature has them."""

_THREADS = "(blockDim.x * blockDim.y * blockDim.z)"
_INDEX = "(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))"


def _triple(text: str) -> str:
    return "(" + ", ".join(text.replace("?", axis) for axis in "xyz") + ")"


CUDA_VALUES = {
    "dispatch_quadgroups_per_threadgroup": f"{_THREADS} / 4",
    "dispatch_simdgroups_per_threadgroup": f"{_THREADS} / 32",
    "dispatch_threads_per_threadgroup": _triple("blockDim.?"),
    "grid_origin": "(0, 0, 0)",
    "grid_size": _triple("gridDim.? * blockDim.?"),
    "quadgroup_index_in_threadgroup": f"{_INDEX} / 4",
    "quadgroups_per_threadgroup": f"{_THREADS} / 4",
    "simdgroup_index_in_threadgroup": f"{_INDEX} / 32",
    "simdgroups_per_threadgroup": f"{_THREADS} / 32",
    "thread_execution_width": "32",
    "thread_index_in_quadgroup": f"{_INDEX} % 4",
    "thread_index_in_simdgroup": f"{_INDEX} % 32",
    "thread_index_in_threadgroup": _INDEX,
    "thread_position_in_grid": _triple("blockIdx.? * blockDim.? + threadIdx.?"),
    "thread_position_in_threadgroup": _triple("threadIdx.?"),
    "threadgroup_position_in_grid": _triple("blockIdx.?"),
    "threadgroups_per_grid": _triple("gridDim.?"),
    "threads_per_grid": _triple("gridDim.? * blockDim.?"),
    "threads_per_simdgroup": "32",
    "threads_per_threadgroup": _triple("blockDim.?"),
}
"""The same in CUDA, where a launch's grid is whole threadgroups of whole simdgroups, as `Launch.check` sees to."""


def attributes_in(source: str) -> list[str]:
    """Attributes that MLX injects into a body: those whose names occur anywhere in it, comments included."""
    return [name for name in METAL_ATTRIBUTES if name in source]
