"""What a finished run prints: time, memory and accuracy by label, within 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from attnbench.cli.output import print_table

SETTING = ["mode", "causal", "device", "dtype", "scope"]  # one table each; what never varies is said once in its title


def print_run(folder: Path) -> None:
    """Prints the tables of a run that a reader wants first."""
    from attnbench.analysis import load, tables

    found = tables(load(folder))
    for name, column, title in (("speed", "seconds", "Time"), ("memory", "bytes", "Peak memory")):
        for setting, part in _settings(found[name]):
            print()
            _by_length(part, column, f"{title} ({setting})")
    if len(found["accuracy"]):
        print()
        _accuracy(found["accuracy"], found["baselines"])


def _settings(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    keys = [key for key in SETTING if key in frame and frame[key].notna().any()]
    for values, part in frame.groupby(keys, sort=False, dropna=False) if keys and len(frame) else ():
        words = [_word(key, value) for key, value in zip(keys, values, strict=True)]
        yield ", ".join(word for word in words if word), part


def _word(key: str, value: Any) -> str:
    if pd.isna(value):
        return ""
    if key == "causal":
        return "causal" if value else "bidirectional"
    return f"{value} alone" if value == "attention" else str(value)


def _by_length(part: pd.DataFrame, column: str, title: str) -> None:
    """Labels down, lengths across; a cell that has no number shows its status, and one at the floor a tilde."""
    from attnbench.report.units import readable

    unit = "s" if column == "seconds" else "bytes"
    lengths = sorted(part["length"].dropna().unique())
    rows = []
    for label, mine in part.groupby("label", sort=False):
        by_length: dict[Any, str] = {}
        for row in mine.to_dict("records"):
            number = row[column]
            text = str(row["status"]) if pd.isna(number) else readable(float(number), unit)
            by_length[row["length"]] = ("~" if row.get("at_floor") is True else "") + text
        rows.append([label, *(by_length.get(length, "") for length in lengths)])
    columns = ["label", *(f"{int(length)}" for length in lengths)]
    print_table(columns, rows, right=columns[1:], title=title)
    if any("~" in cell for row in rows for cell in map(str, row)):
        print("~ dominated by fixed costs (launch and Python), not by the attention")


def _accuracy(scored: pd.DataFrame, baselines: pd.DataFrame) -> None:
    rows = [_score(row) for row in scored.to_dict("records")]
    print_table(
        ["task", "label", "mean", "95 % interval", "seeds", "note"], rows, right=["mean", "seeds"], title="Accuracy"
    )
    for task, part in baselines.groupby("task", sort=False):
        without = ", ".join(
            f"{row['baseline']} {row['value']:.3f}" for row in part.to_dict("records") if pd.notna(row["value"])
        )
        print(f"{task} without attention: {without}")
    if (scored["seeds"].fillna(0) == 1).any():
        print("One seed is one seed: it says nothing about how far another would land.")


def _score(row: Mapping[Any, Any]) -> list[str]:
    if pd.isna(row["mean"]):
        return [row["task"], row["label"], str(row.get("status") or ""), "", "", str(row.get("reason") or "")]
    interval = "" if pd.isna(row["low"]) else f"{row['low']:.3f} - {row['high']:.3f}"
    note = row.get("notes")
    return [row["task"], row["label"], f"{row['mean']:.3f}", interval, f"{row['seeds']:.0f}", str(note) if note else ""]
