"""How scores come about: learning curves, accuracy against length, and against what makes an item hard."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from attnbench.report.canvas import cell_axes, empty, figure, unit_axis, wrap
from attnbench.report.growth import End
from attnbench.report.labels import label_ends
from attnbench.report.style import INK, PAPER, SOFT, look_of, style

__all__ = ["accuracy_length_plot", "budget_plot", "curves_plot", "slices_plot"]


def curves_plot(curves: pd.DataFrame) -> Figure:
    """Validation score against step for one task: median over seeds, every seed faint. From the table `curves`."""
    return _learning(curves, "step", "training step", "Learning curves on")


def budget_plot(curves: pd.DataFrame, spent: str = "seconds") -> Figure:
    """Validation score against what was spent on training, `seconds` or `operations`, for one task: how much a budget buys with
    each label. Median over seeds, every seed faint. From the table `curves`."""
    words = {"seconds": "seconds of training (evaluation apart)", "operations": "operations of training"}[spent]
    return _learning(curves, spent, words, f"Accuracy over {spent} on")


def _learning(curves: pd.DataFrame, over: str, xlabel: str, title: str) -> Figure:
    shown = curves[curves["validation"].notna() & (curves[over] > 0)]
    if shown.empty:
        return empty(f"{title.removesuffix(' on')}: none were recorded")
    with style():
        made, ax = _canvas(shown["label"].nunique())
        ends = []
        for label, part in shown.groupby("label", sort=False):
            look = look_of(str(label))
            for _, seed in part.groupby("seed", dropna=False):
                seed = seed.sort_values("step")
                ax.plot(seed[over], seed["validation"].astype(float), color=look.colour, linewidth=0.7, alpha=0.3)
            steps = part.astype({"validation": float, over: float}).groupby("step")
            at, middle = steps[over].median().to_numpy(), steps["validation"].median().to_numpy()
            ax.plot(at, middle, color=look.colour, dashes=look.dashes or (None, None))
            ends.append((float(at[-1]), float(middle[-1]), f"{label}  {middle[-1]:.3g}", look.colour))
        if over != "step":
            unit_axis(ax, {"seconds": "s", "operations": "flop"}[over], axis="x")
        ax.set_xlabel(xlabel)
        ax.set_ylabel(f"validation {_only(shown['metric'])}")
        label_ends(ax, ends, title="label, at the end")
        wrap(made, f"{title} {_only(shown['task'])}", _under(shown, "median over seeds; each seed faint"))
    return made


def apart_from_length(frame: pd.DataFrame) -> pd.Series:
    """The tasks' options but for their length: equal for what differs in the length alone."""
    options = frame["task_options"].fillna("").astype(str).str.split(", ")
    return options.map(lambda each: ", ".join(option for option in each if not option.startswith("length=")))


def accuracy_length_plot(accuracy: pd.DataFrame) -> Figure:
    """Mean score against the task's length, with t intervals over seeds, for one task at several lengths. From the table
    `accuracy`."""
    shown = accuracy[accuracy["mean"].notna() & accuracy["length"].notna()]
    if shown.empty:
        return empty("Accuracy against length: nothing was trained")
    shown = shown.assign(task_options=apart_from_length(shown))
    return _series(
        shown, "length", "mean", f"Accuracy against length on {_only(shown['task'])}", "length of the task (tokens)"
    )


def slices_plot(slices: pd.DataFrame) -> Figure:
    """Score against what makes an item hard, for one task and one slice, from the table `slices`: lines over what can be
    counted (a gap, pairs, depth), a table of cells over kinds (the classes of a byte)."""
    shown = slices[slices["value"].notna()]
    if shown.empty:
        return empty("Scores by slice: none were recorded")
    name = _only(shown["slice"])
    title = f"Accuracy on {_only(shown['task'])} by {name}"
    at = pd.to_numeric(shown["slice_value"], errors="coerce")
    if at.isna().any():
        return _cells(shown, title)
    learned_at = float(shown["length"].iloc[0]) if name == "test length" else None
    return _series(shown.assign(at=at), "at", "value", title, name, learned_at)


def _cells(shown: pd.DataFrame, title: str) -> Figure:
    table = shown.pivot_table(index="label", columns="slice_value", values="value", sort=False)
    table = table.loc[table.mean(axis=1).sort_values(ascending=False, kind="stable").index]
    with style():
        made, ax = cell_axes([str(label) for label in table.index], [str(kind) for kind in table.columns])
        values = table.to_numpy(dtype=float)
        ax.imshow(values, cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                colour = PAPER if value > 0.8 else INK
                ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=colour)
        wrap(made, title, _under(shown, "pooled over seeds; labels by their mean over the kinds"))
    return made


def _series(shown: pd.DataFrame, x: str, y: str, title: str, xlabel: str, learned_at: float | None = None) -> Figure:
    """A line for each label; a dashed one stands at the length of training, where it is another than that of testing."""
    with style():
        made, ax = _canvas(shown["label"].nunique())
        ends: list[End] = []
        for label, part in shown.groupby("label", sort=False):
            part, look = part.sort_values(x), look_of(str(label))
            places, values = part[x].to_numpy(dtype=float), part[y].to_numpy(dtype=float)
            if {"low", "high"} <= set(part):
                low, high = part["low"].to_numpy(dtype=float), part["high"].to_numpy(dtype=float)
                known = np.isfinite(low)
                ax.vlines(places[known], low[known], high[known], color=look.colour, linewidth=1.2, alpha=0.35)
            ax.plot(places, values, color=look.colour, marker=look.marker, dashes=look.dashes or (None, None))
            ends.append((float(places[-1]), float(values[-1]), f"{label}  {values[-1]:.2f}", look.colour))
        if learned_at is not None:
            ax.axvline(learned_at, color=SOFT, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
            ax.annotate(
                "trained here", (learned_at, 0.02), xytext=(4, 0), textcoords="offset points", fontsize=8, color=SOFT
            )
        _log_if_wide(ax, [float(value) for value in shown[x]])
        ax.set_xlabel(xlabel)
        ax.set_ylabel(_only(shown["metric"]))
        if (shown["unit"] == "fraction").fillna(False).all():
            ax.set_ylim(-0.03, 1.03)
        label_ends(ax, ends, title="label, at the last")
        pooled = "mean over seeds, 95 % t interval" if "low" in shown else "pooled over seeds"
        wrap(made, title, _under(shown, pooled))
    return made


def _canvas(labels: int) -> tuple[Figure, Axes]:
    made = figure(8.6, max(4.7, 1.9 + 0.17 * labels))
    return made, made.add_axes((0.085, 0.115, 0.6, 0.745))


def _log_if_wide(ax: Axes, values: list[float]) -> None:
    ticks = sorted(set(values))
    if ticks[0] > 0 and ticks[-1] / ticks[0] >= 4:
        ax.set_xscale("log", base=2)
    while len(ticks) > 10:
        ticks = ticks[::-2][::-1]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _only(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if not pd.isna(value)))  # type: ignore[call-overload]


def _under(frame: pd.DataFrame, words: str) -> str:
    """The line under a heading: the task's options, which would not fit into the heading itself, and how to read the plot."""
    options = _only(frame["task_options"])
    return f"{options}; {words}" if options else words
