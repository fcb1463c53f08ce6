"""Figures without pyplot, labels that do not collide, and files."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from numpy.typing import ArrayLike

from attnbench.report.style import INK, PAPER, SOFT, Look, style
from attnbench.report.units import readable

__all__ = [
    "cell_axes",
    "empty",
    "figure",
    "label_ends",
    "label_points",
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


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> np.ndarray:
    """Positions as near to the wanted ones as keeps them `gap` apart and within [low, high].

    Neighbours that would collide are pooled, and a pool is centred on its members' mean.
    """
    aims = np.asarray(wanted, dtype=float)
    if len(aims) == 0:
        return aims
    gap = min(gap, (high - low) / max(len(wanted) - 1, 1))
    order = np.argsort(aims, kind="stable")
    pools: list[list[float]] = []  # (sum of starts, count): a pool's members stand gap apart from its mean start on
    for place, value in enumerate(aims[order]):
        pools.append([value - gap * place, 1])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, count = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += count
    starts = np.concatenate([np.full(int(count), total / count) for total, count in pools])
    starts = np.clip(starts, low, high - gap * (len(wanted) - 1))
    placed = np.empty_like(aims)
    placed[order] = starts + gap * np.arange(len(wanted))
    return placed


def label_ends(
    ax: Axes, ends: Sequence[tuple[float, float, str, str]], *, size: float = 8.0, title: str | None = None
) -> None:
    """Names lines in the margin to their right: (x, y, text, colour) of each end; a hairline joins text and end.

    The axes are narrowed until the longest text fits into the figure.
    """
    if not ends:
        return
    made = ax.figure
    ax.set_xlim(ax.get_xlim())  # what is drawn from here on must not move the axes under its own feet
    ax.set_ylim(ax.get_ylim())
    inches = 0.57 * size / 72 * max([len(text) for _, _, text, _ in ends] + [len(title or "") * 0.9]) + 0.45
    left, bottom, _, height = ax.get_position().bounds
    ax.set_position((left, bottom, max(0.3, 1 - left - inches / made.get_figwidth()), height))  # type: ignore[union-attr]
    area = ax.get_window_extent()
    gap = 1.22 * size / 72 * made.dpi / area.height
    points = [ax.transAxes.inverted().transform(ax.transData.transform((x, y))) for x, y, *_ in ends]
    places = spread([point[1] for point in points], gap, 0.0, 1.0)
    knee, start, written = (1 + inch * made.dpi / area.width for inch in (0.1, 0.22, 0.26))
    ways = [[(x, y), (knee, place), (start, place)] for (x, y), place in zip(points, places, strict=True)]
    colours = [colour for *_, colour in ends]
    hairlines = LineCollection(ways, colors=colours, linewidths=0.6, alpha=0.55, clip_on=False, zorder=1)
    hairlines.set_transform(ax.transAxes)
    ax.add_artist(hairlines)
    for (_, _, text, colour), place in zip(ends, places, strict=True):
        ax.text(written, place, text, transform=ax.transAxes, color=colour, fontsize=size, va="center", clip_on=False)
    if title:
        top = max(1.0, float(places.max())) + 1.5 * gap
        ax.text(
            written, top, title, transform=ax.transAxes, color=SOFT, fontsize=size - 0.5, va="center", clip_on=False
        )


def label_points(
    ax: Axes,
    points: Sequence[tuple[float, float, str, str]],
    radii: Sequence[float] | None = None,
    *,
    lines: Sequence[tuple[Sequence[float], Sequence[float]]] = (),
    size: float = 8.0,
) -> None:
    """Names points in a plane: (x, y, text, colour); `radii` in points of type.

    Each name takes the freest place near its point, and a hairline where it had to move away. Names keep
    off the texts that are there already, off `lines` (x and y of their corners) and off each other's hairlines.
    """
    made = ax.figure
    renderer = cast(FigureCanvasAgg, made.canvas).get_renderer()
    scale = made.dpi / 72
    area = np.array(ax.get_window_extent(renderer).extents)
    centres = [ax.transData.transform((x, y)) for x, y, *_ in points]
    sizes = [(radii[i] if radii is not None else 4.0) * scale for i in range(len(points))]
    round_points = [np.concatenate([at - 0.8 * size, at + 0.8 * size]) for at, size in zip(centres, sizes, strict=True)]
    blocked = round_points + [box for line in lines for box in _beads(ax, *line, scale)]
    taken = [np.array(written.get_window_extent(renderer).extents) for written in ax.texts]
    for i in sorted(range(len(points)), key=lambda i: (-centres[i][1], centres[i][0])):
        _, _, text, colour = points[i]
        written = ax.text(0, 0, text, fontsize=size, color=colour, va="center", ha="center", zorder=6)
        box = written.get_window_extent(renderer)
        room = (box.width + 2 * scale, box.height * 0.92)
        solid, names = (np.array(boxes).reshape(-1, 4) for boxes in (blocked, taken))
        best = _free_place(centres[i], sizes[i], room, solid, names, area, scale)
        written.set_position(tuple(ax.transData.inverted().transform(best)))
        taken.append(np.concatenate([best - np.array(room) / 2, best + np.array(room) / 2]))
        taken += _join(ax, centres[i], sizes[i], taken[-1], colour, scale)


def _beads(ax: Axes, xs: ArrayLike, ys: ArrayLike, scale: float) -> list[np.ndarray]:
    """A line as a string of small boxes."""
    corners = ax.transData.transform(np.column_stack([xs, ys]))
    found = []
    for start, end in pairwise(corners):
        count = max(2, int(np.hypot(*(end - start)) / (5 * scale)))
        for x, y in start + (end - start) * np.linspace(0, 1, count)[:, None]:
            found.append(np.array([x - 2.5 * scale, y - 1.5 * scale, x + 2.5 * scale, y + 1.5 * scale]))
    return found


HAIRLINE = 6  # points between a point's rim and its name from which on a hairline joins them
# where a name may stand: at these distances (points) and angles from its point, the best first
_PLACES = [
    (distance, np.cos(np.radians(angle)), np.sin(np.radians(angle)))
    for distance in (2, 8, 16, 26, 38, 52, 68, 90)
    for angle in (0, 180, 90, 270, 35, 145, 325, 215, 65, 115, 245, 295)
]


def _free_place(
    centre: np.ndarray,
    radius: float,
    size: tuple[float, float],
    blocked: np.ndarray,
    taken: np.ndarray,
    area: np.ndarray,
    scale: float,
) -> np.ndarray:
    """The centre of the cheapest place for a box near a point: near, free of names, of points, and within the axes.

    Boxes are rows of (x0, y0, x1, y1) in pixels.
    """
    distance, across, up = np.array(_PLACES).T
    direction = np.column_stack([across, up])
    at = centre + direction * (radius + distance * scale)[:, None] + direction * np.abs(direction) * np.array(size) / 2
    boxes = np.column_stack([at - np.array(size) / 2, at + np.array(size) / 2])
    outside = size[0] * size[1] - _overlap(boxes, area[None])[:, 0]
    cost = 0.6 * scale * distance + 20 * outside
    cost += 14 * _overlap(boxes, taken).sum(axis=1) + 4 * _overlap(boxes, blocked).sum(axis=1)
    hairs, drawn = _hairs(centre, radius, boxes, scale)
    crossed = 14 * _overlap(hairs, taken).sum(axis=1) + 6 * _overlap(hairs, blocked).sum(axis=1)
    cost += drawn * crossed.reshape(len(boxes), -1).sum(axis=1)
    return at[int(np.argmin(cost))]


def _hairs(
    centre: np.ndarray, radius: float, boxes: np.ndarray, scale: float, count: int = 12
) -> tuple[np.ndarray, np.ndarray]:
    """The hairlines from a point to each box as `count` small boxes each, one after the other; and which would be drawn."""
    near = np.clip(centre, boxes[:, :2], boxes[:, 2:])
    away = near - centre
    distance = np.maximum(np.hypot(*away.T), 1e-9)
    start = centre + away * np.minimum(1, (radius + 3 * scale) / distance)[:, None]
    steps = np.linspace(0, 1, count, endpoint=False)[None, :, None]
    points = (start[:, None] + (near - start)[:, None] * steps).reshape(-1, 2)
    boxed = np.column_stack([points - 1.5 * scale, points + 1.5 * scale])
    return boxed, distance >= radius + HAIRLINE * scale


def _overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Shared area of every box of a with every box of b."""
    width = np.minimum(a[:, None, 2], b[None, :, 2]) - np.maximum(a[:, None, 0], b[None, :, 0])
    height = np.minimum(a[:, None, 3], b[None, :, 3]) - np.maximum(a[:, None, 1], b[None, :, 1])
    return np.clip(width, 0, None) * np.clip(height, 0, None)


def _join(ax: Axes, centre: np.ndarray, radius: float, box: np.ndarray, colour: str, scale: float) -> list[np.ndarray]:
    """A hairline from a point's rim to its name, where the two are apart; returns it as small boxes."""
    near = np.array([np.clip(centre[0], box[0], box[2]), np.clip(centre[1], box[1], box[3])])
    distance = float(np.hypot(*(near - centre)))
    if distance < radius + HAIRLINE * scale:
        return []
    start = centre + (near - centre) / distance * radius
    ends = ax.transData.inverted().transform([start, near])
    ax.plot(ends[:, 0], ends[:, 1], color=colour, linewidth=0.6, alpha=0.6, zorder=4)
    return _beads(ax, ends[:, 0], ends[:, 1], scale)


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
