"""Trade-offs: accuracy against speed with memory as area, memory against speed, accuracy against what training cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbench.analysis.accuracy import CONTROLS, counting
from attnbench.analysis.loading import rows_of
from attnbench.report.canvas import empty, figure, mark_point, unit_axis, wrap
from attnbench.report.growth import describe
from attnbench.report.labels import label_points
from attnbench.report.style import INK, PAPER, SOFT, look_of, style
from attnbench.report.units import readable

__all__ = ["bubble_plot", "memory_speed_plot", "operating_plot", "pareto"]

NAME = (90.0, 10.0)  # width and height of a baseline's name, in points


def pareto(x: Sequence[float], y: Sequence[float]) -> list[int]:
    """Indices of the points that no other beats on both axes (more is better on both), by rising x."""
    order = sorted(range(len(x)), key=lambda i: (-x[i], -y[i]))
    front, best = [], -math.inf
    for i in order:
        if y[i] > best:
            front.append(i)
            best = y[i]
    return front[::-1]


def bubble_plot(decisions: pd.DataFrame, baselines: pd.DataFrame | None = None, length: int | None = None) -> Figure:
    """Speed on x, accuracy on y, peak memory as area; the Pareto front drawn, baselines as lines.

    From the tables `decisions` (at `length`, by default the longest that most labels reach) and `baselines`. Accuracy is the
    mean over the tasks, and so is each baseline that all tasks have; where none is, the best one's mean.
    """
    shown = decisions[decisions["accuracy"].notna() & (decisions["tokens_per_second"] > 0)]
    if shown.empty:
        return empty("Speed, accuracy and memory: no label has both a time and an accuracy")
    reached = shown.groupby("length")["label"].nunique()
    length = int(reached[reached == reached.max()].index.max()) if length is None else length
    shown = shown[shown["length"] == length].drop_duplicates("label")
    rows = sorted(rows_of(shown), key=lambda row: -(0 if math.isnan(row["bytes"]) else row["bytes"]))
    x, y = [row["tokens_per_second"] for row in rows], [row["accuracy"] for row in rows]
    largest = max((row["bytes"] for row in rows if not math.isnan(row["bytes"])), default=math.nan)
    with style():
        made = figure(8.6, 5.8)
        ax = made.add_axes((0.085, 0.105, 0.885, 0.745))
        ax.set_xscale("log")
        ax.set_xlim(min(x) / 1.8, max(x) * 1.9)
        low = min([*y, *_lines(baselines).values()])
        ax.set_ylim(max(-0.03, low - 0.09), max(y) + 0.1)
        unit_axis(ax, "", axis="x")
        ax.set_xlabel("speed (tokens per second, more is better)")
        ax.set_ylabel("accuracy (mean over tasks)" if decisions["worst_task"].nunique() > 1 else "accuracy")
        front = _front(ax, x, y, [row["variant"] in CONTROLS for row in rows])
        radii = [_radius(row["bytes"], largest) for row in rows]
        for row, radius in zip(rows, radii, strict=True):
            look = look_of(row["label"])
            ax.scatter(
                row["tokens_per_second"],
                row["accuracy"],
                s=(2 * radius) ** 2,
                color=look.colour,
                alpha=0.42,
                linewidths=0,
                zorder=3,
            )
            ax.scatter(row["tokens_per_second"], row["accuracy"], s=10, marker=look.marker, color=look.colour, zorder=4)
        for name, value in _lines(baselines).items():
            ax.axhline(value, color=SOFT, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
            side = _freer_side(ax, value, list(zip(x, y, radii, strict=True)))
            ax.text(
                0.008 if side == "left" else 0.992,
                value,
                f"{name} {value:.2f}",
                transform=ax.get_yaxis_transform(),
                fontsize=7.5,
                ha=side,
                color=SOFT,
                zorder=5,
                bbox={"facecolor": PAPER, "alpha": 0.75, "edgecolor": "none", "pad": 0.8},
                va="bottom",
            )
        points = [
            (row["tokens_per_second"], row["accuracy"], row["label"], look_of(row["label"]).colour) for row in rows
        ]
        lines = [([min(x) / 2, max(x) * 2], [value, value]) for value in _lines(baselines).values()]
        label_points(ax, points, radii, lines=[*lines, front])
        words = f"{describe(shown)}, length {length}; area: peak memory"
        words += "" if math.isnan(largest) else f" (largest {readable(largest, 'bytes')})"
        wrap(made, "Speed, accuracy and memory", words + "; line: the Pareto front")
    return made


def _freer_side(ax: Axes, value: float, bubbles: Sequence[tuple[float, float, float]]) -> Literal["left", "right"]:
    """The end of a horizontal line whose name, written above it, would lie on fewer bubbles (x, y, radius in points)."""
    point = ax.figure.dpi / 72
    wide, high = (size * point for size in NAME)
    touched = {"left": 0, "right": 0}
    for x, y, radius in bubbles:
        across, up = ax.transData.transform((x, y))
        above, reach = up - ax.transData.transform((x, value))[1], radius * point
        if -reach < above < reach + high:
            touched["left"] += across - ax.bbox.x0 < reach + wide
            touched["right"] += ax.bbox.x1 - across < reach + wide
    return "right" if touched["right"] < touched["left"] else "left"


def _radius(size: float, largest: float) -> float:
    return 4.0 if math.isnan(size) or math.isnan(largest) else max(3.5, 24 * math.sqrt(size / largest))


def _lines(baselines: pd.DataFrame | None) -> dict[str, float]:
    """The mean of every baseline that all tasks have; else the mean of each task's best."""
    if baselines is None:
        return {}
    fractions = baselines[baselines["unit"].eq("fraction").fillna(False)]
    if fractions.empty:
        return {}
    keys = ["task", "task_options", "length", "causal"]
    count = fractions.drop_duplicates(keys).shape[0]
    shared = fractions.groupby("baseline")["value"].agg(["mean", "size"])
    found = {str(name): float(mean) for name, mean in shared[shared["size"] == count]["mean"].items()}
    best = float(fractions.groupby(keys, dropna=False)["value"].max().mean())
    return found if any(value >= best for value in found.values()) else {**found, "best baseline of each task": best}


def _front(
    ax: Axes, x: Sequence[float], y: Sequence[float], control: Sequence[bool]
) -> tuple[list[float], list[float]]:
    """Draws the Pareto front of what is not a control, and returns its corners."""
    real = [i for i, excluded in enumerate(control) if not excluded]
    front = [real[i] for i in pareto([x[i] for i in real], [y[i] for i in real])]
    corners = [x[i] for i in front], [y[i] for i in front]
    ax.plot(*corners, color=INK, linewidth=1.0, alpha=0.55, zorder=2)
    return corners


def memory_speed_plot(decisions: pd.DataFrame, length: int | None = None) -> Figure:
    """Peak memory against speed at one length (by default the longest that most labels reach), from the table `decisions`."""
    shown = decisions[(decisions["bytes"] > 0) & (decisions["tokens_per_second"] > 0)]
    if shown.empty:
        return empty("Memory against speed: no label has both")
    reached = shown.groupby("length")["label"].nunique()
    length = int(reached[reached == reached.max()].index.max()) if length is None else length
    rows = rows_of(shown[shown["length"] == length].drop_duplicates("label"))
    x, y = [row["tokens_per_second"] for row in rows], [row["bytes"] for row in rows]
    with style():
        made = figure(8.6, 5.4)
        ax = made.add_axes((0.105, 0.11, 0.865, 0.74))
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(min(x) / 1.6, max(x) * 1.7)
        ax.set_ylim(min(y) / 1.7, max(y) * 1.7)
        unit_axis(ax, "", axis="x")
        unit_axis(ax, "bytes")
        ax.set_xlabel("speed (tokens per second, more is better)")
        ax.set_ylabel("peak memory (less is better)")
        for row in rows:
            mark_point(ax, row["tokens_per_second"], row["bytes"], look_of(row["label"]), area=44)
        label_points(
            ax, [(*at, row["label"], look_of(row["label"]).colour) for *at, row in zip(x, y, rows, strict=True)]
        )
        wrap(made, "Memory against speed", f"{describe(shown)}, length {length}; bottom right is best")
    return made


def operating_plot(decisions: pd.DataFrame, length: int | None = None) -> Figure:
    """Accuracy against time, the labels of one variant (an option grid) joined by a line, from the table `decisions`."""
    shown = decisions[decisions["accuracy"].notna() & (decisions["seconds"] > 0)]
    if shown.empty:
        return empty("Operating curves: no label has both a time and an accuracy")
    length = int(shown["length"].max()) if length is None else length
    here = shown[shown["length"] == length].drop_duplicates("label")
    rows = rows_of(here)
    with style():
        made = figure(8.6, 5.2)
        ax = made.add_axes((0.085, 0.115, 0.885, 0.73))
        ax.set_xscale("log")
        values = [row["seconds"] for row in rows]
        ax.set_xlim(min(values) / 1.35, max(values) * 1.4)
        heights = [row["accuracy"] for row in rows]
        margin = 0.12 * (max(heights) - min(heights)) or 0.1
        ax.set_ylim(min(heights) - margin, max(heights) + margin)
        unit_axis(ax, "s", axis="x")
        ax.set_xlabel("time")
        ax.set_ylabel("accuracy")
        _families(ax, here)
        points = [
            (
                row["seconds"],
                row["accuracy"],
                row["label"],
                look_of(str(row["label"] if pd.isna(row["variant"]) else row["variant"])),
            )
            for row in rows
        ]
        for x, y, _, look in points:
            mark_point(ax, x, y, look, area=44)
        label_points(ax, [(x, y, label, look.colour) for x, y, label, look in points])
        wrap(made, f"Operating curves at length {length}", _described(shown, here))
    return made


def _described(table: pd.DataFrame, points: pd.DataFrame) -> str:
    words = describe(table)
    if points["variant"].dropna().duplicated().any():
        words += "; a line joins the settings of one variant"
    return words.lstrip("; ")


def _families(ax: Axes, points: pd.DataFrame) -> None:
    for _, part in points.groupby("variant", sort=False):
        if len(part) > 1:
            part = part.sort_values("label", key=counting)  # not by time: times that are close change places
            colour = look_of(str(part["variant"].iloc[0])).colour
            ax.plot(part["seconds"], part["accuracy"], color=colour, linewidth=1.1, alpha=0.5, zorder=2)
