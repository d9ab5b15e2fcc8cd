"""Confidence intervals by resampling whole windows: tokens of one window are not independent of each other."""

from __future__ import annotations

from typing import Any

import numpy as np

_RESAMPLES = 1000


def window_draws(windows: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """How often each window is drawn in each resample, [resamples, windows]; None for fewer than two windows."""
    if windows < 2:
        return None
    drawn = np.random.default_rng(seed).integers(0, windows, (_RESAMPLES, windows))
    return np.stack([np.count_nonzero(drawn == window, axis=1) for window in range(windows)], axis=1)


def percentiles(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The middle 95 % of resampled values (Efron and Tibshirani, 1993, section 13.3)."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def ratio_interval(
    numerators: np.ndarray[Any, Any], denominators: np.ndarray[Any, Any], seed: int = 0
) -> tuple[float, float] | None:
    """95 % interval of sum(numerators) / sum(denominators), each [windows]; percentile bootstrap over windows.

    None for fewer than two windows or a zero denominator.
    """
    counts = window_draws(len(numerators), seed)
    if counts is None or not np.all(np.asarray(denominators) > 0):
        return None
    return percentiles((counts @ np.asarray(numerators)) / (counts @ np.asarray(denominators)))
