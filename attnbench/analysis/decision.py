"""Everything that a choice rests on, in one table: a row per label and setting, with time, memory, state and accuracy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from attnbench.analysis.costs import KEYS, REST, arrange
from attnbench.analysis.loading import rows_of

__all__ = ["decisions", "task_name"]


def task_name(row: Mapping[str, object]) -> str:
    """How a task is called in a heading: its name and its options."""
    options = row.get("task_options")
    return f"{row['task']}({options})" if isinstance(options, str) and options else str(row["task"])


def decisions(tables: Mapping[str, pd.DataFrame], baseline: str) -> pd.DataFrame:
    """One row per timed cell.

    `speedup` is the baseline's time over the label's; `accuracy` the mean score over all tasks measured as a fraction,
    and `worst_accuracy` the lowest of them; both are null where a task is missing.
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
    frame = frame.merge(_accuracy(tables["accuracy"]), on="label", how="left")
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
    return arrange(frame, baseline)[order]


def _accuracy(scored: pd.DataFrame) -> pd.DataFrame:
    fractions = scored[scored["unit"].eq("fraction").fillna(False) & scored["higher_is_better"].astype(bool)]
    task = [task_name(row) for row in rows_of(fractions)]
    fractions = fractions.assign(worst_task=task)[["label", "worst_task", "mean"]]
    wanted = fractions["worst_task"].nunique()
    rows = []
    for label, part in fractions.groupby("label", sort=False):
        row = {"label": label, "accuracy": np.nan, "worst_accuracy": np.nan, "worst_task": None}
        if part["mean"].notna().all() and part["worst_task"].nunique() == wanted:
            worst = rows_of(part.sort_values("mean", kind="stable"))[0]
            row |= {"accuracy": part["mean"].mean(), "worst_accuracy": worst["mean"], "worst_task": worst["worst_task"]}
        rows.append(row)
    frame = pd.DataFrame(rows, columns=["label", "accuracy", "worst_accuracy", "worst_task"])
    return frame.astype({"label": "string", "accuracy": float, "worst_accuracy": float, "worst_task": "string"})
