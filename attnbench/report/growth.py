"""Cost against length: time, peak memory, operations and decoding state, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbench.analysis.loading import rows_of
from attnbench.report.canvas import empty, figure, length_axis, unit_axis, wrap
from attnbench.report.labels import label_ends
from attnbench.report.style import SOFT, look_of, style

__all__ = ["memory_plot", "operations_plot", "state_plot", "time_plot"]

End = tuple[float, float, str, str]  # where a line ends, what is written there, in which colour
FAILED = {"oom": "out of memory", "timeout": "timeout", "error": "error", "incorrect": "incorrect"}


def time_plot(speed: pd.DataFrame, scaling: pd.DataFrame | None = None) -> Figure:
    """Median time with its interval against length, from the tables `speed` and `scaling`; the floor is shaded."""
    return _growth(speed, scaling, "speed", "seconds", "s", "Time", _floor)


def memory_plot(memory: pd.DataFrame, scaling: pd.DataFrame | None = None) -> Figure:
    """Peak memory above the resting state against length, from the tables `memory` and `scaling`."""
    return _growth(memory, scaling, "memory", "bytes", "bytes", "Peak memory")


def operations_plot(operations: pd.DataFrame, scaling: pd.DataFrame | None = None) -> Figure:
    """Counted operations against length, from the tables `operations` and `scaling`."""
    return _growth(operations, scaling, "operations", "flop", "flop", "Operations")


def state_plot(state: pd.DataFrame, scaling: pd.DataFrame | None = None) -> Figure:
    """Bytes that decoding carries from token to token against length, from the tables `state` and `scaling`."""
    return _growth(state, scaling, "state", "bytes", "bytes", "Decoding state")


def _growth(
    table: pd.DataFrame,
    scaling: pd.DataFrame | None,
    quantity: str,
    column: str,
    unit: str,
    title: str,
    decorate: Callable[[Axes, pd.DataFrame], None] | None = None,
) -> Figure:
    shown = table[(table[column] > 0).fillna(False)]
    if shown.empty:
        return empty(f"{title}: nothing was measured")
    with style():
        labels = shown["label"].nunique()
        made = figure(8.6, max(4.9, 1.9 + 0.17 * labels))
        slopes = _slopes(scaling, quantity)
        ends = {}
        ax = made.add_axes((0.1, 0.115, 0.6, 0.745))
        for label, part in shown.groupby("label", sort=False):
            ends[str(label)] = _line(ax, str(label), part.sort_values("length"), column, slopes)
        lengths = [float(value) for value in table["length"].dropna()]
        length_axis(ax, lengths)
        ax.set_xlim(min(lengths) / 1.12, max(lengths) * 1.12)
        unit_axis(ax, unit)
        ends |= _failures(ax, table, shown, column, ends)
        if decorate:
            decorate(ax, shown)
        unit_axis(ax, unit)
        label_ends(ax, list(ends.values()), title="label, growth exponent" if slopes else None)
        wrap(made, f"{title} against length", describe(table), foot=_absent(table, set(ends)))
    return made


def describe(table: pd.DataFrame) -> str:
    """The setting that all rows of a table share, in words."""
    words = []
    for column, text in (
        ("mode", "{}"),
        ("scope", "{} alone"),
        ("device", "{}"),
        ("dtype", "{}"),
        ("batch", "batch {}"),
    ):
        values = list(table[column].dropna().unique()) if column in table else []
        if len(values) == 1:
            value = str(values[0])
            words.append("whole model" if value == "model" else text.format(value.replace("_", " ")))
    causal = list(table["causal"].dropna().unique()) if "causal" in table else []
    if len(causal) == 1:
        words.append("causal" if causal[0] else "bidirectional")
    return ", ".join(words)


def _slopes(scaling: pd.DataFrame | None, quantity: str) -> dict[str, float]:
    if scaling is None:
        return {}
    own = scaling[scaling["quantity"] == quantity]
    return dict(zip(own["label"], own["exponent"], strict=True))


def _line(ax: Axes, label: str, part: pd.DataFrame, column: str, slopes: dict[str, float]) -> End:
    look = look_of(label)
    x, y = part["length"].to_numpy(dtype=float), part[column].to_numpy(dtype=float)
    low, high = part["low"].to_numpy(dtype=float), part["high"].to_numpy(dtype=float)
    known = np.isfinite(low) & np.isfinite(high)
    if known.sum() > 1:
        ax.fill_between(x, low, high, where=known, color=look.colour, alpha=0.16, linewidth=0, zorder=2)
    line: dict[str, Any] = {"dashes": look.dashes} if look.dashes else {}
    size = 6.0 if look.marker in "x+" else 4.6
    ax.plot(x, y, color=look.colour, marker=look.marker, markersize=size, markeredgecolor="white" if size < 5 else None,
            markeredgewidth=0.5 if size < 5 else 1.4, zorder=3, **line)  # fmt: skip
    slope = slopes.get(label)
    text = label if slope is None or not np.isfinite(slope) else f"{label}  {slope:.2f}"
    return float(x[-1]), float(y[-1]), text, look.colour


def _failures(
    ax: Axes, table: pd.DataFrame, shown: pd.DataFrame, column: str, ends: Mapping[str, End]
) -> dict[str, End]:
    """A cross at the length where a label failed, at the height that its growth points to; the margin says how."""
    failed = table[table["status"].isin(FAILED)].sort_values("length").drop_duplicates("label")
    low, high = ax.get_ylim()
    found = {}
    for row in rows_of(failed):
        before = shown[(shown["label"] == row["label"]) & (shown["length"] < row["length"])].sort_values("length")
        colour = look_of(row["label"]).colour
        x, y = float(row["length"]), float(np.sqrt(low * high))
        if len(before):
            lengths, values = (np.log(before[name].to_numpy(dtype=float)) for name in ("length", column))
            slope = (values[-1] - values[0]) / (lengths[-1] - lengths[0]) if len(set(lengths)) > 1 else 1.0
            y = float(np.exp(values[-1] + slope * (np.log(x) - lengths[-1])))
            way = [np.exp(lengths[-1]), x], [np.exp(values[-1]), y]
            ax.plot(*way, color=colour, linestyle=":", linewidth=1, zorder=2)
        high = max(high, y * 1.25)
        ax.plot([x], [y], marker="X", markersize=9, color=colour, markeredgecolor="white", zorder=5)
        text = ends[row["label"]][2] if row["label"] in ends else row["label"]
        found[row["label"]] = (x, y, f"{text}  {FAILED[row['status']]}", colour)
    ax.set_ylim(low, high)
    return found


def _absent(table: pd.DataFrame, shown: set[str]) -> str:
    """Labels of which there is nothing to draw, and why."""
    rest = table[~table["label"].isin(list(shown))].drop_duplicates("label")
    if rest.empty:
        return ""
    why = (f"{row['label']} ({'zero' if row['status'] == 'ok' else row['status']})" for row in rows_of(rest))
    return "Not drawn: " + ", ".join(why)


def _floor(ax: Axes, shown: pd.DataFrame) -> None:
    """Below the fixed cost of a call nothing can be told apart: shaded up to the median of the labels' floors."""
    if "floor" not in shown or not shown["floor"].notna().any():
        return
    level = float(shown["floor"].median())
    low, high = ax.get_ylim()
    low = min(low, level / 1.6)
    ax.axhspan(low, level, color="#9aa3af", alpha=0.16, linewidth=0, zorder=0)
    ax.text(
        0.99,
        low * (level / low) ** 0.04,  # at the foot, away from the curves that come out of the shade
        "fixed cost of a call ",
        transform=ax.get_yaxis_transform(),
        ha="right",
        va="bottom",
        fontsize=7.5,
        color=SOFT,
    )
    ax.set_ylim(low, high)
