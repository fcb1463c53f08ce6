"""How cost grows with length, and where a variant overtakes the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from attnbench.analysis.costs import arrange
from attnbench.analysis.intervals import CONFIDENCE, median_interval
from attnbench.analysis.loading import COST, EXACT, WORK, Run, rows_of, usable_records

__all__ = ["crossover", "crossover_of", "exponent_of", "scaling"]

SERIES = ["quantity", *(column for column in WORK if column != "length"), "label"]
_REST = ["device", "dtype", "scope", "causal", "batch", "heads", "head_dim", "dim", "depth", "variant"]


def _series(records: pd.DataFrame, column: str) -> Iterator[tuple[dict[str, Any], np.ndarray, np.ndarray]]:
    """(what defines it, lengths, table of rounds by lengths) for everything that was measured across lengths.

    The i-th row holds the i-th usable round of every length; lengths are measured one after the other, so rounds of different
    lengths have nothing else in common.
    """
    ordered = records.sort_values(["length", "session", "round"], kind="stable")
    groups = ordered.groupby(SERIES, dropna=False, sort=False, observed=True).ngroup().to_numpy()
    order = np.argsort(groups, kind="stable")
    ordered = ordered.iloc[order]
    lengths, values = ordered["length"].to_numpy(dtype=float), ordered[column].to_numpy(dtype=float)
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    firsts = rows_of(ordered[[*SERIES, "variant"]].iloc[starts])
    ends = np.append(starts[1:], len(ordered))[: len(starts)]
    for first, start, end in zip(firsts, starts, ends, strict=True):
        distinct, at, counts = np.unique(lengths[start:end], return_index=True, return_counts=True)
        yield first, distinct, values[start:end][at[None, :] + np.arange(counts.min())[:, None]]


def exponent_of(lengths: np.ndarray, rounds: np.ndarray) -> tuple[float, float, float]:
    """(exponent, low, high) of value ~ length^exponent, by least squares on logarithms; `rounds` is (rounds, lengths).

    The interval comes from the rounds' own exponents where there are enough of them, else, from three lengths on, from the
    fit's residuals, which then say how well a single power describes the growth.
    """
    x = np.log(lengths) - np.log(lengths).mean()
    slopes = np.log(rounds) @ x / (x @ x)
    middle, low, high = median_interval(slopes)
    if np.isnan(low) and len(lengths) > 2:
        y = np.log(np.median(rounds, axis=0))
        slope = float(y @ x / (x @ x))
        residuals = y - y.mean() - slope * x
        error = np.sqrt(residuals @ residuals / (len(x) - 2) / (x @ x))
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(x) - 2) * error)
        return slope, slope - half, slope + half
    return middle, low, high


def scaling(run: Run, seconds: pd.DataFrame) -> pd.DataFrame:
    """Growth exponents, fitted above the floor where the quantity is time. `misfit` is the largest relative distance of a
    measured median from the fitted line: where it is large, no single power describes the growth."""
    floor = seconds[seconds["at_floor"].fillna(False)]
    drowned = set(zip(*(floor[column].tolist() for column in (*WORK, "label")), strict=True))
    rows = []
    for quantity in COST:
        records = run.positive(quantity)
        if quantity == "speed" and drowned:
            cell = zip(*(records[column].tolist() for column in (*WORK, "label")), strict=True)
            records = records[[key not in drowned for key in cell]]
        for first, lengths, rounds in _series(records, "value"):
            if len(lengths) < 2:
                continue
            exponent, low, high = exponent_of(lengths, rounds)
            middle = np.log(np.median(rounds, axis=0))
            line = exponent * (np.log(lengths) - np.log(lengths).mean()) + middle.mean()
            rows.append(
                first
                | {"exponent": exponent, "low": low, "high": high, "from_length": int(lengths[0])}
                | {"to_length": int(lengths[-1]), "lengths": len(lengths), "rounds": len(rounds)}
                | {"misfit": float(np.expm1(np.abs(middle - line).max()))}
            )
    columns = ["exponent", "low", "high", "from_length", "to_length", "lengths", "rounds", "misfit"]
    frame = pd.DataFrame(rows, columns=[*SERIES, "variant", *columns])
    return arrange(frame, run.baseline)[["quantity", "mode", "label", *columns, *_REST]]


def crossover_of(lengths: np.ndarray, ratios: np.ndarray) -> float:
    """The length from which the ratio stays below 1, by straight lines between logarithms.

    0 where it always does, infinity where it does not at the last length.
    """
    behind = np.flatnonzero(ratios >= 1)
    if len(behind) == 0:
        return 0.0
    last = behind[-1]
    if last == len(ratios) - 1:
        return np.inf
    x, y = np.log(lengths), np.log(ratios)
    share = y[last] / (y[last] - y[last + 1])
    return float(np.exp(x[last] + share * (x[last + 1] - x[last])))


def crossover(run: Run, pairs: Mapping[str, pd.DataFrame], outcomes: pd.DataFrame) -> pd.DataFrame:
    """Where each label overtakes the baseline, with an interval over rounds; an open end of the interval is null.

    `verdict` is one of: crosses; always ahead; not reached up to N; level (no length's ratio differs from 1 with
    certainty); and ahead from N, where the baseline failed (it did not survive to be overtaken).
    """
    survivals = _survivals(run, outcomes)
    rows = []
    for quantity, pair in pairs.items():
        for first, lengths, rounds in _series(pair, "ratio"):
            if first["label"] == run.baseline:
                continue
            found = _cross(lengths, rounds, exact=quantity in EXACT)
            lost, verdict = survivals.get(tuple(first[column] for column in SERIES), (0, ""))
            if found["verdict"].startswith("not reached") and lost > lengths[-1]:
                found["verdict"] = verdict
            rows.append(
                first | found | {"from_length": int(lengths[0]), "to_length": int(lengths[-1]), "rounds": len(rounds)}
            )
    columns = ["crossover", "low", "high", "verdict", "from_length", "to_length", "rounds"]
    frame = pd.DataFrame(rows, columns=[*SERIES, "variant", *columns])
    return arrange(frame, run.baseline)[["quantity", "mode", "label", *columns, *_REST]]


def _cross(lengths: np.ndarray, rounds: np.ndarray, *, exact: bool) -> dict[str, Any]:
    middle = np.median(rounds, axis=0)
    point = crossover_of(lengths, middle)
    _, low, high = median_interval([crossover_of(lengths, row) for row in rounds])
    if exact:
        low = high = point
    bounds = [median_interval(column) for column in rounds.T]
    if not exact and all(low <= 1 <= high for _, low, high in bounds):
        return {"crossover": np.nan, "low": np.nan, "high": np.nan, "verdict": "level"}
    if exact and (middle == 1).all():
        return {"crossover": np.nan, "low": np.nan, "high": np.nan, "verdict": "level"}
    verdict = "crosses"
    if point == 0:
        verdict = "always ahead"
    elif np.isinf(point):
        verdict = f"not reached up to {int(lengths[-1])}"
    closed = [value if 0 < value < np.inf else np.nan for value in (point, low, high)]
    return dict(zip(("crossover", "low", "high"), closed, strict=True)) | {"verdict": verdict}


def _survivals(run: Run, outcomes: pd.DataFrame) -> dict[tuple[Any, ...], tuple[int, str]]:
    """(length, verdict) for every series that managed a length at which the baseline ran out of memory or time."""
    setting = [column for column in SERIES if column != "label"]
    failed = outcomes[(outcomes["label"] == run.baseline) & outcomes["status"].isin(["oom", "timeout"])]
    failed = failed.sort_values("length").drop_duplicates(setting)
    done = (
        usable_records(run.frame).drop_duplicates("cell").groupby(SERIES, dropna=False, observed=True)["length"].max()
    )
    both = done.reset_index().merge(failed[[*setting, "length", "status"]], on=setting, suffixes=("", "_lost"))
    both = both[both["length"] >= both["length_lost"]]
    return {
        tuple(row[column] for column in SERIES): (
            int(row["length_lost"]),
            f"ahead from {row['length_lost']}, where {run.baseline} ends in {row['status']}",
        )
        for row in rows_of(both)
    }
