"""Two runs side by side: what became slower, larger or worse, beyond chance and by enough to matter.

Costs are compared as ratios to the baseline, so that a machine which as a whole was slower on one of the days does not
count; what the baseline itself does is therefore invisible here. The test is Welch's t on the logarithms of the rounds'
ratios, corrected by Holm's method, which bounds the chance of even one false alarm however many cells there are. (A rank
test cannot serve: over seven rounds its smallest p-value is 0.0006, which no correction for hundreds of cells survives.
Benjamini and Hochberg's method bounds the share of false alarms among alarms: an A/A comparison could show some.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from attnbench.analysis.accuracy import TASK, scores
from attnbench.analysis.costs import KEYS, REST, arrange
from attnbench.analysis.intervals import CONFIDENCE, holm
from attnbench.analysis.loading import COST, EXACT, WORK, Run, last_outcomes, meanings, same_machine
from attnbench.analysis.ratios import paired
from attnbench.errors import UserError

__all__ = ["THRESHOLD", "Comparison", "compare"]

THRESHOLD = 0.05
_CELL = ["quantity", *WORK, "label"]
_SCORE = [*TASK, "label"]


@dataclass(frozen=True)
class Comparison:
    """Every cell that both runs have.

    `change` is B over A (of the ratio to the baseline, or of the mean score), `low` and `high` its 95 % interval,
    `adjusted` the p-value after correction; `verdict` is regression, improvement, unchanged, or too few rounds.
    `differences` says how the environments differ, where that was allowed.
    """

    frame: pd.DataFrame
    differences: list[str]

    @property
    def regressions(self) -> pd.DataFrame:
        return self.frame[self.frame["verdict"] == "regression"]

    @property
    def improvements(self) -> pd.DataFrame:
        return self.frame[self.frame["verdict"] == "improvement"]


def compare(a: Run, b: Run, *, threshold: float = THRESHOLD, allow_differences: bool = False) -> Comparison:
    """Compares run B with run A.

    Raises:
        UserError: the runs' environments, data, baselines or labels differ (the first two may, with `allow_differences`).
    """
    if a.baseline != b.baseline:
        raise UserError(f"ratios to different baselines cannot be compared: {a.baseline!r} and {b.baseline!r}")
    known = meanings(a)
    for label, meaning in meanings(b).items():
        if known.get(label, meaning) != meaning:
            raise UserError(f"label {label!r} is {known[label]} in {a.path} and {meaning} in {b.path}")
    differences = same_machine(a.environment, b.environment) + _data_differences(a, b)
    if differences and not allow_differences:
        raise UserError(
            f"{a.path} and {b.path} cannot be compared: {'; '.join(differences)}; allow this to compare anyway"
        )
    parts = [_costs(a, b, threshold), _scores(a, b, threshold), _endings(a, b)]
    frame = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    columns = ["a", "b", "change", "low", "high", "p", "adjusted", "verdict", "reason"]
    lead = ["quantity", *KEYS, "task", "task_options"]
    frame = frame.reindex(columns=[*lead, *columns, *(column for column in REST if column != "variant")])
    return Comparison(arrange(frame, a.baseline), differences)


def _costs(a: Run, b: Run, threshold: float) -> pd.DataFrame:
    parts = []
    for quantity in COST:
        pair = [paired(run, quantity).query("label != @run.baseline") for run in (a, b)]
        frame = _welch(*pair, keys=_CELL, column="ratio", logarithm=True)
        frame["exact"] = quantity in EXACT
        parts.append(frame)
    return _judged(pd.concat(parts, ignore_index=True), threshold, worse=1)


def _scores(a: Run, b: Run, threshold: float) -> pd.DataFrame:
    pair = [scores(run).query("status == 'ok'") for run in (a, b)]
    frame = _welch(*pair, keys=_SCORE, column="value", logarithm=False)
    frame["exact"], frame["quantity"] = False, "accuracy"
    higher = pair[0].drop_duplicates("metric").set_index("metric")["higher_is_better"]
    better_up = frame["metric"].map(higher).fillna(True).astype(bool)
    judged = [_judged(frame[better_up], threshold, worse=-1), _judged(frame[~better_up], threshold, worse=1)]
    return pd.concat(judged, ignore_index=True) if len(frame) else frame


def _welch(a: pd.DataFrame, b: pd.DataFrame, *, keys: list[str], column: str, logarithm: bool) -> pd.DataFrame:
    """Change of the mean (of logarithms, where asked) with Welch's interval and p-value, for every key that both have."""
    sides = []
    for frame in (a, b):
        values = frame[column].astype(float)
        grouped = frame.assign(x=np.log(values) if logarithm else values, y=values).groupby(
            keys, dropna=False, sort=False
        )
        sides.append(
            grouped.agg(mean=("x", "mean"), var=("x", "var"), n=("x", "size"), middle=("y", "median")).reset_index()
        )
    both = sides[0].merge(sides[1], on=keys, suffixes=("_a", "_b"))
    spread_a, spread_b = both["var_a"] / both["n_a"], both["var_b"] / both["n_b"]
    error = np.sqrt(spread_a + spread_b)
    weights = spread_a**2 / (both["n_a"] - 1).clip(lower=1) + spread_b**2 / (both["n_b"] - 1).clip(lower=1)
    freedom = ((spread_a + spread_b) ** 2 / weights.where(weights > 0)).fillna(1)
    difference = both["mean_b"] - both["mean_a"]
    statistic = (difference.abs() / error.where(error > 0)).fillna(np.inf).where(difference != 0, 0.0)
    both["p"] = np.where(error.isna(), np.nan, 2 * stats.t.sf(statistic, freedom))
    half = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * error
    if logarithm:
        both["a"], both["b"] = both["middle_a"], both["middle_b"]
        both["change"] = both["b"] / both["a"]
        both["low"], both["high"] = np.exp(difference - half), np.exp(difference + half)
    else:
        base = both["mean_a"].where(both["mean_a"] != 0)
        both["a"], both["b"], both["change"] = both["mean_a"], both["mean_b"], both["mean_b"] / base
        both["low"], both["high"] = (both["mean_b"] - half) / base, (both["mean_b"] + half) / base
    return both


def _judged(frame: pd.DataFrame, threshold: float, worse: int) -> pd.DataFrame:
    """`worse` is the direction in which a change is a regression. What is counted exactly needs no test."""
    frame = frame.copy()
    tested = frame["p"].notna() & ~frame["exact"].astype(bool)
    frame["adjusted"] = np.nan
    frame.loc[tested, "adjusted"] = holm(frame.loc[tested, "p"])
    frame.loc[frame["exact"].astype(bool), "adjusted"] = 0.0
    up, down = frame["change"] >= 1 + threshold, frame["change"] <= 1 / (1 + threshold)
    certain = frame["adjusted"] < 1 - CONFIDENCE
    frame["verdict"] = np.where(frame["adjusted"].isna(), "too few rounds", "unchanged")
    frame.loc[certain & (up if worse > 0 else down), "verdict"] = "regression"
    frame.loc[certain & (down if worse > 0 else up), "verdict"] = "improvement"
    return frame


def _endings(a: Run, b: Run) -> pd.DataFrame:
    """Cells that ended well in one run and badly in the other."""
    keys = [*_CELL, "task", "seed"]
    ended = [last_outcomes(run.frame)[[*keys, "status", "reason"]] for run in (a, b)]
    both = ended[0].merge(ended[1], on=keys, suffixes=("_a", "_b"))
    both = both[(both["status_a"] == "ok") != (both["status_b"] == "ok")].copy()
    worse = both["status_a"] == "ok"
    both["verdict"] = np.where(worse, "regression", "improvement")
    both["reason"] = both["status_a"] + " became " + both["status_b"]
    detail = both["reason_b"].where(worse, both["reason_a"]).fillna("")
    both["reason"] = both["reason"] + detail.where(detail == "", ": " + detail)
    return both


def _data_differences(a: Run, b: Run) -> list[str]:
    ours, theirs = _hashes(a), _hashes(b)
    return [
        f"data of {task} {ours[task]} and {theirs[task]}"
        for task in ours.keys() & theirs.keys()
        if ours[task] != theirs[task]
    ]


def _hashes(run: Run) -> dict[str, str]:
    found = {}
    trained = run.of("accuracy")
    for task, details in zip(trained["task"], trained["details"], strict=True):
        if isinstance(details, Mapping) and details.get("data_hash"):
            options: Any = details.get("task_options") or {}
            found[f"{task} {options}" if options else str(task)] = str(details["data_hash"])
    return found
