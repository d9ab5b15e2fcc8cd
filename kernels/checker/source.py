"""The C++ text that runs a body on a CPU: the body as it stands, in a function of the right parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import mlx.core as mx

from tqcli.kernels.checker.finding import file_name
from tqcli.kernels.runtime.attributes import METAL_ATTRIBUTES, attributes_in
from tqcli.kernels.runtime.kernel import INCLUDES, Kernel, Launch, Parameter
from tqcli.kernels.runtime.shared_memory import declarations, without_comments
from tqcli.kernels.runtime.text import metal_type, output_type

Texts = Mapping[Path, str]
"""Other texts for some files, for mutants."""

PLAIN_FLOAT = re.compile(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?(?![\w.])")
"""A floating-point literal without a suffix: a float in Metal, a double in C++ and CUDA."""

# What a thread is told of itself; `at` is a tq_position.
_VALUES = {
    "dispatch_quadgroups_per_threadgroup": "(volume(at->nominal) + 3) / 4",
    "dispatch_simdgroups_per_threadgroup": "(volume(at->nominal) + 31) / 32",
    "dispatch_threads_per_threadgroup": "triple(at->nominal)",
    "grid_origin": "uint3(0)",
    "grid_size": "triple(at->grid)",
    "quadgroup_index_in_threadgroup": "at->index / 4",
    "quadgroups_per_threadgroup": "(volume(at->size) + 3) / 4",
    "simdgroup_index_in_threadgroup": "at->index / 32",
    "simdgroups_per_threadgroup": "(volume(at->size) + 31) / 32",
    "thread_execution_width": "32",
    "thread_index_in_quadgroup": "at->index % 4",
    "thread_index_in_simdgroup": "at->index % 32",
    "thread_index_in_threadgroup": "at->index",
    "thread_position_in_grid": "triple(at->group) * triple(at->nominal) + in_group(at)",
    "thread_position_in_threadgroup": "in_group(at)",
    "threadgroup_position_in_grid": "triple(at->group)",
    "threadgroups_per_grid": "triple(at->groups)",
    "threads_per_grid": "triple(at->grid)",
    "threads_per_simdgroup": "32",
    "threads_per_threadgroup": "triple(at->size)",
}
_SHAPES = {"_shape": "const int*", "_strides": "const int64_t*", "_ndim": "const int&"}

_PREAMBLE = """\
static inline uint3 triple(const uint32_t* v) { return uint3(v[0], v[1], v[2]); }
static inline uint volume(const uint32_t* v) { return v[0] * v[1] * v[2]; }
static inline uint3 in_group(const tq_position* at) {
  const uint32_t* size = at->size;
  return uint3(at->index % size[0], at->index / size[0] % size[1], at->index / size[0] / size[1]);
}
"""

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<metal_\w+>[^\n]*", re.MULTILINE)
_BLANK = r"(?:[ \t]|\\\n)*"
_ANY_INCLUDE = re.compile(
    rf"^{_BLANK}(?:#|%:){_BLANK}(?:include|include_next|import|embed)\b{_BLANK}([^\n]*)", re.MULTILINE
)


@dataclass(frozen=True)
class Instance:
    """What makes the compiler produce code of its own for a launch: types and template values."""

    inputs: tuple[mx.Dtype, ...]
    outputs: tuple[mx.Dtype, ...]
    template: tuple[Parameter, ...]

    @classmethod
    def of(cls, launch: Launch) -> Instance:
        values = tuple(launch.template[name] for name in launch.kernel.template)
        return cls(tuple(x.dtype for x in launch.inputs), tuple(launch.output_dtypes), values)


def files_of(kernel: Kernel) -> list[Path]:
    """The headers in order, and the body."""
    return [*(INCLUDES / name for name in kernel.headers), kernel.body]


def text_of(path: Path, texts: Texts) -> str:
    """The file's text, or the one that stands for it."""
    return texts[path] if path in texts else path.read_text(encoding="ascii")


def refuse_text(path: Path) -> None:
    """Raises `ValueError` with a line of a file for what can't be compiled as Metal would: includes of other files than
    Metal's own, since MLX compiles a string; and threadgroup memory that `shared_memory.declarations` doesn't know.
    """
    text, name = path.read_text(encoding="ascii"), file_name(path)
    for match in _ANY_INCLUDE.finditer(_INCLUDE.sub("", without_comments(text))):
        line = text.count("\n", 0, match.start(1)) + 1
        raise ValueError(
            f"{name}:{line}: includes {match[1].strip()}, but MLX compiles the body from a string, beside no file; "
            "name headers in the spec instead"
        )
    declarations(text, name)


def for_cpp(text: str) -> str:
    """Metal's text as other compilers take it to be the same; lines stay.

    Floats without a suffix get one, and includes of Metal's own headers, which stand before every body, are left out.
    """
    return PLAIN_FLOAT.sub(r"\g<0>f", _INCLUDE.sub("", text))


def shape_parameters(kernel: Kernel, body: str) -> list[tuple[str, str]]:
    """The inputs' names and suffixes that MLX adds, such as ("x", "_shape"), in order."""
    return [(name, suffix) for name in kernel.inputs for suffix in _SHAPES if name + suffix in body]


def entry_name(number: int) -> str:
    """The symbol of an instance."""
    return f"tq_entry_{number}"


def stand_in(file: int) -> str:
    """A file's name to compilers, by its number among the kernel's files: a path may have any sign in it."""
    return f"/tq-file/{file}"


def translation_unit(kernel: Kernel, instances: Sequence[Instance], texts: Texts) -> str:
    """One function for each of the instances of a body, callable by the runner."""
    numbers = count()
    files = files_of(kernel)
    names = {path: stand_in(number) for number, path in enumerate(dict.fromkeys(files))}
    *headers, body = [(names[path], text_of(path, texts)) for path in files]
    shapes = shape_parameters(kernel, body[1])
    attributes = attributes_in(body[1])
    parts = ['#include "msl.h"\n', *(_numbered(*header, numbers) for header in headers)]
    parts += [
        '#line 1 "the checker"\n',
        _template(kernel, instances[0]),
        f"static void tq_body({_parameters(kernel, shapes, attributes)}) {{\n",
    ]
    parts += [_numbered(*body, numbers), '\n#line 1 "the checker"\n}\n', _PREAMBLE]
    parts += [_entry(kernel, i, instance, shapes, attributes) for i, instance in enumerate(instances)]
    return "".join(parts)


def _numbered(name: str, text: str, numbers: Iterator[int]) -> str:
    return f'#line 1 "{name}"\n{_with_threadgroup_arrays(for_cpp(text), numbers)}\n'


def _with_threadgroup_arrays(text: str, numbers: Iterator[int]) -> str:
    """Declarations in threadgroup memory as calls of the runner, on the lines where they stand."""
    out, end = [], 0
    for each in declarations(text, "the body"):
        calls = [
            f"typedef {each.kind} tq_type_{word} {extents}; "
            f"TQ_THREADGROUP({next(numbers)}, {word}, sizeof({each.kind}));"
            for word, extents in each.names
        ]
        lines = text.count("\n", each.start, each.end) - "".join(calls).count("\n")
        out += [text[end : each.start], " ".join(calls), "\n" * lines]
        end = each.end
    return "".join([*out, text[end:]])


def _template(kernel: Kernel, instance: Instance) -> str:
    kinds = [f"class tq_{name}_t" for name in (*kernel.inputs, *kernel.outputs)]
    kinds += [
        f"{_parameter_kind(value)} {name}" for name, value in zip(kernel.template, instance.template, strict=True)
    ]
    return f"template <{', '.join(kinds)}>\n"


def _parameter_kind(value: Parameter) -> str:
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "typename"


def _parameters(kernel: Kernel, shapes: list[tuple[str, str]], attributes: list[str]) -> str:
    parameters = []
    for name in kernel.inputs:
        parameters.append(f"const tq_{name}_t* {name}")
        parameters += [f"{_SHAPES[suffix]} {name}{suffix}" for owner, suffix in shapes if owner == name]
    output = "metal::atomic<tq_{0}_t>* {0}" if kernel.atomic_outputs else "tq_{0}_t* {0}"
    parameters += [output.format(name) for name in kernel.outputs]
    parameters += [f"{METAL_ATTRIBUTES[name]} {name}" for name in attributes]
    return ", ".join(parameters)


def _entry(
    kernel: Kernel, number: int, instance: Instance, shapes: list[tuple[str, str]], attributes: list[str]
) -> str:
    values, buffer = [], count()
    for name, dtype in zip(kernel.inputs, instance.inputs, strict=True):
        values.append(f"(const {metal_type(dtype)}*)buffers[{next(buffer)}]")
        for owner, suffix in shapes:
            if owner == name:
                star = "*" if suffix == "_ndim" else ""
                values.append(f"{star}({_SHAPES[suffix].replace('&', '*')})buffers[{next(buffer)}]")
    values += [f"({output_type(kernel, dtype)}*)buffers[{next(buffer)}]" for dtype in instance.outputs]
    values += [_VALUES[name] for name in attributes]
    types = [metal_type(dtype) for dtype in (*instance.inputs, *instance.outputs)]
    arguments = ", ".join([*types, *(_argument(value) for value in instance.template)])
    return (
        'extern "C" __attribute__((visibility("default"), no_sanitize("thread")))\n'
        f"void {entry_name(number)}(void* const* buffers, const tq_position* at) {{\n"
        f"  tq_body<{arguments}>({', '.join(values)});\n}}\n"
    )


def _argument(value: Parameter) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else metal_type(value)
