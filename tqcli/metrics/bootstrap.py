"""Confidence intervals by resampling whole windows: tokens of one window are not independent of each other."""

from __future__ import annotations

from typing import Any

import numpy as np

_RESAMPLES = 1000


def ratio_interval(
    numerators: np.ndarray[Any, Any], denominators: np.ndarray[Any, Any], seed: int = 0
) -> tuple[float, float] | None:
    """95 % interval of sum(numerators) / sum(denominators), each [windows]; percentile bootstrap over windows.

    None for fewer than two windows or a zero denominator (Efron and Tibshirani, 1993, section 13.3).
    """
    n = len(numerators)
    if n < 2 or not np.all(np.asarray(denominators) > 0):
        return None
    drawn = np.random.default_rng(seed).integers(0, n, (_RESAMPLES, n))
    ratios = np.asarray(numerators)[drawn].sum(axis=1) / np.asarray(denominators)[drawn].sum(axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def mean_interval(values: np.ndarray[Any, Any], seed: int = 0) -> tuple[float, float] | None:
    """95 % interval of the mean of values [windows]; percentile bootstrap over windows.

    None for fewer than two windows, or where one has no value (NaN).
    """
    if np.isnan(values).any():
        return None
    return ratio_interval(values, np.ones(len(values)), seed)
