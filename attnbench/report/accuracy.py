"""Scores: every seed a dot, the mean with its interval, and beside them what needs no attention at all."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbench.analysis.decision import task_names
from attnbench.analysis.loading import rows_of
from attnbench.report.canvas import empty, figure, mark_point, wrap
from attnbench.report.style import INK, PAPER, SOFT, look_of, style

__all__ = ["accuracy_plot"]


def accuracy_plot(accuracy: pd.DataFrame, scores: pd.DataFrame, baselines: pd.DataFrame) -> Figure:
    """One panel per task, from the tables of these names. A hollow dot marks a score that is not shown to be above the best
    baseline; a dashed line is a baseline."""
    if not len(accuracy):
        return empty("Accuracy: nothing was trained")
    names = [textwrap.fill(name, 40) for name in task_names(accuracy.drop_duplicates(_TASK))]
    panels = [
        (name, _same_task(accuracy, row), _same_task(scores, row), _same_task(baselines, row))
        for name, row in zip(names, rows_of(accuracy.drop_duplicates(_TASK)), strict=True)
    ]
    order = _order(accuracy)
    lines = math.ceil(len(panels) / 3)
    columns = math.ceil(len(panels) / lines)
    with style():
        body = (
            0.5 + 0.2 * len(order) + 0.12 * baselines.groupby(_TASK, dropna=False).size().max() * bool(len(baselines))
        )
        between = 0.62 + 0.13 * max(name.count("\n") + 1 for name in names)
        made = figure(max(2.0 + 2.75 * columns, 7.8), 1.0 + lines * (body + between))
        height = made.get_figheight()
        longest = max(len(label) for label in order)
        left = 0.25 + 0.075 * longest
        width = (made.get_figwidth() - left - 0.15) / columns
        for place, panel in enumerate(panels):
            row, column = divmod(place, columns)
            bottom = height - 1.0 - (row + 1) * (body + between) + 0.75
            size = (left + column * width, bottom, width - 0.22, body)
            ax = made.add_axes(
                (size[0] / made.get_figwidth(), bottom / height, size[2] / made.get_figwidth(), body / height)
            )
            _panel(ax, order, *panel, names=column == 0)
        seeds = sorted({int(count) for count in accuracy["seeds"] if count}) or [0]
        count = (
            f"{seeds[0]} seed{'s' if seeds[0] != 1 else ''}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
        )
        note = f"{count}, each a small dot; mean with a 95 % t interval; hollow: not shown above the best baseline (dashed)"
        if seeds == [1]:
            note = "one seed is one seed: no interval; hollow: not above the best baseline (dashed)"
        wrap(made, "Accuracy by variant", note)
    return made


_TASK = ["task", "task_options", "metric", "causal", "length"]
_PATCH = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}  # under words that lines run through


def _same_task(frame: pd.DataFrame, row: Mapping[str, Any]) -> pd.DataFrame:
    same = pd.Series(True, index=frame.index)
    for column in _TASK:
        missing = frame[column].isna()
        loose = column in ("causal", "length")
        wanted = row[column]
        same &= (missing & (loose or pd.isna(wanted))) | (
            (frame[column] == wanted) if not pd.isna(wanted) else missing
        ).fillna(False)
    return frame[same.astype(bool)]


def _order(accuracy: pd.DataFrame) -> list[str]:
    """Best first, by the mean rank over tasks, so that every panel has the same rows."""
    sign = np.where(accuracy["higher_is_better"].astype(bool), 1.0, -1.0)
    ranked = accuracy.assign(score=sign * accuracy["mean"])
    ranked["rank"] = ranked.groupby(_TASK, dropna=False)["score"].rank(ascending=False)
    means = ranked.groupby("label")["rank"].mean().fillna(math.inf)
    return [str(label) for label in means.sort_values(kind="stable").index]


def _panel(
    ax: Axes,
    order: list[str],
    name: str,
    accuracy: pd.DataFrame,
    scores: pd.DataFrame,
    baselines: pd.DataFrame,
    *,
    names: bool,
) -> None:
    for row in rows_of(accuracy):
        y, look = order.index(row["label"]), look_of(row["label"])
        if math.isnan(row["mean"]):
            words: dict[str, Any] = {"fontsize": 7.5, "color": SOFT, "va": "center", "bbox": _PATCH}
            ax.text(0.02, y, row["status"], transform=ax.get_yaxis_transform(), **words)
            continue
        own = scores[(scores["label"] == row["label"]) & scores["value"].notna()]["value"]
        dots: dict[str, Any] = {
            "marker": "o",
            "markersize": 3.6,
            "markeredgewidth": 0,
            "linestyle": "none",
            "alpha": 0.5,
        }
        ax.plot(own.to_numpy(dtype=float), [y] * len(own), color=look.colour, zorder=5, **dots)
        if not math.isnan(row["low"]):
            ax.plot([row["low"], row["high"]], [y, y], color=look.colour, linewidth=1.4, alpha=0.7, zorder=2)
        mark_point(ax, row["mean"], y, look, hollow=row["verdict"] in ("not above", "unclear"))
    unit = accuracy["unit"].iloc[0]
    bounded = unit == "fraction"
    if bounded:
        ax.set_xlim(-0.03, 1.03)
    lines = rows_of(baselines.sort_values("value"))
    for row in lines:
        ax.axvline(row["value"], color=INK, linestyle=(0, (4, 3)), linewidth=0.8, alpha=0.6, zorder=1)
    low, high = ax.get_xlim()
    wide = ax.bbox.width * 72 / ax.figure.dpi
    for place, row in enumerate(lines):
        told, way = f"{row['baseline']} {row['value']:.2f}", (row["value"] - low) / (high - low)
        at_right = way > 0.5 and wide * way + 3.6 * len(told) > wide  # would leave the panel
        ax.annotate(
            told,
            (row["value"], len(order) - 0.35 + 0.62 * place),
            xytext=(-3 if at_right else 3, 0),
            textcoords="offset points",
            fontsize=7,
            color=SOFT,
            va="center",
            ha="right" if at_right else "left",
            bbox=_PATCH,
        )
    ax.set_ylim(len(order) - 0.3 + 0.62 * max(len(baselines), 1), -0.7)
    ax.set_yticks(range(len(order)), order if names else [""] * len(order))
    ax.tick_params(axis="y", length=0)
    ax.set_title(name, fontsize=9, loc="left", color=INK)
    metric = accuracy["metric"].iloc[0]
    ax.set_xlabel(str(metric) if bounded or pd.isna(unit) or unit == metric else f"{metric} ({unit})", fontsize=8)
