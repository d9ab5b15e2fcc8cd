"""Times several implementations of one thing in turn, so that a slow moment of the machine hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

_BATCH_SECONDS = 5e-3
"""Calls shorter than this are timed several at once, so that the clock and the wait count for little."""
_BATCH_AT_MOST = 32
_ROUNDS_AT_LEAST = 3
_LONG_SECONDS = 0.5
"""A call as long as this isn't repeated more than need be."""


@dataclass
class Contender:
    """An implementation, and its inputs, which its calls take in turn."""

    call: Callable[..., Any]
    inputs: Sequence[Sequence[mx.array]]
    error: str | None = None
    """Why it could not be run."""
    batch: int = 1
    """Calls that are timed at once."""
    seconds: list[float] = field(default_factory=list)
    """Of one call, one number a round."""
    _turn: int = 0

    def time(self, calls: int) -> float:
        """Seconds of one call, over several: built, computed and waited for."""
        began = time.perf_counter()
        outputs = []
        for _ in range(calls):
            outputs.append(self.call(*self.inputs[self._turn % len(self.inputs)]))
            self._turn += 1
        mx.eval(outputs)
        mx.synchronize()
        return (time.perf_counter() - began) / calls

    def quartiles(self) -> tuple[float, float, float]:
        """Seconds: a quarter, the half and three quarters of the rounds took no longer."""
        first, half, third = np.quantile(self.seconds, (0.25, 0.5, 0.75))
        return float(first), float(half), float(third)


def race(contenders: Mapping[str, Contender], rounds: int, budget: float) -> None:
    """Lets each run once, which compiles, then `rounds` times in turn; fewer once `budget` seconds are over.

    One that fails has its `error` set and takes no further part.
    """
    for contender in contenders.values():
        try:
            contender.time(1)
            once = min(contender.time(1) for _ in range(2))
        except Exception as e:  # whatever a back-end, a compiler or an allocator raises: the others go on
            contender.error = f"{type(e).__name__}: {' '.join(str(e).split())}"[:300]
            continue
        contender.batch = int(min(_BATCH_AT_MOST, max(1, _BATCH_SECONDS // max(once, 1e-6))))
    running = [contender for contender in contenders.values() if contender.error is None]
    began = time.perf_counter()
    for number in range(rounds):
        for place in range(len(running)):
            contender = running[(place + number) % len(running)]
            if len(contender.seconds) < _ROUNDS_AT_LEAST or contender.seconds[-1] < _LONG_SECONDS:
                contender.seconds.append(contender.time(contender.batch))
        if number + 1 >= _ROUNDS_AT_LEAST and time.perf_counter() - began > budget:
            return
