"""Choosing a back-end, what a launch must be, comparing outputs, and the Metal body as CUDA gets it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import numpy as np
import pytest

from tqcli.errors import InputError
from tqcli.kernels.runtime import (
    Kernel,
    Launch,
    Use,
    added,
    backend,
    chosen,
    cuda,
    metal,
    reset_used,
    run,
    set_backend,
    used,
)
from tqcli.kernels.runtime.attributes import CUDA_VALUES, METAL_ATTRIBUTES
from tqcli.kernels.runtime.case import close, each, exactly, to_numpy
from tqcli.kernels.runtime.cuda import shared_declarations
from tqcli.kernels.runtime.registry import cases, kernels, operations
from tqcli.kernels.runtime.text import cuda_text

AUTO = "MLX computes on this GPU"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    set_backend(None)
    reset_used()
    yield
    set_backend(None)
    reset_used()


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where MLX computes on an NVIDIA GPU."""
    monkeypatch.setattr(backend, "available", lambda: ("cuda", "mlx"))
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "available", lambda: ("mlx",))


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    body = tmp_path / "twice.metal"
    body.write_text("uint i = thread_position_in_grid.x;\nout[i] = T(2) * x[i];\n")
    kernel = Kernel("twice", body, ("x",), ("out",), ("T", "N", "EVEN"))
    template = {"T": mx.bfloat16, "N": 63, "EVEN": False}
    return Launch(kernel, [mx.zeros((64,), mx.bfloat16)], template, (64, 1, 1), (32, 1, 1), [(64,)], [mx.bfloat16])


@pytest.mark.usefixtures("without_gpu")
def test_without_a_gpu_plain_operations_run_and_it_is_counted() -> None:
    assert [chosen("pack", 5), chosen("pack", 7), chosen("attend", 1)] == ["mlx"] * 3
    assert used() == [Use("attend", "mlx", "MLX finds no GPU", 1), Use("pack", "mlx", "MLX finds no GPU", 2)]
    reset_used()
    assert used() == []


@pytest.mark.usefixtures("without_gpu")
def test_parts_of_the_work_are_counted_apart_and_added() -> None:
    chosen("pack", 5)
    before = used()
    assert used(before) == []
    assert [chosen("pack", 5), chosen("attend", 5), chosen("pack", 5, "mlx")] == ["mlx"] * 3
    part = used(before)
    assert part == [
        Use("attend", "mlx", "MLX finds no GPU", 1),
        Use("pack", "mlx", "MLX finds no GPU", 1),
        Use("pack", "mlx", "named by the call", 1),
    ]
    assert added([part, before]) == used() == added([used()])
    assert added([]) == []


@pytest.mark.usefixtures("without_gpu")
def test_a_back_end_that_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--backend metal: MLX finds no such device; this machine has mlx, auto"):
        set_backend("metal")
    with pytest.raises(InputError, match="--backend opencl: there is no such back-end"):
        set_backend("opencl")
    with pytest.raises(ValueError, match="pack, backend 'cuda': MLX finds no such device"):
        chosen("pack", 5, "cuda")
    monkeypatch.setenv(backend.VARIABLE, "metal")
    with pytest.raises(InputError, match="TQ_BACKEND is metal: MLX finds no such device"):
        chosen("pack", 5)
    assert used() == []


@pytest.mark.usefixtures("with_cuda")
def test_auto_takes_the_gpu_from_the_crossover_size_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend.CROSSOVER, "pack", 100)
    assert [chosen("pack", 99), chosen("pack", 100), chosen("other", 1), chosen("pack", 500, "auto")] == [
        "mlx",
        "cuda",
        "cuda",
        "cuda",
    ]
    assert Use("pack", "mlx", "fewer than 100 elements: a launch costs more than it saves", 1) in used()
    assert Use("pack", "cuda", AUTO, 2) in used()


@pytest.mark.usefixtures("with_cuda")
def test_what_is_named_wins_the_call_first_then_the_option_then_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend.CROSSOVER, "pack", 100)
    monkeypatch.setenv(backend.VARIABLE, "mlx")
    assert chosen("pack", 500) == "mlx"
    set_backend("cuda")
    assert chosen("pack", 1) == "cuda"
    assert chosen("pack", 1, "mlx") == "mlx"
    reasons = {use.reason for use in used()}
    assert reasons == {"named by TQ_BACKEND", "named by --backend", "named by the call"}
    set_backend("auto")
    assert chosen("pack", 500) == "cuda"


@pytest.mark.usefixtures("with_cuda")
def test_a_call_that_the_kernel_cannot_take_is_told_not_hidden() -> None:
    assert chosen("pack", 500, unsupported="16 bits") == "mlx"
    set_backend("cuda")
    assert chosen("pack", 500, unsupported="16 bits") == "mlx"
    assert used() == [Use("pack", "mlx", "16 bits", 2)]
    with pytest.raises(ValueError, match="pack has no cuda kernel for this call: 16 bits"):
        chosen("pack", 500, "cuda", unsupported="16 bits")


@pytest.mark.usefixtures("with_cuda")
def test_on_mlx_cpu_device_no_gpu_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
    assert chosen("pack", 500) == "mlx"
    assert [use.reason for use in used()] == ["MLX was told to compute on the CPU"]


@pytest.mark.usefixtures("without_gpu")
def test_calls_of_several_threads_are_all_counted() -> None:
    threads = [threading.Thread(target=lambda: [chosen("pack", 1) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [use.calls for use in used()] == [800]


def test_a_launch_runs_on_gpus_only(launch: Launch) -> None:
    with pytest.raises(ValueError, match="twice runs on metal or cuda, not on 'mlx'"):
        run(launch, "mlx")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (65, 1, 1)}, r"grid \(65, 1, 1\) is not a multiple"),
        ({"grid": (0, 1, 1)}, "not a multiple"),
        ({"grid": (1 << 31, 1, 1)}, "2147483648 threads along x, more than 2147483647"),
        ({"grid": (32, 1, 65536)}, "65536 threadgroups along z, more than 65535"),
        ({"threadgroup": (16, 1, 1)}, "a multiple of 32 threads up to 1024, not 16"),
        ({"grid": (2048, 1, 1), "threadgroup": (2048, 1, 1)}, "not 2048"),
        ({"inputs": [mx.array(1.0)]}, "none 0-dimensional"),
        ({"inputs": []}, "inputs"),
        ({"template": {"T": mx.float16}}, r"template parameters \['T'\], not \['EVEN', 'N', 'T'\]"),
        ({"template": {"T": mx.float16, "N": -1, "EVEN": True}}, "negative"),
        ({"output_dtypes": []}, "output"),
    ],
)
def test_what_back_ends_would_take_differently_is_refused(launch: Launch, change: dict, message: str) -> None:
    launch.check()
    with pytest.raises(ValueError, match=message):
        replace(launch, **change).check()


def test_outputs_are_compared_element_by_element() -> None:
    one = np.array([[1, 2], [3, 4]], dtype=np.uint32)
    other = np.array([[1, 2], [7, 9]], dtype=np.uint32)
    assert exactly([one], [one]) is None
    assert exactly([one, other], [one, one]) == "output 1: 2 of 4 elements differ, first at [1, 0]: 7, not 3"
    assert exactly([one], [one[:1]]) == "shape (2, 2), not (1, 2)"
    assert exactly([], [one]) == "0 outputs, not 1"
    # Counted without a sign, 1 - 2 is large.
    assert close(0.0, 1.0)([one], [one + np.uint32(1)]) is None


def test_close_takes_nan_and_infinities_only_where_they_are_expected() -> None:
    expected = np.array([1.0, np.nan, np.inf, -np.inf, 0.0], dtype=np.float32)
    assert close(1e-3)([expected * np.float32(1.0005)], [expected]) is None
    for index, wrong in ((0, np.nan), (1, 1.0), (2, -np.inf), (3, 3e38), (4, np.inf)):
        changed = expected.copy()
        changed[index] = wrong
        assert f"first at [{index}]" in (close(1e-3, 1.0)([changed], [expected]) or "")


def test_each_output_may_have_a_rule_of_its_own() -> None:
    rule = each(exactly, close(0.1))
    codes, scales = np.array([1, 2]), np.array([1.0, 2.0])
    assert rule([codes, scales * 1.05], [codes, scales]) is None
    assert (rule([codes + 1, scales], [codes, scales]) or "").startswith("output 0: 2 of 2")


def test_bfloat16_becomes_float32() -> None:
    x = to_numpy(mx.array([1.0, -2.5], dtype=mx.bfloat16))
    assert x.dtype == np.float32
    assert x.tolist() == [1.0, -2.5]


@pytest.mark.parametrize(
    ("metal", "cuda"),
    [
        ("threadgroup float a[N];", "__shared__ float a[N];"),
        ("  threadgroup T a[2 * N], b[4];", "  __shared__ T a[2 * N], b[4];"),
        ("threadgroup\n  metal::uint4 a;", "__shared__\n  metal::uint4 a;"),
        ("threadgroup vec<T, 4> a[N][2];", "__shared__ vec<T, 4> a[N][2];"),
        ("threadgroup unsigned char a[3];", "__shared__ unsigned char a[3];"),
        ("threadgroup volatile uint a[3];", "__shared__ volatile uint a[3];"),
        ("threadgroup struct P a[3];", "__shared__ struct P a[3];"),
        ("threadgroup alignas(16) float a[3];", "__shared__ alignas(16) float a[3];"),
        ("threadgroup float a[3]; // threadgroup here", "__shared__ float a[3]; // threadgroup here"),
        ("threadgroup float* p = a;", "threadgroup float* p = a;"),
        ("threadgroup auto& p = a[0];", "threadgroup auto& p = a[0];"),
        ("float threadgroup* p = a;", "float threadgroup* p = a;"),
        ("void f(threadgroup float (&a)[4]) {}", "void f(threadgroup float (&a)[4]) {}"),
        ("const threadgroup float *p = a;", "const threadgroup float *p = a;"),
        (
            "void f(threadgroup float a[4], threadgroup T b[N]) {}",
            "void f(threadgroup float a[4], threadgroup T b[N]) {}",
        ),
        ("threadgroup_barrier(mem_flags::mem_threadgroup);", "threadgroup_barrier(mem_flags::mem_threadgroup);"),
    ],
)
def test_only_declarations_of_threadgroup_memory_become_shared(metal: str, cuda: str) -> None:
    assert shared_declarations(metal, "body.metal") == cuda


@pytest.mark.parametrize(
    "text",
    [
        "threadgroup float (a)[64];",
        "float threadgroup a[64];",
        "#define SHARED threadgroup",
        "#define ROOM(name) threadgroup float name[64];",
        "threadgroup float a[64], *p = a;",
        "threadgroup float sum = 0.0f;",
    ],
)
def test_other_words_for_threadgroup_memory_are_refused_at_their_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^body.metal:2: '.*' is no plain declaration in threadgroup memory; write"):
        shared_declarations(f"int n;\n{text}\nint m;\n", "body.metal")


def test_cuda_text_has_the_body_with_its_line_numbers_after_types_and_attributes(launch: Launch) -> None:
    text = cuda_text(launch)
    assert text.index("namespace metal {") < text.index("__global__ void custom_kernel_twice_bfloat16_t_63_f(")
    kernel = text[text.index("__global__") :]
    assert kernel.startswith(
        "__global__ void custom_kernel_twice_bfloat16_t_63_f(\n"
        "    const __nv_bfloat16* x,\n"
        "    __nv_bfloat16* out) {\n"
        "  using T = __nv_bfloat16;\n"
        "  constexpr int N = 63;\n"
        "  constexpr bool EVEN = false;\n\n"
        "  TQ_METAL_NAMES\n"
    )
    assert '  {\n#line 1 "twice.metal"\nuint i = thread_position_in_grid.x;\nout[i] = T(2) * x[i];\n' in kernel
    assert "const uint3 thread_position_in_grid(blockIdx.x * blockDim.x + threadIdx.x, " in kernel
    assert "thread_index_in_simdgroup" not in kernel


@pytest.mark.parametrize("of", [cuda, metal], ids=["cuda", "metal"])
def test_a_kernel_is_built_once_and_anew_after_an_edit(
    of: ModuleType, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    for name in ("cuda_kernel", "metal_kernel"):
        monkeypatch.setattr(mx.fast, name, lambda *, source, **_: texts.append(source) or len(texts))
    assert [of.built(launch.kernel) for _ in range(3)] == [1, 1, 1]
    launch.kernel.body.write_text("out[thread_position_in_grid.x] = T(3);\n")
    assert [of.built(launch.kernel) for _ in range(3)] == [2, 2, 2]
    assert "T(2) * x[i]" in texts[0]
    assert "T(3)" in texts[1]


def test_cuda_text_passes_shapes_that_the_body_mentions(tmp_path: Path) -> None:
    body = tmp_path / "shape.metal"
    body.write_text("out[0] = x_shape[0] + x_ndim;")
    kernel = Kernel("shape", body, ("x",), ("out",))
    launch = Launch(kernel, [mx.zeros((3,))], {}, (32, 1, 1), (32, 1, 1), [(1,)], [mx.int32])
    assert (
        "(\n    const float* x,\n    const __grid_constant__ Shape x_shape,\n"
        "    const __grid_constant__ int x_ndim,\n    int32_t* out) {\n" in cuda_text(launch)
    )


def test_cuda_gives_every_attribute_that_metal_has() -> None:
    assert CUDA_VALUES.keys() == METAL_ATTRIBUTES.keys()


def test_every_name_that_cuda_takes_from_metal_is_defined_there(launch: Launch) -> None:
    text = cuda_text(launch)
    head, names = text.split("#define TQ_METAL_NAMES")
    names = names.split("#define METAL_FUNC")[0]
    wanted = {word.strip(" ;\\\n") for word in names.replace("using metal::", "\n").split("\n") if ";" in word}
    vectors = {f"{kind}{n}" for kind in ("float", "half", "uint", "uchar", "bfloat") for n in (2, 3, 4)}
    assert vectors <= wanted
    assert len(wanted) > 100
    assert all(name.rstrip("234") in head for name in wanted if not name.startswith("namespace"))


def test_operations_are_the_folders_that_have_cases() -> None:
    folder = Path(backend.__file__).parent.parent
    assert operations() == tuple(sorted(p.parent.name for p in folder.glob("*/cases.py")))
    assert "bit_pack" in operations()
    names = {kernel.name: operation for operation, kernel in kernels().values()}
    assert set(names.values()) == set(operations())
    assert {path.resolve() for path in folder.glob("*/*.metal")} == {k.body.resolve() for _, k in kernels().values()}
    assert all(case.operation == "bit_pack" for case in cases("bit_pack"))
