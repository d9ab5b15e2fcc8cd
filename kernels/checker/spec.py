"""A user's kernel: a body and a YAML file that says what it is launched with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Literal

import mlx.core as mx
import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from tqcli.kernels.checker.harmless import Harmless
from tqcli.kernels.checker.names import refuse_names
from tqcli.kernels.checker.spec_file import read
from tqcli.kernels.runtime.kernel import ATOMIC_DTYPES, Kernel, Launch, Parameter
from tqcli.kernels.runtime.shared_memory import without_comments

_INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_DTYPES = ("float32", "float16", "bfloat16", "bool", *_INTEGERS)
_MOST_ELEMENTS = 1 << 24

Side = Annotated[int, Field(ge=1, le=2**31 - 1)]
Shape = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_CHOICES = {
    r"template\.\w+": f"a whole number, true, false or one of {', '.join(_DTYPES)}",
    r"inputs\.\w+\.values": "zeros, ones, arange, normal or a list of numbers",
}


_SIGNATURE = re.compile(r"(?:\[\[\s*kernel\s*\]\]|\bkernel\b)\s*(?:\[\[[^]]*\]\]\s*)*void\s+(\w+)\s*\(")


def _names_dtype(value: bool | int | str) -> bool | int | str:
    if isinstance(value, str) and value not in _DTYPES:
        raise ValueError(f"{value!r} is not a whole number, true, false or one of {', '.join(_DTYPES)}")
    return value


Value = Annotated[StrictBool | StrictInt | StrictStr, AfterValidator(_names_dtype)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Array(_Strict):
    dtype: Literal[_DTYPES]  # type: ignore[valid-type]
    shape: Shape

    @field_validator("shape")
    @classmethod
    def _is_small(cls, shape: list[int]) -> list[int]:
        count = prod(max(1, side) for side in shape)  # of an empty array too: no library takes any side
        if count > _MOST_ELEMENTS:
            raise ValueError(f"{count} elements are more than {_MOST_ELEMENTS}, which is plenty for a check")
        return shape

    @property
    def mlx_dtype(self) -> mx.Dtype:
        dtype: mx.Dtype = getattr(mx, self.dtype + "_" * (self.dtype == "bool"))
        return dtype


class Input(_Array):
    """An input and what it holds."""

    values: Literal["zeros", "ones", "arange", "normal"] | list[int | float] = "normal"
    """A list gives each element in row-major order; normal: mean 0, variance 1; of integers any from 0 to 255,
    of booleans either."""
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _fits(self) -> Input:
        if isinstance(self.values, list):
            if len(self.values) != prod(self.shape):
                elements = f"which has {prod(self.shape)} elements"
                raise ValueError(f"{len(self.values)} values for shape {self.shape}, {elements}")
            for value in self.values:
                check_fits(value, self.dtype)
        return self

    def array(self) -> mx.array:
        count = prod(self.shape)
        if isinstance(self.values, list):
            numbers = np.array(self.values, dtype=self.dtype if self.dtype in _INTEGERS else np.float64)
        elif self.values == "normal":
            random = np.random.default_rng(self.seed)
            whole = 2 if self.dtype == "bool" else 256 if self.dtype in _INTEGERS else 0
            numbers = random.integers(0, whole, count) if whole else random.standard_normal(count)
        else:
            numbers = np.arange(count) if self.values == "arange" else np.full(count, int(self.values == "ones"))
        kind = np.dtype("float64" if self.dtype in ("bfloat16", "bool") else self.dtype)
        exact = numbers.astype(kind)
        array = mx.array(exact.astype(np.float32)) if kind == np.float64 else mx.array(exact)
        return array.astype(self.mlx_dtype).reshape(self.shape)


def check_fits(value: float, dtype: str) -> None:
    """Raises `ValueError` where an array of this dtype can't hold the value: an integer one any but its range's."""
    if dtype in _INTEGERS:
        limits = np.iinfo(dtype)
        if not float(value).is_integer() or not limits.min <= int(value) <= limits.max:
            raise ValueError(f"{value} is not one of {dtype}'s integers, {limits.min} to {limits.max}")
    elif dtype == "bool" and value not in (0, 1):
        raise ValueError(f"{value} is not a bool; write 0 or 1")


class Output(_Array):
    """An output; what it holds at first is `init_value`, or nothing."""


class Spec(_Strict):
    """What a body is launched with."""

    inputs: dict[Name, Input] = Field(default_factory=dict)
    outputs: Annotated[dict[Name, Output], Field(min_length=1)]
    grid: Annotated[list[Side], Field(min_length=3, max_length=3)]
    """Threads in all, as `mx.fast.metal_kernel` has it."""
    threadgroup: Annotated[list[Side], Field(min_length=3, max_length=3)]
    template: dict[Name, Value] = Field(default_factory=dict)
    """Integers, booleans and dtypes by name."""
    headers: list[str] = Field(default_factory=list)
    """Files beside the spec that come before the body."""
    init_value: float | None = None
    atomic_outputs: bool = False
    """Whether the outputs are `device atomic<T>*`."""
    harmless: list[Harmless] = Field(default_factory=list)
    """Mistakes of `--mutate` that change nothing that matters."""

    @model_validator(mode="after")
    def _fits(self) -> Spec:
        refuse_names(list(self.inputs), list(self.outputs), self.template)
        for name, output in self.outputs.items():
            if self.init_value is not None:
                try:
                    check_fits(self.init_value, output.dtype)
                except ValueError as e:
                    raise ValueError(f"init_value, for {name}: {e}") from e
            if self.atomic_outputs and output.dtype not in ATOMIC_DTYPES:
                kinds = ", ".join(ATOMIC_DTYPES)
                raise ValueError(
                    f"outputs.{name}: Metal has no atomic {output.dtype}; with atomic_outputs write {kinds}"
                )
        return self

    @field_validator("threadgroup")
    @classmethod
    def _fits_a_gpu(cls, sides: list[int]) -> list[int]:
        if prod(sides) > 1024:
            raise ValueError(f"a threadgroup has at most 1024 threads, not {prod(sides)}")
        return sides


@dataclass(frozen=True)
class Own:
    """A user's kernel, as its spec describes it."""

    launch: Launch
    harmless: Sequence[Harmless]


def user_kernel(body: Path, spec: Path) -> Own:
    """What a spec describes. Raises `ValueError` with one line that names the file and what is wrong."""
    for path in (body, spec):
        if not path.is_file():
            raise ValueError(f"{path} is not a file")
    described = read(spec, Spec, _CHOICES)
    return Own(_launch(body, spec, described), described.harmless)


def _launch(body: Path, spec: Path, described: Spec) -> Launch:
    headers = [spec.parent / name for name in described.headers]
    for path in (body, *headers):
        _refuse_unreadable(path)
    _refuse_signature(body)
    kernel = Kernel(
        "user_" + re.sub(r"[^A-Za-z0-9_]", "_", body.stem),
        body.resolve(),
        tuple(described.inputs),
        tuple(described.outputs),
        tuple(described.template),
        tuple(str(path.resolve()) for path in headers),
        described.atomic_outputs,
    )
    x, y, z = described.grid
    i, j, k = described.threadgroup
    return Launch(
        kernel,
        [each.array() for each in described.inputs.values()],
        {name: _parameter(value) for name, value in described.template.items()},
        (x, y, z),
        (i, j, k),
        [tuple(each.shape) for each in described.outputs.values()],
        [each.mlx_dtype for each in described.outputs.values()],
        described.init_value,
    )


def _parameter(value: bool | int | str) -> Parameter:
    if not isinstance(value, str):
        return value
    dtype: mx.Dtype = getattr(mx, value + "_" * (value == "bool"))
    return dtype


def _refuse_unreadable(path: Path) -> None:
    try:
        path.read_text(encoding="ascii")
    except FileNotFoundError:
        raise ValueError(f"header {path} is not there; headers lie beside the spec") from None
    except UnicodeDecodeError as e:
        line = path.read_bytes()[: e.start].count(b"\n") + 1
        raise ValueError(f"{path}:{line}: Metal bodies have to be plain ASCII") from e


def _refuse_signature(body: Path) -> None:
    text = without_comments(body.read_text(encoding="ascii"))
    if whole := _SIGNATURE.search(text):
        line = text.count("\n", 0, whole.start()) + 1
        raise ValueError(
            f"{body}:{line}: {whole[1]} is a complete kernel; the file has to be the bare body, as "
            "mx.fast.metal_kernel takes it: what stands between the braces, with the names of the spec"
        )
