"""Which plots a run gets, and what they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from attnbench.analysis.loading import WORK, Run
from attnbench.report.accuracy import accuracy_plot
from attnbench.report.growth import memory_plot, operations_plot, state_plot, time_plot

__all__ = ["figures"]

SETTING = [column for column in WORK if column != "length"]
_GROWTH = {
    "time": ("speed", time_plot),
    "memory": ("memory", memory_plot),
    "operations": ("operations", operations_plot),
    "state": ("state", state_plot),
}


def figures(run: Run, tables: Mapping[str, pd.DataFrame]) -> Iterator[tuple[str, str, Callable[[], Figure]]]:
    """(file name without suffix, what it shows, how to draw it) of every plot that the run has data for."""
    for kind, (name, draw) in _GROWTH.items():
        for words, table, scaling in _settings(tables[name], tables["scaling"]):
            yield _name(kind, words), f"{kind} against length, {words}", partial(draw, table, scaling)
    if len(tables["accuracy"]):
        three = tables["accuracy"], tables["scores"], tables["baselines"]
        yield "accuracy", "accuracy by variant", partial(accuracy_plot, *three)


def _name(kind: str, words: str) -> str:
    return "-".join([kind, *words.replace("_", "-").split()]).replace("/", "-")


def _settings(table: pd.DataFrame, *others: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """(words, rows, rows of the other tables) of every setting; the words are the mode and whatever else varies in the run."""
    varying = [column for column in SETTING if column == "mode" or table[column].nunique(dropna=False) > 1]
    for key, part in table.groupby(SETTING, dropna=False, sort=False):
        setting = dict(zip(SETTING, key, strict=True))
        words = " ".join(_word(column, setting[column]) for column in varying)
        yield words, part, *(_where(other, setting) for other in others)


def _word(column: str, value: Any) -> str:
    if pd.isna(value):
        return ""
    if column == "causal":
        return "causal" if value else "bidirectional"
    return str(value) if isinstance(value, str) else f"{column.replace('_', '-')}{value}"


def _where(frame: pd.DataFrame, setting: Mapping[str, Any]) -> pd.DataFrame:
    same = pd.Series(True, index=frame.index)
    for column, value in setting.items():
        same &= frame[column].isna() if pd.isna(value) else (frame[column] == value).fillna(False)
    return frame[same.astype(bool)]
