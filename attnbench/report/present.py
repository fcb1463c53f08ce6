"""Tables as people read them: what all rows share is said once, intervals are one column, numbers carry their unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from attnbench.analysis.loading import rows_of
from attnbench.report.units import ratio_text, readable, share_text

__all__ = ["TITLES", "Cell", "Presented", "present"]

TITLES = {  # in the order of the page
    "decisions": "Decision table",
    "speed": "Time",
    "ratios": "Ratios to the baseline",
    "crossover": "Where a variant overtakes the baseline",
    "memory": "Peak memory",
    "resident": "Resident memory of the process",
    "state": "Decoding state",
    "operations": "Operations",
    "rates": "Operations per second",
    "scaling": "Growth with length",
    "complexity": "Complexity: declared and measured",
    "compile": "Compilation",
    "accuracy": "Accuracy",
    "tasks": "Do the tasks test attention?",
    "baselines": "Baselines that need no attention",
    "scores": "Every training",
    "slices": "Accuracy by what makes an item hard",
    "outcomes": "What did not end well",
}

_SHARED = [
    *("mode", "scope", "causal", "device", "dtype", "batch", "heads", "head_dim", "dim", "depth", "metric", "unit"),
    *("n", "rounds", "lengths", "from_length", "to_length", "seeds", "status", "higher_is_better"),
]
_UNITS = {"speed": "s", "compile": "s", "memory": "bytes", "resident": "bytes", "state": "bytes", "operations": "flop"}
_UNITS |= {"rates": "flop/s", "decisions": "s"}
_COLUMN_UNITS = {
    **dict.fromkeys(
        ("seconds", "floor", "mask_seconds", "construct_seconds", "recompile_seconds", "eager", "compiled"), "s"
    ),
    **dict.fromkeys(("bytes", "state_bytes"), "bytes"),
    **dict.fromkeys(("flop", "flop_per_token", "operations"), "flop"),
    **dict.fromkeys(("flop_per_second", "matmul_rate"), "flop/s"),
}
_RATIOS = {"ratio", "speedup"}
_SHARES = {"share", "solved", "misfit", "parameter_gap"}
_WHOLE = {
    "length",
    "from_length",
    "to_length",
    "n",
    "seeds",
    "seed",
    "batch",
    "heads",
    "head_dim",
    "dim",
    "depth",
    "rounds",
}
_WHOLE |= {"lengths", "parameters", "total", "recompiles", "graphs", "crossover"}
_NAMES = {
    "low": "95 % interval",
    "speedup_low": "speed-up, 95 %",
    "speedup": "speed-up",
    "n": "rounds",
    "solved": "seeds that solved it",
}
_NAMES |= {
    "at_floor": "at the floor",
    "misfit": "misfit of the fit",
    "state_bytes": "state",
    "bytes": "memory",
    "seconds": "time",
}


@dataclass(frozen=True)
class Cell:
    """What is shown, and what is sorted and filtered by."""

    text: str
    value: float | str | None


@dataclass(frozen=True)
class Presented:
    """A table ready to be written: `shared` is what all its rows have in common."""

    name: str
    title: str
    columns: list[str]
    numeric: list[bool]
    rows: list[list[Cell]]
    shared: str


def present(name: str, frame: pd.DataFrame) -> Presented:
    """A table of `tables` for readers."""
    frame = frame.copy()
    if {"variant", "label"} <= set(frame) and (frame["variant"].isna() | (frame["variant"] == frame["label"])).all():
        frame = frame.drop(columns="variant")
    shared = []
    for column in _SHARED:
        values = list(frame[column].dropna().unique()) if column in frame else []
        if len(values) == 1 and frame[column].notna().all() and len(frame) > 1:
            shared.append(f"{_heading(column)} {_text(name, column, values[0])}")
            frame = frame.drop(columns=column)
    hidden = {"high", "speedup_high"} | ({"low"} if name == "decisions" else set())
    shown = [str(column) for column in frame if column not in hidden and not _blank(frame[column])]
    rows = [[_cell(name, column, row) for column in shown] for row in rows_of(frame)]
    return Presented(
        name,
        TITLES.get(name, name),
        [_heading(column) for column in shown],
        [_is_number(frame[column]) for column in shown],
        rows,
        ", ".join(shared),
    )


def _blank(column: pd.Series) -> bool:
    return bool((column.isna() | column.astype("string").eq("").fillna(True)).all())


def _is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _heading(column: str) -> str:
    return _NAMES.get(column, column.replace("_", " "))


def _cell(table: str, column: str, row: dict[str, Any]) -> Cell:
    value = row[column]
    if column in ("low", "speedup_low"):
        high = row[column.replace("low", "high")]
        ends = _text(table, column, value), _text(table, column, high)
        text = "" if not any(ends) else " – ".join(end or "open" for end in ends) if ends[0] != ends[1] else "exact"
        return Cell(text, None if pd.isna(value) else float(value))
    if pd.isna(value):
        return Cell("", None)
    text = _text(table, column, value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return Cell(text, text)
    return Cell(text, float(value) if math.isfinite(value) else None)


def _text(table: str, column: str, value: Any) -> str:
    if pd.isna(value):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or str(value) in ("True", "False"):
        return "yes" if value else "no"
    number = float(value)
    if column in _RATIOS or column.startswith("speedup") or (table == "ratios" and column in ("low", "high")):
        return ratio_text(number)
    if column in _SHARES:
        return share_text(number)
    if column == "tokens_per_second":
        return readable(number)
    if column in _WHOLE or (table == "crossover" and column in ("low", "high")):
        return f"{number:.0f}"
    unit = _UNITS.get(table, "") if column in ("low", "high") else _COLUMN_UNITS.get(column)
    return (
        readable(number, unit)
        if unit
        else f"{number:.3f}".rstrip("0").rstrip(".")
        if abs(number) < 1e4
        else f"{number:.4g}"
    )
