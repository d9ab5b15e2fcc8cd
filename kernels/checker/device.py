"""Runs every operation's small launches on the GPU at hand, against their references."""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import numpy as np

from tqcli.kernels.runtime import run
from tqcli.kernels.runtime.case import Case, Outputs, to_numpy
from tqcli.version import __version__

REPEATS = 20
_TIMED = 2.0
"""Seconds that the repeats of one launch may take."""
_ERROR_LENGTH = 3000


@dataclass(frozen=True)
class OnDevice:
    """What one launch did on the device."""

    case: int
    """Its number among the cases that were asked for."""
    operation: str
    kernel: str
    title: str
    """The kernel, what it is a case of, and the template's parameters."""
    differs: str | None = None
    """How its outputs differ from the reference's beyond what is allowed; None if they don't."""
    unequal: int = 0
    """Elements that differ at all: codes at a boundary within float error, last bits of floats."""
    elements: int = 0
    """Of all outputs: codes where the case tells them apart, else the arrays' elements."""
    seconds: float = 0.0
    """Median of a few launches, one after the other: at these sizes that is the cost of a launch."""
    error: str | None = None
    """Why it could not be built or run."""

    @property
    def agrees(self) -> bool:
        """Whether it ran and gave what it must."""
        return self.error is None and self.differs is None


@dataclass(frozen=True)
class OfKernel:
    """What all launches of one kernel did."""

    operation: str
    kernel: str
    results: Sequence[OnDevice]

    @property
    def agree(self) -> int:
        """Launches that gave what they must."""
        return sum(result.agrees for result in self.results)

    @property
    def unequal(self) -> tuple[int, int]:
        """Elements that differ within what is allowed, and of how many."""
        agreeing = [result for result in self.results if result.agrees]
        return sum(result.unequal for result in agreeing), sum(result.elements for result in agreeing)

    @property
    def microseconds(self) -> float | None:
        """The median over its launches; None if none ran."""
        times = [result.seconds for result in self.results if result.error is None]
        return float(np.median(times)) * 1e6 if times else None


def on_device(cases: Iterable[tuple[int, Case]], backend: str, repeats: int = REPEATS) -> Iterator[OnDevice]:
    """Runs each numbered case on `metal` or `cuda`. What can't be built or run is told, and the rest goes on."""
    for number, case in cases:
        begun = begin(number, case)
        try:
            outputs = [to_numpy(array) for array in run(case.launch, backend)]
            expected = _expected(case)
            unequal, elements = _unequal(case, outputs, expected)
            yield replace(
                begun,
                differs=case.differs(outputs, expected),
                unequal=unequal,
                elements=elements,
                seconds=_seconds(case, backend, repeats),
            )
        except Exception as e:  # whatever a compiler or a device raises belongs in the report
            yield replace(begun, error=_shortened(f"{type(e).__name__}: {e}"))


def _expected(case: Case) -> list[np.ndarray]:
    """The reference's outputs by MLX's operations on the CPU, so that every device is held to the same."""
    device = mx.default_device()
    mx.set_default_device(mx.Device(mx.cpu))
    try:
        return [to_numpy(array) for array in case.expected()]
    finally:
        mx.set_default_device(device)


def begin(number: int, case: Case) -> OnDevice:
    """What is known of a case before it has run."""
    launch = case.launch
    parameters = " ".join(f"{name}={value}".replace("mlx.core.", "") for name, value in launch.template.items())
    title = f"{launch.kernel.name} ({launch.title or f'case {number}'}; {parameters})"
    return OnDevice(number, case.operation, launch.kernel.name, title)


def shares(cases: Sequence[Case], count: int) -> list[list[int]]:
    """The cases' numbers in so many shares; those that one compiled kernel serves are in the same one."""
    texts: dict[object, list[int]] = {}
    for number, case in enumerate(cases):
        launch = case.launch
        types = tuple(str(array.dtype) for array in launch.inputs)
        parameters = tuple((name, str(value)) for name, value in launch.template.items())
        texts.setdefault((launch.kernel.name, parameters, types), []).append(number)
    dealt: list[list[int]] = [[] for _ in range(count)]
    for turn, numbers in enumerate(texts.values()):
        dealt[turn % count] += numbers
    return dealt


def by_kernel(results: Iterable[OnDevice]) -> list[OfKernel]:
    """The results of each kernel, in the order of the cases."""
    found: dict[tuple[str, str], list[OnDevice]] = defaultdict(list)
    for result in results:
        found[result.operation, result.kernel].append(result)
    return [OfKernel(operation, kernel, of) for (operation, kernel), of in found.items()]


def device_facts(backend: str) -> list[tuple[str, str]]:
    """What a report says of the machine that it was made on."""
    gpu = mx.device_info(mx.Device(mx.gpu))
    named = {name: str(gpu[name]) for name in ("device_name", "architecture", "memory_size") if name in gpu}
    mac = platform.mac_ver()[0]
    return [
        ("date", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("back-end", backend),
        *((name.replace("_", " "), value) for name, value in named.items()),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}{f', macOS {mac}' if mac else ''}"),
        ("python", platform.python_version()),
        ("mlx", version("mlx")),
        ("tq", __version__),
    ]


def _seconds(case: Case, backend: str, repeats: int) -> float:
    times: list[float] = []
    while len(times) < repeats and sum(times) < _TIMED:
        began = time.perf_counter()
        mx.eval(run(case.launch, backend))
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def _unequal(case: Case, outputs: Outputs, expected: Outputs) -> tuple[int, int]:
    """Elements that differ at all, and of how many."""
    codes: Any = getattr(case.differs, "boundary_codes", None)
    if codes is not None and all(a.shape == b.shape for a, b in zip(outputs, expected, strict=True)):
        differing, of = codes(outputs, expected)
        return int(differing), int(of)
    count, elements = 0, sum(output.size for output in outputs)
    for a, b in zip(outputs, expected, strict=True):
        if a.shape != b.shape:
            return elements, elements
        with np.errstate(invalid="ignore"):
            count += int(np.sum((a != b) & ~((a != a) & (b != b))))
    return count, elements


def _shortened(message: str) -> str:
    """A compiler's message: its beginning, lines kept, since it names the lines of the body."""
    lines = [line.rstrip() for line in message.splitlines() if line.strip()]
    return "\n".join(lines)[:_ERROR_LENGTH]
