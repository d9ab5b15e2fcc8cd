"""Runs one launch of a compiled body in the runner, and reads what it reports."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import mlx.core as mx
import numpy as np

from tqcli.kernels.checker.compiler import CompilerError, runner
from tqcli.kernels.checker.finding import Finding, file_name
from tqcli.kernels.checker.processes import call
from tqcli.kernels.checker.source import entry_name, shape_parameters, stand_in
from tqcli.kernels.runtime.kernel import Launch, Size

_INPUT, _OUTPUT, _INITIALISED = 0, 1, 2
_FAILED = 3
"""The runner's exit code where it can't do its work."""
_NO_LINES = "its line isn't known without addr2line: apt install binutils"
_UNWRITTEN = 0xA5
"""The bytes of outputs that nothing was written to."""


@dataclass(frozen=True)
class Report:
    """One line of the runner's report, its places not yet looked up."""

    kind: str
    buffer: str
    file: str
    line: int
    address: int
    other_address: int
    other_role: str
    count: int
    text: str


@dataclass(frozen=True)
class Ran:
    """What the runner gave back."""

    outputs: list[np.ndarray]
    unwritten: list[np.ndarray]
    """Of each output, whether its elements, booleans of its shape, hold the bytes of what nothing was written to."""
    reports: list[Report]
    threadgroup_bytes: int


@dataclass(frozen=True)
class Buffer:
    """One parameter of a body and its content."""

    name: str
    role: int
    element: int
    data: bytes

    def packed(self) -> bytes:
        name = self.name.encode()
        return struct.pack("<3IQ", self.role, self.element, len(name), len(self.data)) + name + self.data


def buffers_of(launch: Launch, body: str) -> list[Buffer]:
    """What a body's parameters point to, in order. MLX has to be asked in the thread that made the arrays."""
    return [*_inputs(launch, body), *_outputs(launch)]


def execute(
    library: Path, number: int, launch: Launch, buffers: Sequence[Buffer], seconds: int, grid: Size | None = None
) -> Ran:
    """Runs instance `number` of a library. `grid` stands for the launch's own if given.

    Stops after `seconds` with a report of that. Raises `CompilerError` if the runner can't do its work at all.
    """
    ran, whole = _execute(library, number, launch, buffers, seconds, grid or launch.grid, by_byte=False)
    ended = not any(report.kind == "no end" for report in ran.reports)
    if ended and not whole:  # something was read or written in parts: once more, keeping book of each byte
        ran, _ = _execute(library, number, launch, buffers, seconds, grid or launch.grid, by_byte=True)
    return ran


def _execute(
    library: Path, number: int, launch: Launch, buffers: Sequence[Buffer], seconds: int, grid: Size, by_byte: bool
) -> tuple[Ran, bool]:
    group = [min(side, threads) for side, threads in zip(launch.threadgroup, grid, strict=True)]  # as MLX does
    request = struct.pack("<7I", *grid, *group, len(buffers))
    request += b"".join(buffer.packed() for buffer in buffers)
    command = [str(runner()), str(library), entry_name(number), str(seconds), *(["bytes"] if by_byte else [])]
    done = call(command, request)
    if done.returncode < 0:
        raise CompilerError(f"the runner of {launch.kernel.name} was ended by signal {-done.returncode}")
    if done.returncode == _FAILED and done.stderr:
        raise CompilerError(
            f"the runner failed on {launch.kernel.name}: {done.stderr.decode(errors='replace').strip()}"
        )
    try:
        return _response(launch, done.stdout)
    except (struct.error, ValueError):  # the body ended the program on a way that the runner can't know of
        outputs, unwritten = zip(*_arrays(launch, b"".join(b.data for b in buffers if b.role != _INPUT)), strict=True)
        report = Report("crash", "", "", 0, 0, 0, "", 1, "the body ends the program that runs it")
        return Ran(list(outputs), list(unwritten), [report], 0), True


def _response(launch: Launch, data: bytes) -> tuple[Ran, bool]:
    """Raises `ValueError` or `struct.error` if it isn't whole."""
    (length,) = struct.unpack_from("<Q", data)
    head, *lines = data[8 : 8 + length].decode().removesuffix("\n").split("\n")
    extent, threadgroup_bytes = head.split("\t")
    outputs, unwritten = zip(*_arrays(launch, data[8 + length :]), strict=True)
    reports = [_report(line) for line in lines]
    return Ran(list(outputs), list(unwritten), reports, int(threadgroup_bytes)), extent == "whole"


def _report(line: str) -> Report:
    kind, buffer, file, number, address, other, role, count, text = line.split("\t")
    return Report(kind, buffer, file, int(number), int(address), int(other), role, int(count), text)


def _bytes(array: mx.array) -> bytes:
    plain = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.ascontiguousarray(np.array(plain)).tobytes()


def _inputs(launch: Launch, body: str) -> Iterator[Buffer]:
    extras = shape_parameters(launch.kernel, body)
    for name, array in zip(launch.kernel.inputs, launch.inputs, strict=True):
        yield Buffer(name, _INPUT, array.dtype.size, _bytes(array))
        for suffix in (s for owner, s in extras if owner == name):
            yield _shape_buffer(name + suffix, suffix, array.shape)


def _shape_buffer(name: str, suffix: str, shape: tuple[int, ...]) -> Buffer:
    if suffix == "_strides":
        strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
        return Buffer(name, _INPUT, 8, np.array(strides, np.int64).tobytes())
    values = shape if suffix == "_shape" else (len(shape),)
    return Buffer(name, _INPUT, 4, np.array(values, np.int32).tobytes())


def _outputs(launch: Launch) -> Iterator[Buffer]:
    names = launch.kernel.outputs
    for name, shape, dtype in zip(names, launch.output_shapes, launch.output_dtypes, strict=True):
        if launch.init_value is None:
            yield Buffer(name, _OUTPUT, dtype.size, bytes([_UNWRITTEN]) * (prod(shape) * dtype.size))
        else:
            yield Buffer(name, _INITIALISED, dtype.size, _filled(shape, launch.init_value, dtype))


def _filled(shape: tuple[int, ...], value: float, dtype: mx.Dtype) -> bytes:
    """As MLX fills an output: `value` is a float32 to it. `mx.full` gives floats where integers are asked for."""
    if mx.issubdtype(dtype, mx.integer):
        limits, whole = mx.iinfo(dtype), int(np.float32(value))
        return np.full(shape, min(max(whole, limits.min), limits.max), _numpy_dtype(dtype)).tobytes()
    return _bytes(mx.full(shape, value, mx.float32).astype(dtype))


def _arrays(launch: Launch, data: bytes) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    start = 0
    for shape, dtype in zip(launch.output_shapes, launch.output_dtypes, strict=True):
        end = start + prod(shape) * dtype.size
        part, start = data[start:end], end
        fill = (np.frombuffer(part, np.uint8).reshape(*shape, dtype.size) == _UNWRITTEN).all(axis=-1)
        if dtype == mx.bfloat16:
            yield (np.frombuffer(part, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape), fill
        else:
            yield np.frombuffer(part, _numpy_dtype(dtype)).reshape(shape), fill


def _numpy_dtype(dtype: mx.Dtype) -> np.dtype:
    return np.dtype(str(dtype).removeprefix("mlx.core.").rstrip("_"))


def findings_of(
    reports: Iterable[Report], library: Path, files: Sequence[Path], first_mention: Mapping[str, tuple[str, int]]
) -> list[Finding]:
    """Reports with their lines in one of the `files`: headers, then the body, which is named as a whole where no line
    is known. `first_mention` tells the place of what has none: of outputs, by name.
    """
    known = list(reports)
    addresses = {a for report in known for a in (report.address, report.other_address) if a}
    paths = {stand_in(number): str(path) for number, path in enumerate(dict.fromkeys(files))}
    places = _places(library, sorted(addresses), paths)
    whole = (str(files[-1]), 0)
    found = []
    for report in known:
        file, line = paths.get(report.file, report.file), report.line
        if not file:
            file, line = places.get(report.address) or first_mention.get(report.buffer, whole)
        text = report.text
        if report.address and not places and _addr2line() is None:
            text += f"; {_NO_LINES}"
        other = places.get(report.other_address)
        if other and other != (file, line):
            where = f"line {other[1]}" if other[0] == file else f"{file_name(other[0])}:{other[1]}"
            text += f" ({report.other_role}: {where})"
        found.append(Finding(file_name(file), line, report.kind, report.buffer, text, report.count))
    return found


def _addr2line() -> str | None:
    return shutil.which("addr2line") or shutil.which("llvm-addr2line")


def _places(library: Path, addresses: list[int], paths: Mapping[str, str]) -> dict[int, tuple[str, int]]:
    """The path and line of each address: the innermost inlined function's that is in one of the files."""
    tool = _addr2line()
    if not addresses or tool is None:
        return {}
    asked = "\n".join(map(hex, addresses))
    done = subprocess.run(
        [tool, "-a", "-i", "-e", str(library)], input=asked, capture_output=True, text=True, check=False
    )
    places: dict[int, tuple[str, int]] = {}
    address = 0
    for line in done.stdout.splitlines():
        if line.startswith("0x"):
            address = int(line, 16)
            continue
        file, _, number = line.partition(" (")[0].rpartition(":")
        if number.isdigit() and address not in places and file in paths:
            places[address] = (paths[file], int(number))
    return places
