"""Two runs in one picture: what changed, with its interval."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from attnbench.analysis.loading import rows_of
from attnbench.report.canvas import empty, figure, mark_point, wrap
from attnbench.report.speedup import ratio_axis
from attnbench.report.style import INK, SOFT, look_of, style

__all__ = ["comparison_plot"]

_WORDS = {"speed": "time"}
MOST = 60  # rows that a page can hold


def comparison_plot(frame: pd.DataFrame, names: tuple[str, str] = ("A", "B"), quantity: str = "speed") -> Figure:
    """Change from A to B of each label's ratio to the baseline, per length, from the frame of a `Comparison`.

    Filled: significant and at least 5 %.
    """
    shown = frame[(frame["quantity"] == quantity) & (frame["change"] > 0)]
    if shown.empty:
        return empty(f"Comparison: the runs share no cell of {quantity}")
    cut = len(shown) > MOST
    if cut:
        size = (shown["change"].astype(float) - 1).abs()
        shown = shown.loc[size.sort_values(ascending=False).index[:MOST]].sort_values(["label", "length"])
    else:
        shown = shown.sort_values(["label", "length"], kind="stable")
    rows = rows_of(shown)
    names_ = [_name(row, frame) for row in rows]
    with style():
        left = 0.3 + 0.072 * max(len(name) for name in names_)
        made = figure(max(7.6, left + 4.5), 1.55 + 0.19 * len(rows))
        width, height = made.get_figwidth(), made.get_figheight()
        ax = made.add_axes(
            (left / width, 0.55 / height, (width - left - 0.25) / width, (0.19 * len(rows) + 0.1) / height)
        )
        for place, row in enumerate(rows):
            look = look_of(row["label"])
            if not math.isnan(row["low"]):
                ax.plot([row["low"], row["high"]], [place, place], color=look.colour, linewidth=1.4, alpha=0.6)
            mark_point(ax, row["change"], place, look, hollow=row["verdict"] not in ("regression", "improvement"))
        bounds = [float(row[key]) for row in rows for key in ("change", "low", "high") if row[key] > 0]
        ratio_axis(ax.xaxis, [*bounds, 0.9, 1.1])
        ax.axvline(1, color=INK, linewidth=1.2)
        ax.axvspan(1 / 1.05, 1.05, color=SOFT, alpha=0.1, linewidth=0)
        ax.set_yticks(range(len(rows)), names_)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel(
            f"{_WORDS.get(quantity, quantity)} of {names[1]} over {names[0]}, both as ratios to the baseline (left is better)"
        )
        note = f"the {MOST} largest changes; " if cut else ""
        wrap(made, f"From {names[0]} to {names[1]}", f"{note}filled: significant and at least 5 %; shaded: within 5 %")
    return made


def _name(row: dict[str, object], frame: pd.DataFrame) -> str:
    words = [str(row["label"])]
    for column in ("length", "mode", "device", "dtype", "scope", "causal"):
        if frame[column].nunique() > 1:
            words.append(f"causal={row[column]}" if column == "causal" else str(row[column]))
    return " ".join(words)
