"""Intervals that cover what they say, also over few values: ranks for medians, Student's t for means. No bootstrap."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

__all__ = ["CONFIDENCE", "binomial_interval", "holm", "median_interval", "rank_of", "summarise", "t_interval"]

CONFIDENCE = 0.95


def rank_of(n: Any, confidence: float = CONFIDENCE) -> Any:
    """The 0-based rank r for which the r-th smallest and the r-th largest of n values enclose the median.

    The number of values below the median is binomial(n, 1/2) whatever the values' distribution, so the interval misses with
    probability 2 P(B <= r); r is the largest rank that keeps this within 1 - confidence, and -1 where none does (for 95 %:
    below six values).
    """
    return stats.binom.ppf((1 - confidence) / 2, n, 0.5).astype(int) - 1


def median_interval(values: Any, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """(median, low, high) of some values by ranks; low and high are NaN where there are too few."""
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    if n == 0:
        return np.nan, np.nan, np.nan
    middle = _middle(ordered[(n - 1) // 2], ordered[n // 2])
    rank = _rank(n, confidence)
    return (middle, np.nan, np.nan) if rank < 0 else (middle, float(ordered[rank]), float(ordered[n - 1 - rank]))


@functools.cache
def _rank(n: int, confidence: float) -> int:
    return int(rank_of(np.array([n]), confidence)[0])


def _middle(low: float, high: float) -> float:
    return float(low) if low == high else float((low + high) / 2)  # infinities of one sign have a middle


def summarise(frame: pd.DataFrame, by: Sequence[str], column: str = "value") -> pd.DataFrame:
    """One row per group: its keys, `median`, `low`, `high` (by ranks) and `n`. Nulls among the keys are keys."""
    by = list(by)
    groups = frame.groupby(by, dropna=False, sort=False, observed=True).ngroup().to_numpy()
    values = frame[column].to_numpy(dtype=float)
    order = np.lexsort((values, groups))
    values = values[order]
    _, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    _, first_rows = np.unique(groups, return_index=True)
    ranks = rank_of(sizes)
    known = ranks >= 0
    ranks = np.where(known, ranks, 0)
    result = frame[by].iloc[first_rows].reset_index(drop=True)
    result["median"] = (values[starts + (sizes - 1) // 2] + values[starts + sizes // 2]) / 2
    result["low"] = np.where(known, values[starts + ranks], np.nan)
    result["high"] = np.where(known, values[starts + sizes - 1 - ranks], np.nan)
    result["n"] = sizes
    return result


def t_interval(values: Any, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """(mean, low, high) by Student's t; low and high are NaN for a single value."""
    values = np.asarray(values, dtype=float)
    if len(values) == 0:
        return np.nan, np.nan, np.nan
    mean = float(values.mean())
    if len(values) == 1:
        return mean, np.nan, np.nan
    half = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return mean, mean - half, mean + half


def binomial_interval(share: float, total: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's interval of a share seen in `total` trials."""
    interval = stats.binomtest(round(share * total), int(total)).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def holm(p: Any) -> np.ndarray:
    """Holm's adjusted p-values: rejecting those below alpha keeps the chance of any false alarm below alpha."""
    p = np.asarray(p, dtype=float)
    order = np.argsort(p, kind="stable")
    scaled = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted
