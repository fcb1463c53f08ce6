"""Scores over seeds, never without the baselines that need no attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from attnbench.analysis.intervals import binomial_interval, t_interval
from attnbench.analysis.loading import Run, last_outcomes, rows_of
from attnbench.sweep.records import canonical

__all__ = ["CONTROLS", "accuracy", "baselines", "counting", "curves", "scores", "slices", "tasks"]

CONTROLS = ("none", "uniform")  # variants that cannot look anything up
SOLVED = 0.95  # where a task names no threshold of its own
PARAMETER_GAP = 0.10
CLOSE = 0.05  # a control this near to the baseline's score, in the metric's unit, tells that no attention was needed
CLEAR = 0.20
TASK = ["task", "task_options", "metric", "unit", "causal", "length"]
SAME = ["task", "task_options", "metric", "causal"]  # which settle the rest


def _detail(records: pd.DataFrame, key: str) -> list[Any]:
    return [details.get(key) if isinstance(details, Mapping) else None for details in records["details"]]


def _with_task(records: pd.DataFrame) -> pd.DataFrame:
    """The last record of every cell, with the task's options as text and the metric's direction."""
    frame = last_outcomes(records).copy()
    options = _detail(frame, "task_options")
    frame["task_options"] = pd.array(
        [", ".join(f"{key}={_plain(value)}" for key, value in (item or {}).items()) for item in options], dtype="string"
    )
    stated = _detail(frame, "higher_is_better")
    lower = frame["metric"].str.contains("bits|loss|perplexity|error", case=False).fillna(False)
    frame["higher_is_better"] = [
        not low if said is None else bool(said) for said, low in zip(stated, lower, strict=True)
    ]
    for column in ("unit", "length"):  # which a training that did not take place could not tell
        known = frame.groupby(SAME, dropna=False)[column].transform("first")
        frame[column] = frame[column].fillna(known)
    return frame


def counting(texts: pd.Series) -> pd.Series:
    """Texts by which to sort: whole numbers are so written that 4 comes before 16."""
    return texts.astype("string").str.replace(r"\d+", lambda found: found[0].zfill(12), regex=True)


def _by_numbers(column: pd.Series) -> pd.Series:
    return counting(column) if column.name == "task_options" else column


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


def scores(run: Run) -> pd.DataFrame:
    """One row per training: the score, the parameters, and what the training cost."""
    frame = _with_task(run.of("accuracy"))
    for column in ("parameters", "operations", "seconds", "solved_at", "diverged_at"):
        key = "solved" if column == "solved_at" else column
        frame[column] = pd.array(_detail(frame, key), dtype="Float64").to_numpy(dtype=float, na_value=np.nan)
    frame["seconds"] = frame["seconds"].fillna(frame["elapsed"])
    bounded = frame["unit"].eq("fraction").fillna(False)
    frame["solved_at"] = frame["solved_at"].fillna(pd.Series(np.where(bounded, SOLVED, np.nan), index=frame.index))
    columns = ["label", "seed", "value", "status", "reason", "parameters", "operations", "seconds", "diverged_at"]
    extra = ["solved_at", "higher_is_better", "dim", "depth", "heads", "variant"]
    frame = frame.sort_values([*TASK, "label", "seed"], kind="stable", na_position="first", key=_by_numbers)
    return frame[[*TASK, *columns, *extra]].reset_index(drop=True)


def baselines(run: Run) -> pd.DataFrame:
    """What needs no attention: one row per task and baseline.

    The interval is there where the test set's size or repeats allow one.
    """
    frame = _with_task(run.of("baseline"))
    frame = frame[frame["status"] == "ok"]
    frame["total"] = _detail(frame, "total")
    rows = []
    frame = frame.sort_values([*TASK, "label"], kind="stable", key=_by_numbers)
    for key, part in frame.groupby([*TASK, "label"], dropna=False, sort=False):
        value, low, high = t_interval(part["value"])
        total = part["total"].iloc[0]
        if np.isnan(low) and total and part["unit"].iloc[0] == "fraction":
            low, high = binomial_interval(value, total)
        if len(part) > 1 and part["value"].nunique() == 1:
            low = high = value
        row = dict(zip([*TASK, "label"], key, strict=True))
        rows.append(row | {"value": value, "low": low, "high": high, "n": len(part)})
        rows[-1]["higher_is_better"] = bool(part["higher_is_better"].iloc[0])
    columns = [*TASK, "label", "value", "low", "high", "n", "higher_is_better"]
    return pd.DataFrame(rows, columns=columns).rename(columns={"label": "baseline"})


def accuracy(run: Run, trained: pd.DataFrame, beside: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds with a t interval, share of seeds that solved the task, parameters, and the verdict.

    `verdict` is `above` where the whole interval is better than the best baseline's, `not above` where the mean is
    not, `unclear` between; `notes` says what a reader must know: one seed, seeds that failed, a parameter gap over 10 %.
    """
    rows = []
    for key, part in trained.groupby([*TASK, "label"], dropna=False, sort=False):
        setting = dict(zip([*TASK, "label"], key, strict=True))
        sign = 1 if part["higher_is_better"].iloc[0] else -1
        good = part[part["status"] == "ok"]
        mean, low, high = t_interval(good["value"])
        if part["unit"].iloc[0] == "fraction":  # few seeds that differ much reach beyond what a share can be
            low, high = np.clip([low, high], 0, 1)
        solved = sign * good["value"] >= sign * good["solved_at"]
        row = setting | {"mean": mean, "low": low, "high": high, "seeds": len(good)}
        row["solved"] = float(solved.mean()) if len(good) and good["solved_at"].notna().all() else np.nan
        row["parameters"] = good["parameters"].median() if len(good) else np.nan
        row |= _best(beside, setting, sign)
        row["verdict"] = _verdict(row, sign)
        failed = part[part["status"] != "ok"]
        row["status"] = "ok" if len(good) else str(failed["status"].iloc[0])
        row["reason"] = "; ".join(dict.fromkeys(failed["reason"].dropna()))
        row["failed"] = ", ".join(f"seed {item.seed} {item.status}" for item in failed.itertuples())
        row["higher_is_better"], row["variant"] = sign > 0, part["variant"].iloc[0]
        rows.append(row)
    columns = [
        "mean",
        "low",
        "high",
        "seeds",
        "solved",
        "parameters",
        "best_baseline",
        "baseline_value",
        "baseline_high",
    ]
    last = ["verdict", "status", "reason", "failed", "higher_is_better", "variant"]
    frame = pd.DataFrame(rows, columns=[*TASK, "label", *columns, *last])
    frame = _parameter_gap(frame, run.baseline)
    frame["notes"] = [_notes(row) for row in rows_of(frame)]
    order = [
        *TASK,
        "label",
        *columns,
        "parameter_gap",
        "verdict",
        "notes",
        "status",
        "reason",
        "higher_is_better",
        "variant",
    ]
    return frame[order]


def _best(beside: pd.DataFrame, setting: Mapping[str, Any], sign: int) -> dict[str, Any]:
    here = _matching(beside, setting)
    if here.empty:
        return {"best_baseline": None, "baseline_value": np.nan, "baseline_high": np.nan}
    row = max(rows_of(here), key=lambda item: sign * item["value"])
    edge = row["high"] if sign > 0 else row["low"]
    return {
        "best_baseline": row["baseline"],
        "baseline_value": row["value"],
        "baseline_high": row["value"] if np.isnan(edge) else edge,
    }


def _matching(frame: pd.DataFrame, setting: Mapping[str, Any]) -> pd.DataFrame:
    """Rows of the same task; a baseline that does not say whether it is causal serves both."""
    same = (frame["task"] == setting["task"]) & (frame["metric"] == setting["metric"]).fillna(True)
    same &= frame["task_options"].fillna("") == ("" if pd.isna(setting["task_options"]) else setting["task_options"])
    for column in ("length", "causal"):
        if not pd.isna(setting[column]):
            same &= frame[column].isna() | (frame[column] == setting[column]).fillna(True)
    return frame[same.astype(bool)]


def _verdict(row: Mapping[str, Any], sign: int) -> str | None:
    if np.isnan(row["mean"]) or np.isnan(row["baseline_high"]):
        return None
    if sign * (row["mean"] - row["baseline_high"]) <= 0:
        return "not above"
    edge = row["low"] if sign > 0 else row["high"]
    return "above" if np.isnan(edge) or sign * (edge - row["baseline_high"]) > 0 else "unclear"


def _parameter_gap(frame: pd.DataFrame, baseline: str) -> pd.DataFrame:
    own = frame[frame["label"] == baseline][[*TASK, "parameters"]].rename(columns={"parameters": "own"})
    frame = frame.merge(own, on=TASK, how="left")
    frame["parameter_gap"] = frame["parameters"] / frame["own"] - 1
    return frame.drop(columns="own")


def _notes(row: Mapping[str, Any]) -> str:
    notes = []
    if row["variant"] in CONTROLS:
        notes.append("control")
    if row["seeds"] == 1:
        notes.append("one seed: no interval over seeds")
    elif row["seeds"] == 2:
        notes.append("two seeds: a very wide interval")
    if row["failed"]:
        notes.append(row["failed"])
    if row["verdict"] == "not above":
        notes.append(f"not above {row['best_baseline']}, which needs no attention")
    if abs(row["parameter_gap"]) > PARAMETER_GAP:
        notes.append(f"{row['parameter_gap']:+.0%} parameters")
    return "; ".join(notes)


def tasks(run: Run, scored: pd.DataFrame) -> pd.DataFrame:
    """Does the task test attention? The baseline label's score against the best control and the best shortcut.

    `verdict`: `tests attention` where it leads both by 20 points or more; `does not test attention` where either comes
    within 5 points; `weakly` between; `not learned` where the baseline label itself is not above the shortcuts. For
    other units the thresholds are relative.
    """
    rows = []
    for key, part in scored.groupby(TASK, dropna=False, sort=False):
        sign: int = 1 if part["higher_is_better"].iloc[0] else -1
        full = part[part["label"] == run.baseline]["mean"]
        controls = part[part["variant"].isin(CONTROLS) & part["mean"].notna()]
        row: dict[str, Any] = dict(zip(TASK, key, strict=True))
        row |= {"score": float(full.iloc[0]) if len(full) else np.nan, "control": None, "control_score": np.nan}
        if len(controls):
            best = max(rows_of(controls), key=lambda item: sign * item["mean"])
            row |= {"control": best["label"], "control_score": best["mean"]}
        row |= {"best_baseline": part["best_baseline"].iloc[0], "baseline_value": part["baseline_value"].iloc[0]}
        rivals = [value for value in (row["control_score"], row["baseline_value"]) if not np.isnan(value)]
        scale = 1.0 if row["unit"] == "fraction" else abs(row["score"])
        margin = min((sign * (row["score"] - rival) / scale for rival in rivals), default=np.nan) if scale else np.nan
        row["margin"] = margin
        row["verdict"] = _tests_attention(margin, sign * (row["score"] - row["baseline_value"]))
        rows.append(row)
    columns = ["score", "control", "control_score", "best_baseline", "baseline_value", "margin", "verdict"]
    return pd.DataFrame(rows, columns=[*TASK, *columns])


def _tests_attention(margin: float, lead: float) -> str | None:
    if np.isnan(margin):
        return None
    if lead <= 0:  # where nothing was learned, nothing is known about the task
        return "not learned"
    return "tests attention" if margin >= CLEAR else "does not test attention" if margin <= CLOSE else "weakly"


def curves(run: Run) -> pd.DataFrame:
    """Learning curves, one row per evaluation."""
    frame = _with_task(run.of("curve"))
    rows = []
    for record in rows_of(frame):
        key = {column: record[column] for column in (*TASK, "label", "seed", "variant")}
        rows += [key | point for point in (record["details"] or {}).get("curve") or ()]
    points = ["step", "train_loss", "validation", "learning_rate", "seconds", "operations"]
    return pd.DataFrame(rows, columns=[*TASK, "label", "seed", *points, "variant"])


def slices(run: Run) -> pd.DataFrame:
    """Scores sliced by what makes an item hard, pooled over seeds: `value` of `slice` `slice_value`, from `total` answers."""
    frame = _with_task(run.of("accuracy"))
    frame = frame[frame["status"] == "ok"]
    rows = []
    for record in rows_of(frame):
        key = {column: record[column] for column in (*TASK, "label", "variant")}
        for name, values in ((record["details"] or {}).get("by_slice") or {}).items():
            for at, (correct, total) in values.items():
                rows.append(key | {"slice": name, "slice_value": str(at), "correct": correct, "total": total})
    columns = [*TASK, "label", "slice", "slice_value", "correct", "total", "variant"]
    found = pd.DataFrame(rows, columns=columns)
    by = [column for column in columns if column not in ("correct", "total")]
    pooled = found.groupby(by, dropna=False, sort=False)[["correct", "total"]].sum().reset_index()
    pooled["value"] = pooled["correct"] / pooled["total"]
    return pooled[[*TASK, "label", "slice", "slice_value", "value", "total", "variant"]]
