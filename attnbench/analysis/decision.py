"""Everything that a choice rests on, in one table: a row per label and setting, with time, memory, state and accuracy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from attnbench.analysis.costs import KEYS, REST, arrange
from attnbench.analysis.loading import WORK, rows_of

__all__ = ["common_tasks", "decisions", "overall", "task_name", "task_names"]


def task_name(row: Mapping[str, object]) -> str:
    """How a task is called in a heading: its name and its options."""
    options = row.get("task_options")
    return f"{row['task']}({options})" if isinstance(options, str) and options else str(row["task"])


def task_names(frame: pd.DataFrame) -> list[str]:
    """A name for each row's task; what else is needed to tell two tasks apart is added."""
    names = [task_name(row) for row in rows_of(frame)]
    for column, word in (("length", "length {}"), ("causal", "causal {}")):
        distinct = frame.assign(name=names).groupby("name")[column].nunique(dropna=False)
        names = [
            f"{name}, {word.format(value)}" if distinct[name] > 1 and not pd.isna(value) else name
            for name, value in zip(names, frame[column], strict=True)
        ]
    return names


def common_tasks(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Scores that are fractions, on the tasks that the most labels were trained on, with the task's `name`.

    Means over different tasks are not comparable, so a task that few labels met counts for none.
    """
    frame = accuracy[accuracy["unit"].eq("fraction").fillna(False) & accuracy["higher_is_better"].astype(bool)]
    frame = frame.assign(name=pd.array(task_names(frame), dtype="string"))
    trained = frame[frame["mean"].notna()].groupby("name")["label"].nunique()
    return frame[frame["name"].isin(trained.index[trained == trained.max()])]


def decisions(tables: Mapping[str, pd.DataFrame], baseline: str) -> pd.DataFrame:
    """One row per timed cell; within a setting and a length the fastest first, and what failed last.

    Fastest is what the ratio to the baseline says, where there is one: a machine that drifts leaves it alone, seconds not.
    `speedup` is the baseline's time over the label's; `accuracy` the mean score over the `common_tasks`, and
    `worst_accuracy` the lowest of them; both are null where a label misses one of them.
    """
    on = [*KEYS, *REST]
    frame = tables["speed"][[*on, "seconds", "low", "high", "tokens_per_second", "at_floor", "status", "reason"]]
    ratio = tables["ratios"]
    ratio = ratio[ratio["quantity"] == "speed"][[*on, "ratio", "low", "high"]]
    ratio = ratio.assign(speedup=1 / ratio["ratio"], speedup_low=1 / ratio["high"], speedup_high=1 / ratio["low"])
    frame = frame.merge(ratio[[*on, "speedup", "speedup_low", "speedup_high"]], on=on, how="left")
    for name, column in (("memory", "bytes"), ("state", "state_bytes")):
        part = tables[name][[*on, "bytes"]].rename(columns={"bytes": column})
        frame = frame.merge(part, on=on, how="left")
    frame = frame.merge(overall(tables["accuracy"]), on="label", how="left")
    columns = [
        "seconds",
        "low",
        "high",
        "speedup",
        "speedup_low",
        "speedup_high",
        "tokens_per_second",
        "bytes",
        "state_bytes",
    ]
    order = [*KEYS, *columns, "accuracy", "worst_accuracy", "worst_task", "at_floor", "status", "reason", *REST]
    setting = [column for column in WORK if column != "length"]
    by = [*setting, "length", "speedup", "seconds"]
    rising = [column != "speedup" for column in by]
    return arrange(frame, baseline).sort_values(by, ascending=rising, kind="stable", ignore_index=True)[order]


def overall(scored: pd.DataFrame) -> pd.DataFrame:
    """A row per label of the table `accuracy`: mean and lowest score over the `common_tasks`; null where one is missing."""
    common = common_tasks(scored)
    rows = []
    for label, part in common.groupby("label", sort=False):
        row = {"label": label, "accuracy": np.nan, "worst_accuracy": np.nan, "worst_task": None}
        if part["mean"].notna().all() and len(part) == common["name"].nunique():
            worst = rows_of(part.sort_values("mean", kind="stable"))[0]
            row |= {"accuracy": part["mean"].mean(), "worst_accuracy": worst["mean"], "worst_task": worst["name"]}
        rows.append(row)
    frame = pd.DataFrame(rows, columns=["label", "accuracy", "worst_accuracy", "worst_task"])
    return frame.astype({"label": "string", "accuracy": float, "worst_accuracy": float, "worst_task": "string"})
