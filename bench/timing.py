"""Times ways to do the same thing, in turns within one run, so that the machine's moods fall on all of them alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from tqcli.environment import device_name, versions


@dataclass(frozen=True)
class Timing:
    """Seconds of one way, over the rounds."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    rounds: int

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """Summarises at least two measurements."""
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high, len(seconds))


def compare(ways: Mapping[str, Callable[[], object]], rounds: int = 7, warm_up: int = 1) -> dict[str, Timing]:
    """Times each way `rounds` times in turns, after `warm_up` untimed rounds. What a way returns is evaluated."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warm_up + rounds):
        for name, way in ways.items():
            elapsed = once(way)
            if turn >= warm_up:
                seconds[name].append(elapsed)
    return {name: Timing.of(values) for name, values in seconds.items()}


def once(way: Callable[[], object]) -> float:
    """Seconds of one call, with the arrays that it returns evaluated."""
    start = time.perf_counter()
    mx.eval(way())
    return time.perf_counter() - start


def show(timings: Mapping[str, Timing], baseline: str, moved: int | None = None) -> None:
    """Prints a line a way: median and quartiles, the ratio to the baseline and, of `moved` bytes, the bandwidth."""
    width = max(len(name) for name in timings)
    base = timings[baseline].median
    for name, t in timings.items():
        rate = "" if moved is None else f"  {moved / t.median / 1e9:6.1f} GB/s"
        spread = f"{1e3 * t.median:9.2f} ms  ({1e3 * t.low:.2f} to {1e3 * t.high:.2f}, n = {t.rounds})"
        print(f"{name:<{width}}  {spread}  {t.median / base:6.2f}x of {baseline}{rate}", flush=True)
    if moved is not None:
        print(f"{'ceiling':<{width}}  a large copy moves {copy_bandwidth() / 1e9:.1f} GB/s", flush=True)


def copy_bandwidth(nbytes: int = 256 * 2**20, rounds: int = 5) -> float:
    """Bytes a second, read and written, of a copy too large for any cache: what a kernel can hope for.

    On a CPU it is NumPy's into memory that is there already: in a fresh array page faults would take most of the time.
    """
    if mx.default_device() == mx.Device(mx.cpu):
        source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
        timing = compare({"copy": lambda: np.copyto(target, source)}, rounds)["copy"]
    else:
        x = mx.ones((nbytes // 4,), dtype=mx.uint32)
        timing = compare({"copy": lambda: x + 1}, rounds)["copy"]
    return 2 * nbytes / timing.median


def machine() -> str:
    """One line: what the timings were made on."""
    return ", ".join([device_name(), f"{os.cpu_count()} CPUs", *(f"{k} {v}" for k, v in versions().items())])
