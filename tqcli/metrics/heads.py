"""Measures kept as sums per head, and what they check of their inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tqcli.metrics.distortion import FloatArray

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class HeadSums:
    """Base of measures that are kept as sums per head, so that windows can be pooled: float64 [heads] each."""

    def __add__(self, other: Self) -> Self:
        """The sums over both; ValueError unless they have the same number of heads."""
        for name, value in vars(self).items():
            if value.shape != getattr(other, name).shape:
                raise ValueError(
                    f"sums of {len(value)} and {len(getattr(other, name))} heads can't be added: concatenate them"
                )
        return dataclasses.replace(self, **{name: value + getattr(other, name) for name, value in vars(self).items()})

    def per_head(self) -> list[Self]:
        """The same measure of each head by itself."""
        heads = len(next(iter(vars(self).values())))
        return [
            dataclasses.replace(self, **{name: value[h : h + 1] for name, value in vars(self).items()})
            for h in range(heads)
        ]


Sums = TypeVar("Sums", bound=HeadSums)


def pool(windows: Sequence[Sums], counts: NDArray[np.int64] | None = None) -> Sums:
    """Adds the windows of one layer head by head. ValueError for none, or for different numbers of heads.

    counts [resamples, windows]: how often each counts; the sums are then [resamples, heads].
    """
    if not windows:
        raise ValueError("nothing to pool")
    if counts is not None:
        stacked = {name: np.stack([getattr(window, name) for window in windows]) for name in vars(windows[0])}
        return dataclasses.replace(windows[0], **{name: counts @ array for name, array in stacked.items()})
    total = windows[0]
    for window in windows[1:]:
        total = total + window
    return total


def ratios(numerators: FloatArray, denominators: FloatArray) -> FloatArray:
    """Divides element by element, where 0 / 0 is 0 (nothing lost of nothing) and anything else / 0 is inf."""
    zero = np.where(numerators == 0, 0.0, np.inf)
    return np.asarray(np.divide(numerators, denominators, out=np.asarray(zero), where=denominators > 0))


def concatenate(layers: Sequence[Sums]) -> Sums:
    """The heads of several layers as if they were one layer's. ValueError for no layers."""
    if not layers:
        raise ValueError("nothing to concatenate")
    return dataclasses.replace(
        layers[0], **{name: np.concatenate([getattr(layer, name) for layer in layers]) for name in vars(layers[0])}
    )


def gqa_ratio(n_q_heads: int, n_kv_heads: int) -> int:
    """Query heads that share one KV head. Raises ValueError where they can't be shared out evenly."""
    if n_kv_heads < 1 or n_q_heads % n_kv_heads:
        raise ValueError(f"{n_q_heads} query heads can't share {n_kv_heads} KV heads evenly")
    return n_q_heads // n_kv_heads


def check_shape(what: str, array: mx.array | NDArray[Any], expected: tuple[int, ...]) -> None:
    """Raises ValueError unless the array has the expected shape."""
    if tuple(array.shape) != tuple(expected):
        raise ValueError(f"{what} {list(array.shape)} should be {list(expected)}")
