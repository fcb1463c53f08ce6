"""Names beside lines and points that do not collide."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from numpy.typing import ArrayLike

from attnbench.report.style import SOFT

__all__ = ["label_ends", "label_points", "spread"]


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


def _nearest(centre: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every box the corner or edge point that is nearest to a point, and how far that is (never 0)."""
    near = np.clip(centre, boxes[:, :2], boxes[:, 2:])
    return near, np.maximum(np.hypot(*(near - centre).T), 1e-9)


def _hairs(
    centre: np.ndarray, radius: float, boxes: np.ndarray, scale: float, count: int = 12
) -> tuple[np.ndarray, np.ndarray]:
    """The hairlines from a point to each box as `count` small boxes each, one after the other; and which would be drawn."""
    near, distance = _nearest(centre, boxes)
    start = centre + (near - centre) * np.minimum(1, (radius + 3 * scale) / distance)[:, None]
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
    (near,), (distance,) = _nearest(centre, box[None])
    if distance < radius + HAIRLINE * scale:
        return []
    start = centre + (near - centre) / distance * radius
    ends = ax.transData.inverted().transform([start, near])
    ax.plot(ends[:, 0], ends[:, 1], color=colour, linewidth=0.6, alpha=0.6, zorder=4)
    return _beads(ax, ends[:, 0], ends[:, 1], scale)
