"""Tables on disk: CSV that comes back as it was written, also for labels such as `null`, `NA` and `nan`."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

__all__ = ["TEXT", "read_table", "write_table"]

TEXT = {
    *(
        "quantity",
        "mode",
        "device",
        "dtype",
        "label",
        "status",
        "reason",
        "scope",
        "variant",
        "task",
        "metric",
        "task_options",
    ),
    *("verdict", "notes", "baseline", "best_baseline", "slice", "slice_value", "unit", "control", "declared_time"),
    *("declared_memory", "sequential", "path", "model", "source", "caveat"),
}
_NUMBER = re.compile(r"-?(\d+\.?\d*([eE][+-]?\d+)?|inf)\Z")


def write_table(frame: pd.DataFrame, path: Path) -> Path:
    """Writes a table as CSV; null becomes an empty field."""
    frame.to_csv(path, index=False, lineterminator="\n", encoding="utf-8")
    return path


def read_table(path: str | Path) -> pd.DataFrame:
    """Reads a table that `write_table` wrote. Text columns stay text whatever they hold; an empty number is null."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False, na_filter=False, encoding="utf-8")
    for column in frame.columns:
        if column not in TEXT:
            frame[column] = _typed(frame[column])
    return frame


def _typed(column: pd.Series) -> pd.Series:
    values = set(column)
    if values <= {"True", "False", ""} and values != {""}:
        return column.map({"True": True, "False": False, "": pd.NA}).astype("boolean")
    if all(value == "" or _NUMBER.match(value) for value in values):
        return pd.to_numeric(column.mask(column == "", None))
    return column
