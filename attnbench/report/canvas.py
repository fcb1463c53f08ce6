"""Figures without pyplot, labels that do not collide, and files."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox

from attnbench.report.style import INK, PAPER, SOFT, Look, style
from attnbench.report.units import readable

__all__ = [
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
            made.savefig(path, dpi=150)
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
    return re.sub(r"(\.\d\d)\d+|\s*\n\s*", lambda match: match[1] or "\n", text)


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
    for (_, _, text, colour), point, place in zip(ends, points, places, strict=True):
        way = [point[0], knee, start], [point[1], place, place]
        ax.plot(*way, transform=ax.transAxes, color=colour, linewidth=0.6, alpha=0.55, clip_on=False, zorder=1)
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
    off the texts that are there already, and off `lines` (x and y of their corners).
    """
    figure_ = ax.figure
    renderer = cast(FigureCanvasAgg, figure_.canvas).get_renderer()
    scale = figure_.dpi / 72
    area = ax.get_window_extent(renderer)
    centres = [ax.transData.transform((x, y)) for x, y, *_ in points]
    sizes = [(radii[i] if radii is not None else 4.0) * scale for i in range(len(points))]
    blocked = [
        Bbox.from_extents(x - r * 0.8, y - r * 0.8, x + r * 0.8, y + r * 0.8)
        for (x, y), r in zip(centres, sizes, strict=True)
    ]
    blocked += [box for line in lines for box in _beads(ax, *line, scale)]
    taken = [written.get_window_extent(renderer) for written in ax.texts]
    for i in sorted(range(len(points)), key=lambda i: (-centres[i][1], centres[i][0])):
        _, _, text, colour = points[i]
        written = ax.text(0, 0, text, fontsize=size, color=colour, va="center", ha="center", zorder=6)
        box = written.get_window_extent(renderer)
        width, height = box.width + 2 * scale, box.height * 0.92
        best = _free_place(centres[i], sizes[i], width, height, blocked, taken, area, scale, own=i)
        written.set_position(tuple(ax.transData.inverted().transform(best)))
        taken.append(Bbox.from_bounds(best[0] - width / 2, best[1] - height / 2, width, height))
        _join(ax, centres[i], sizes[i], taken[-1], colour, scale)


def _beads(ax: Axes, xs: Sequence[float], ys: Sequence[float], scale: float) -> list[Bbox]:
    """A line as a string of small boxes."""
    corners = ax.transData.transform(np.column_stack([xs, ys]))
    found = []
    for start, end in pairwise(corners):
        count = max(2, int(np.hypot(*(end - start)) / (5 * scale)))
        for x, y in start + (end - start) * np.linspace(0, 1, count)[:, None]:
            found.append(Bbox.from_extents(x - 2.5 * scale, y - 1.5 * scale, x + 2.5 * scale, y + 1.5 * scale))
    return found


def _free_place(
    centre: np.ndarray,
    radius: float,
    width: float,
    height: float,
    blocked: Sequence[Bbox],
    taken: Sequence[Bbox],
    area: Bbox,
    scale: float,
    own: int,
) -> np.ndarray:
    best, least = centre, np.inf
    for distance in (2, 8, 16, 26, 38, 52, 68, 90):
        for angle in (0, 180, 90, 270, 35, 145, 325, 215, 65, 115, 245, 295):
            direction = np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])
            reach = radius + distance * scale
            at = (
                centre
                + direction * reach
                + np.array([np.sign(round(direction[0], 6)) * width / 2, 0]) * abs(direction[0])
            )
            at = at + np.array([0, np.sign(round(direction[1], 6)) * height / 2]) * abs(direction[1])
            box = Bbox.from_bounds(at[0] - width / 2, at[1] - height / 2, width, height)
            cost = distance * scale * 0.6
            cost += 14 * sum(_overlap(box, other) for other in taken)
            cost += sum(_overlap(box, other) * (4 if j != own else 1) for j, other in enumerate(blocked))
            outside = width * height - _overlap(box, area)
            cost += 20 * outside
            if cost < least:
                best, least = at, cost
        if least <= distance * scale * 0.6:
            break
    return best


def _overlap(a: Bbox, b: Bbox) -> float:
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return width * height if width > 0 and height > 0 else 0.0


def _join(ax: Axes, centre: np.ndarray, radius: float, box: Bbox, colour: str, scale: float) -> None:
    """A hairline from a point's rim to its name, where the two are apart."""
    near = np.array([np.clip(centre[0], box.x0, box.x1), np.clip(centre[1], box.y0, box.y1)])
    distance = float(np.hypot(*(near - centre)))
    if distance < radius + 6 * scale:
        return
    start = centre + (near - centre) / distance * radius
    ends = ax.transData.inverted().transform([start, near])
    ax.plot(ends[:, 0], ends[:, 1], color=colour, linewidth=0.6, alpha=0.6, zorder=4)


def mark_point(ax: Axes, x: float, y: float, look: Look, *, hollow: bool = False, area: float = 36.0) -> None:
    """One point in a label's look; hollow where the score does not count for much."""
    if look.marker in "x+":
        ax.scatter([x], [y], s=area, marker=look.marker, color=look.colour, linewidths=1.5, zorder=4)
    else:
        fill = PAPER if hollow else look.colour
        ax.scatter(
            [x], [y], s=area, marker=look.marker, facecolors=fill, edgecolors=look.colour, linewidths=1.3, zorder=4
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
