"""Which implementation a call of an operation takes, and a record of what was taken.

Two back-ends run kernels of our own, `metal` and `cuda`; `mlx` is the reference in plain MLX operations, on any device.
Named are they, in falling precedence, by the `backend` argument of an operation, by `set_backend` (the option
`--backend`), and by the environment variable TQ_BACKEND. A back-end that is named is taken at every size. Left out, or
`auto`, it is the GPU's where MLX computes on one, except for calls smaller than the operation's crossover size: there
a launch costs more than it saves.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import mlx.core as mx

from tqcli.errors import InputError

VARIABLE = "TQ_BACKEND"
GPU_BACKENDS = ("metal", "cuda")
BACKENDS = (*GPU_BACKENDS, "mlx")
NEVER = 1 << 62
CROSSOVER: dict[str, int] = {
    "bit_pack": NEVER,
    "bit_unpack": NEVER,
    "scalar_dequantise": 21_000_000,
    "vector_dequantise": 29_000_000,
    "vector_scores": 22_000_000,
    "attend": 30_000_000,
}
"""Operation: elements of its main input from which its kernel is faster than plain operations, by `tq kernels bench`.

On an NVIDIA H200 (docs/kernels.md). An operation that isn't here takes its kernel at every size.
"""


@dataclass(frozen=True)
class Use:
    """How often calls of an operation took a back-end for one reason."""

    operation: str
    backend: str
    reason: str
    calls: int


_lock = threading.Lock()
_calls: Counter[tuple[str, str, str]] = Counter()
_named: str | None = None


def chosen(operation: str, size: int, backend: str | None = None, unsupported: str | None = None) -> str:
    """`metal`, `cuda` or `mlx`: what a call takes whose main input has `size` elements. Counted for `used`.

    `unsupported` says why the operation's kernel can't take this call, if it can't: then it is `mlx`, unless the call
    itself named a GPU's back-end, which raises `ValueError`. So does a `backend` that there is no such thing as, or
    that isn't on this machine.
    """
    taken, reason = _decide(operation, size, backend, unsupported)
    with _lock:
        _calls[operation, taken, reason] += 1
    return taken


def set_backend(name: str | None) -> None:
    """Names the back-end for all further calls in this process; None leaves it to TQ_BACKEND.

    Raises `InputError` if there is no such back-end on this machine.
    """
    global _named
    if name is not None and (problem := _problem(name)):
        raise InputError(f"--backend {name}: {problem}")
    _named = name


def used(before: Iterable[Use] = ()) -> list[Use]:
    """Every decision of this process since the start or the last `reset_used`, by operation, back-end and reason.

    before: what an earlier call gave, which is taken off.
    """
    with _lock:
        calls = _calls.copy()
    return _listed(calls - _counted(before))


def added(parts: Iterable[Iterable[Use]]) -> list[Use]:
    """The decisions of several parts of the work together, in the order of `used`."""
    return _listed(_counted(use for part in parts for use in part))


def reset_used() -> None:
    """Forgets the decisions so far."""
    with _lock:
        _calls.clear()


@cache
def available() -> tuple[str, ...]:
    """Back-ends that this machine has, the one that `auto` prefers first; `mlx` always is the last."""
    there = {"metal": mx.metal.is_available(), "cuda": mx.cuda.is_available(), "mlx": True}
    return tuple(name for name in BACKENDS if there[name])


def _counted(uses: Iterable[Use]) -> Counter[tuple[str, str, str]]:
    calls: Counter[tuple[str, str, str]] = Counter()
    for use in uses:
        calls[use.operation, use.backend, use.reason] += use.calls
    return calls


def _listed(calls: Counter[tuple[str, str, str]]) -> list[Use]:
    return [Use(*decision, count) for decision, count in sorted(calls.items())]


def _decide(operation: str, size: int, backend: str | None, unsupported: str | None) -> tuple[str, str]:
    if backend not in (None, "auto"):
        if problem := _problem(backend):
            raise ValueError(f"{operation}, backend {backend!r}: {problem}")
        if unsupported and backend != "mlx":
            raise ValueError(f"{operation} has no {backend} kernel for this call: {unsupported}")
        return backend, "named by the call"
    name, reason = preferred()
    if name == "mlx":
        return name, reason
    if unsupported:
        return "mlx", unsupported
    least = CROSSOVER.get(operation, 0)
    if reason == _AUTO and size < least:
        if least == NEVER:
            return "mlx", "plain operations were faster at every size"
        return "mlx", f"fewer than {least} elements: a launch costs more than it saves"
    return name, reason


_AUTO = "MLX computes on this GPU"


def preferred() -> tuple[str, str]:
    """The back-end for calls that name none, and why."""
    name, source = (_named, "--backend") if _named is not None else (os.environ.get(VARIABLE), VARIABLE)
    if name and name != "auto":
        if problem := _problem(name):
            raise InputError(f"{source} is {name}: {problem}")
        return name, f"named by {source}"
    if available()[0] == "mlx":
        return "mlx", "MLX finds no GPU"
    if mx.default_device() == mx.Device(mx.cpu):
        return "mlx", "MLX was told to compute on the CPU"
    return available()[0], _AUTO


def _problem(name: str) -> str | None:
    """What is wrong with the name of a back-end."""
    if name == "auto" or name in available():
        return None
    here = f"this machine has {', '.join((*available(), 'auto'))}"
    return f"MLX finds no such device; {here}" if name in BACKENDS else f"there is no such back-end; {here}"
