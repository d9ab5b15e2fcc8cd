"""A small launch with the outputs it must have: what checks of kernels run through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from tqcli.kernels.runtime.kernel import Launch

_BFLOAT16_INFINITY = 0x7F80
Outputs = Sequence[np.ndarray]
Differs = Callable[[Outputs, Outputs], str | None]
"""Says how outputs (first) differ from the expected ones (second) beyond what is allowed; None if they agree."""


@dataclass(frozen=True)
class Case:
    """One launch of an operation's kernel, small enough for the CPU checker."""

    operation: str
    """Name of the operation's folder."""
    launch: Launch
    expected: Callable[[], Sequence[mx.array]]
    """The reference's outputs for the same inputs."""
    differs: Differs


def to_numpy(array: mx.array) -> np.ndarray:
    """The array's elements; bfloat16, which NumPy hasn't, as float32."""
    return np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)


def bfloat16_steps(bits: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """How many numbers apart bfloat16 of the same sign are, given as their 16 bits; any NaN is as good as another."""
    steps = np.abs(bits.astype(np.int64) - expected.astype(np.int64))
    both_nan = np.all([of.astype(np.int64) & 0x7FFF > _BFLOAT16_INFINITY for of in (bits, expected)], axis=0)
    return np.asarray(np.where(both_nan, 0, steps))


def scales_differ(bits: np.ndarray, expected: np.ndarray) -> str | None:
    """Which of bfloat16 scales, given as their 16 bits, is most steps off, if more than one; None if none is."""
    steps = bfloat16_steps(bits, expected)
    if steps.max() <= 1:
        return None
    at = tuple(map(int, np.argwhere(steps == steps.max())[0]))
    value, right = ((of.astype(np.uint32) << 16).view(np.float32)[at] for of in (bits, expected))
    return f"scale {list(at)} is {value:.7g}, not {right:.7g}: {int(steps.max())} steps of a bfloat16 off"


def exactly(outputs: Outputs, expected: Outputs) -> str | None:
    """All elements equal; NaN equals NaN."""
    return _first_difference(outputs, expected, _equal)


def close(rtol: float, atol: float = 0.0) -> Differs:
    """All elements within atol + rtol * |expected|; NaN only where it is expected, an infinity likewise."""

    def near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        wide, reference = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(invalid="ignore"):
            within = np.abs(wide - reference) <= atol + rtol * np.abs(reference)
        return np.asarray(np.where(np.isfinite(reference), within, _equal(a, b)))

    return lambda outputs, expected: _first_difference(outputs, expected, near)


def each(*rules: Differs) -> Differs:
    """A rule of its own for each output, in order."""

    def differs(outputs: Outputs, expected: Outputs) -> str | None:
        for n, (rule, a, b) in enumerate(zip(rules, outputs, expected, strict=True)):
            if found := rule([a], [b]):
                return f"output {n}: {found}" if len(rules) > 1 else found
        return None

    return differs


def _first_difference(
    outputs: Outputs, expected: Outputs, agree: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> str | None:
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs, not {len(expected)}"
    for n, (a, b) in enumerate(zip(outputs, expected, strict=True)):
        which = f"output {n}: " if len(outputs) > 1 else ""
        if a.shape != b.shape:
            return f"{which}shape {a.shape}, not {b.shape}"
        bad = np.argwhere(~agree(a, b))
        if len(bad):
            at = tuple(map(int, bad[0]))
            return f"{which}{len(bad)} of {a.size} elements differ, first at {list(at)}: {a[at]}, not {b[at]}"
    return None


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    same = a == b
    if np.issubdtype(a.dtype, np.floating) and np.issubdtype(b.dtype, np.floating):
        same |= np.isnan(a) & np.isnan(b)
    return np.asarray(same)
