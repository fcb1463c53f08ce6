"""Figures without pyplot, axes, and files."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from attnbench.report.style import INK, PAPER, SOFT, Look, style
from attnbench.report.units import readable

__all__ = [
    "cell_axes",
    "empty",
    "figure",
    "length_axis",
    "mark_point",
    "save",
    "svg_text",
    "unit_axis",
    "wrap",
]


def figure(width: float, height: float) -> Figure:
    """A figure with a canvas of its own: no window, no pyplot, no global list of figures."""
    made = Figure(figsize=(width, height))
    FigureCanvasAgg(made)
    return made


def cell_axes(rows: Sequence[str], columns: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure for a table of coloured cells, as large as its rows and columns need: names at the left and at the top."""
    left, height = 0.35 + 0.075 * max(map(len, rows)), 0.27 * len(rows)
    width = len(columns) * min(1.3, max(0.72, (7.7 - left) / len(columns)))
    made = figure(max(left + width + 0.3, 8.0), 1.35 + height)
    box = left / made.get_figwidth(), 0.3 / made.get_figheight(), width / made.get_figwidth()
    ax = made.add_axes((*box, height / made.get_figheight()))
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return made, ax


def empty(message: str) -> Figure:
    """What is drawn where there is nothing to draw: the reason."""
    with style():
        made = figure(7.2, 1.6)
        made.text(0.5, 0.5, message, ha="center", va="center", color=SOFT)
    return made


def save(made: Figure, path: Path) -> Path:
    """Writes a figure as its suffix says; the same figure gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".svg":
        path.write_text(svg_text(made), encoding="utf-8", newline="\n")
    else:
        with style():
            made.savefig(path, dpi=150, pil_kwargs={"compress_level": 2})
    return path


def svg_text(made: Figure) -> str:
    """A figure as SVG, with no more decimals than a screen can show and no names that nothing refers to."""
    buffer = io.StringIO()
    with style():
        made.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg ") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    return re.sub(r"scale\([^)]*\)|(\.\d\d)\d+", lambda match: match[1] or match[0], text)


def length_axis(ax: Axes, lengths: Sequence[float]) -> None:
    """A logarithmic axis with a tick at every measured length, thinned where they crowd."""
    ticks = sorted({float(length) for length in lengths})
    ax.set_xscale("log", base=2)
    while len(ticks) > 9:
        ticks = ticks[::-2][::-1]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:.0f}" if value < 10_000 else f"{value / 1024:g}k")
    )
    ax.set_xlabel("sequence length (tokens)")


def unit_axis(ax: Axes, unit: str, *, axis: str = "y") -> None:
    """A logarithmic axis whose ticks carry their unit."""
    if axis == "y":
        ax.set_yscale("log")
    else:
        ax.set_xscale("log")
    which = ax.yaxis if axis == "y" else ax.xaxis
    low, high = sorted(which.get_view_interval())
    decades = np.log10(high / low) if low > 0 else 3
    subs = (1.0,) if decades > 2.2 else (1.0, 2.0, 5.0)
    base = 2.0 if unit == "bytes" else 10.0
    if unit == "bytes":
        which.set_major_locator(LogLocator(base=2.0, numticks=9))
    else:
        which.set_major_locator(LogLocator(base=base, subs=subs, numticks=12))
    which.set_minor_locator(NullLocator())
    which.set_minor_formatter(NullFormatter())
    which.set_major_formatter(FuncFormatter(lambda value, _: readable(value, unit)))


def mark_point(ax: Axes, x: float, y: float, look: Look, *, hollow: bool = False, area: float = 36.0) -> None:
    """One point in a label's look; hollow where the score does not count for much."""
    size, edge = math.sqrt(area), 1.5 if look.marker in "x+" else 1.3
    fill = PAPER if hollow and look.marker not in "x+" else look.colour
    ax.plot(
        [x],
        [y],
        marker=look.marker,
        markersize=size,
        markerfacecolor=fill,
        markeredgecolor=look.colour,
        markeredgewidth=edge,
        linestyle="none",
        zorder=4,
    )


def wrap(made: Figure, title: str, subtitle: str = "", *, foot: str = "") -> None:
    """Title and subtitle at the top left of a figure, a footnote at its bottom."""
    width, height = made.get_figwidth() * 72, made.get_figheight() * 72
    made.text(14 / width, 1 - 14 / height, title, fontsize=12, weight="bold", color=INK, va="top")
    if subtitle:
        made.text(14 / width, 1 - 32 / height, subtitle, fontsize=8.5, color=SOFT, va="top")
    if foot:
        lines = textwrap.wrap(foot, int(width / 4.3))
        lines = (
            lines
            if len(lines) <= 2
            else [lines[0], textwrap.shorten(" ".join(lines[1:]), int(width / 4.3), placeholder=" …")]
        )
        made.text(14 / width, 5 / height, "\n".join(lines), fontsize=7, color=SOFT, va="bottom")
