"""Ratios to the baseline: speed-up against length, and a heat map of labels by lengths."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from attnbench.analysis.accuracy import CONTROLS
from attnbench.analysis.loading import rows_of
from attnbench.report.canvas import cell_axes, empty, figure, length_axis, wrap
from attnbench.report.growth import describe
from attnbench.report.labels import label_ends
from attnbench.report.style import INK, PAPER, SOFT, look_of, style
from attnbench.report.units import ratio_text

__all__ = ["heatmap_plot", "ratio_axis", "speedup_plot"]

_WORSE_BETTER = LinearSegmentedColormap.from_list(
    "attnbench", ["#b34a1a", "#e8a87c", "#f6f3ee", "#8fc1de", "#0b5c96"]
)  # orange to blue: told apart under every common colour vision deficiency


def _timed(ratios: pd.DataFrame) -> pd.DataFrame:
    shown = ratios[ratios["quantity"].eq("speed") & (ratios["ratio"] > 0)]
    return shown.assign(speedup=1 / shown["ratio"], low=1 / shown["high"], high=1 / shown["low"])


def speedup_plot(ratios: pd.DataFrame, crossover: pd.DataFrame | None = None) -> Figure:
    """Speed-up over the baseline against length, from the table `ratios`; crossings of the table `crossover` are ringed."""
    shown = _timed(ratios)
    baseline = _baseline(shown)
    shown = shown[shown["label"] != baseline]
    if shown.empty:
        return empty("Speed-up: nothing was timed beside the baseline")
    with style():
        made = figure(8.6, max(4.9, 1.9 + 0.17 * shown["label"].nunique()))
        ax = made.add_axes((0.1, 0.115, 0.6, 0.745))
        ends = []
        for label, part in shown.groupby("label", sort=False):
            part, look = part.sort_values("length"), look_of(str(label))
            x, y, low, high = (part[column].to_numpy(dtype=float) for column in ("length", "speedup", "low", "high"))
            known = np.isfinite(low) & np.isfinite(high)
            if known.sum() > 1:
                ax.fill_between(x, low, high, where=known, color=look.colour, alpha=0.16, linewidth=0, zorder=2)
            edge = None if look.marker in "x+" else PAPER
            dashes = look.dashes or (None, None)
            ax.plot(
                x,
                y,
                color=look.colour,
                marker=look.marker,
                markeredgecolor=edge,
                markeredgewidth=0.5,
                zorder=3,
                dashes=dashes,
            )
            ends.append((float(x[-1]), float(y[-1]), f"{label}  {ratio_text(float(y[-1]))}", look.colour))
        lengths = [float(value) for value in shown["length"]]
        length_axis(ax, lengths)
        ax.set_xlim(min(lengths) / 1.12, max(lengths) * 1.12)
        ratio_axis(ax.yaxis, [float(value) for value in shown["speedup"]])
        ax.axhline(1, color=INK, linewidth=1.4, zorder=2.5)
        ends.append((max(lengths), 1.0, f"{baseline}  {ratio_text(1.0)}", INK))
        _crossings(ax, crossover)
        label_ends(ax, ends, title="label, at its longest")
        wrap(made, f"Speed-up over {baseline}", describe(ratios) + "; a ring: where a label overtakes")
    return made


def _baseline(shown: pd.DataFrame) -> str:
    """The label whose every ratio is exactly 1: ratios are taken within a round, so only the baseline's are."""
    exact = shown.groupby("label", sort=False)["ratio"].agg(lambda values: bool((values == 1).all()))
    return str(exact.index[exact][0]) if exact.any() else "the baseline"


def ratio_axis(axis: Axis, values: list[float]) -> None:
    """A logarithmic axis of ratios that holds the values and 1."""
    low, high = min([*values, 1.0]) / 1.25, max([*values, 1.0]) * 1.25
    steps = (1,) if high / low > 3000 else (1, 2, 5) if high / low > 6 else (1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    ticks = [step * 10.0**power for power in range(-6, 7) for step in steps]
    vertical = axis is axis.axes.yaxis
    (axis.axes.set_yscale if vertical else axis.axes.set_xscale)("log")
    (axis.axes.set_ylim if vertical else axis.axes.set_xlim)(low, high)
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: ratio_text(value)))


def _crossings(ax: Axes, crossover: pd.DataFrame | None) -> None:
    if crossover is None:
        return
    here = crossover[crossover["quantity"].eq("speed") & crossover["crossover"].notna()]
    for row in rows_of(here):
        colour = look_of(row["label"]).colour
        ax.plot([row["crossover"]], [1], marker="o", markersize=10, fillstyle="none", color=colour, zorder=5)
        if not math.isnan(row["low"]) and not math.isnan(row["high"]):
            ax.plot([row["low"], row["high"]], [1, 1], color=colour, linewidth=4, alpha=0.35, zorder=2.6)


def heatmap_plot(ratios: pd.DataFrame, outcomes: pd.DataFrame | None = None) -> Figure:
    """Speed-up of every label at every length, from the table `ratios`; the best of each length is framed, and what failed
    (table `outcomes`) is named."""
    shown = _timed(ratios)
    if shown.empty:
        return empty("Heat map: nothing was timed beside the baseline")
    failed = {} if outcomes is None else {
        (row["label"], row["length"]): row["status"] for row in rows_of(outcomes[outcomes["quantity"].eq("speed")])
    }  # fmt: skip
    controls = set(shown["label"][shown["variant"].isin(CONTROLS)])
    table = shown.pivot_table(index="label", columns="length", values="speedup", aggfunc="median")
    lengths = sorted({*table.columns, *(length for _, length in failed)})
    labels = list(dict.fromkeys([*_by_reach(table), *sorted(label for label, _ in failed)]))
    table = table.reindex(index=labels, columns=lengths)
    values = np.log2(table.to_numpy(dtype=float))
    with style():
        made, ax = cell_axes(labels, [f"{length:g}" for length in lengths])
        bound = max(1.0, float(np.nanmax(np.abs(values))))
        ax.imshow(values, cmap=_WORSE_BETTER, vmin=-bound, vmax=bound, aspect="auto")
        ranked = np.where([[label in controls] for label in labels], np.nan, values)
        known = [column for column in range(len(lengths)) if not np.isnan(ranked[:, column]).all()]
        best = {column: int(np.nanargmax(ranked[:, column])) for column in known}
        for row, label in enumerate(labels):
            for column, length in enumerate(lengths):
                value, at = values[row, column], best.get(column) == row
                text = failed.get((label, length), "") if np.isnan(value) else ratio_text(float(2**value))
                dark = not np.isnan(value) and abs(value) > 0.62 * bound
                colour = PAPER if dark else SOFT if np.isnan(value) else INK
                weight = "bold" if at else "normal"
                ax.text(column, row, text, ha="center", va="center", fontsize=7.5, color=colour, weight=weight)
                if at:
                    ax.add_patch(_frame(column, row))
        wrap(
            made,
            f"Speed-up over {_baseline(shown)} by length",
            f"{describe(ratios)}; the best of each length framed, controls apart",
        )
    return made


def _frame(column: int, row: int) -> Rectangle:
    return Rectangle((column - 0.47, row - 0.45), 0.94, 0.9, fill=False, edgecolor=INK, linewidth=1.3)


def _by_reach(table: pd.DataFrame) -> list[str]:
    """Labels by their speed-up at the longest length that they reach."""
    last = table.ffill(axis=1).iloc[:, -1]
    return [str(label) for label in last.sort_values(ascending=False, kind="stable").index]
