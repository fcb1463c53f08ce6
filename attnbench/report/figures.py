"""Which plots a run gets, and what they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from attnbench.analysis.complexity import patterns
from attnbench.analysis.decision import task_name
from attnbench.analysis.loading import WORK, Run, rows_of
from attnbench.report.accuracy import accuracy_plot
from attnbench.report.gallery import gallery_plot
from attnbench.report.growth import memory_plot, operations_plot, state_plot, time_plot
from attnbench.report.learning import accuracy_length_plot, apart_from_length, budget_plot, curves_plot, slices_plot
from attnbench.report.speedup import heatmap_plot, speedup_plot
from attnbench.report.tradeoff import bubble_plot, memory_speed_plot, operating_plot

__all__ = ["Plot", "figures"]

SETTING = [column for column in WORK if column != "length"]
_TASK = ["task", "task_options"]


@dataclass(frozen=True)
class Plot:
    """`name` is the file's without its suffix, `group` the chapter it belongs to, `words` what it shows."""

    name: str
    group: str
    words: str
    draw: Callable[[], Figure]


def figures(run: Run, tables: Mapping[str, pd.DataFrame]) -> Iterator[Plot]:
    """Every plot that the run has data for, the most telling first."""
    yield from _tradeoffs(tables)
    yield from _lengths(tables)
    yield from _scores(tables)
    drawn = patterns(run)
    if drawn:
        yield Plot("patterns", "Patterns", "who sees whom, by variant", partial(gallery_plot, drawn))


def _tradeoffs(tables: Mapping[str, pd.DataFrame]) -> Iterator[Plot]:
    for words, table in _settings(tables["decisions"]):
        if (table["accuracy"].notna() & table["seconds"].notna()).any():
            yield _plot(
                "bubble",
                "Trade-offs",
                words,
                "accuracy against speed, memory as area",
                bubble_plot,
                table,
                tables["baselines"],
            )
            grids = table.dropna(subset=["accuracy"]).groupby("variant")["label"].nunique()
            if (grids > 1).any():
                yield _plot(
                    "operating", "Trade-offs", words, "accuracy against time over options", operating_plot, table
                )
        if (table["bytes"].notna() & table["seconds"].notna()).any():
            yield _plot("memory-speed", "Trade-offs", words, "memory against speed", memory_speed_plot, table)


def _lengths(tables: Mapping[str, pd.DataFrame]) -> Iterator[Plot]:
    timed = tables["ratios"][tables["ratios"]["quantity"] == "speed"]
    for words, table, crossings, failed in _settings(timed, tables["crossover"], tables["outcomes"]):
        if table["label"].nunique() > 1:
            yield _plot(
                "speedup", "Against length", words, "speed-up over the baseline", speedup_plot, table, crossings
            )
            yield _plot("heatmap", "Against length", words, "speed-up by label and length", heatmap_plot, table, failed)
    growth: dict[str, tuple[str, Any]] = {
        "time": ("speed", time_plot),
        "memory": ("memory", memory_plot),
        "operations": ("operations", operations_plot),
        "state": ("state", state_plot),
    }
    for kind, (name, draw) in growth.items():
        for words, table, scaling in _settings(tables[name], tables["scaling"]):
            yield _plot(kind, "Against length", words, f"{kind} against length", draw, table, scaling)


def _scores(tables: Mapping[str, pd.DataFrame]) -> Iterator[Plot]:
    if not len(tables["accuracy"]):
        return
    three = tables["accuracy"], tables["scores"], tables["baselines"]
    yield _plot("accuracy", "Accuracy", "", "accuracy by variant, each seed a dot", accuracy_plot, *three)
    for words, part in _by_length(tables["accuracy"]):
        yield _plot("accuracy-length", "Accuracy", words, "accuracy against length", accuracy_length_plot, part)
    tasks = list(_tasks(tables["scores"], tables["curves"], tables["slices"]))
    for place, (words, _, curves, slices) in enumerate(tasks):
        for spent in ("seconds", "operations") if place == 0 else ():
            if (curves[spent] > 0).any():
                shows = f"accuracy over {spent} of training"
                yield _plot(f"budget-{spent}", "Accuracy", words, shows, budget_plot, curves, spent)
        for name, part in slices.groupby("slice", sort=False):
            if part["slice_value"].nunique() > 1:
                yield _plot(f"slice-{name}", "Accuracy", words, f"accuracy by {name}", slices_plot, part)
        if len(curves):
            yield _plot("curves", "Accuracy", words, "learning curves", curves_plot, curves)


def _by_length(accuracy: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """(words, rows) of every task that was trained at several lengths, all else equal."""
    frame = accuracy.assign(others=apart_from_length(accuracy))
    several = [
        (str(task), str(others), part.drop(columns="others"))
        for (task, others), part in frame.groupby(["task", "others"], sort=False)
        if part["length"].nunique() > 1
    ]
    names = [task for task, _, _ in several]
    for task, others, part in several:
        yield task if names.count(task) == 1 else f"{task} {others}", part


def _plot(kind: str, group: str, words: str, shows: str, draw: Callable[..., Figure], *arguments: Any) -> Plot:
    slug = "".join(letter if letter.isalnum() else "-" for letter in f"{kind} {words}".lower())
    name = "-".join(part for part in slug.split("-") if part)
    return Plot(name, group, f"{shows}, {words}" if words else shows, partial(draw, *arguments))


def _settings(table: pd.DataFrame, *others: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """(words, rows, rows of the other tables) of every setting; the words are the mode and whatever else varies in the run."""
    varying = [column for column in SETTING if column == "mode" or table[column].nunique(dropna=False) > 1]
    for key, part in table.groupby(SETTING, dropna=False, sort=False):
        setting = dict(zip(SETTING, key, strict=True))
        words = " ".join(_word(column, setting[column]) for column in varying)
        yield words.strip(), part, *(_where(other, setting) for other in others)


def _tasks(table: pd.DataFrame, *others: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """(words, rows, rows of the other tables) of every task; the words name its options only where two tasks share a name."""
    found = table.drop_duplicates(_TASK)
    for row in rows_of(found):
        setting = {column: row[column] for column in _TASK}
        alone = (found["task"] == row["task"]).sum() == 1
        yield (
            str(row["task"]) if alone else task_name(row),
            _where(table, setting),
            *(_where(other, setting) for other in others),
        )


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
