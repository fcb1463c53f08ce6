"""Who sees whom: a small multiple per pattern, dark where a query (row) draws on a key (column)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from attnbench.analysis.complexity import path_length
from attnbench.report.canvas import empty, figure, wrap
from attnbench.report.style import GRID, SOFT, look_of, style

__all__ = ["gallery_plot"]

FITS = 22  # characters of 8 points over one pattern


def gallery_plot(patterns: Mapping[str, np.ndarray], columns: int = 6) -> Figure:
    """Draws (n, n) weights by name: `local`, or `local causal` for the causal form.

    Absolute values, each pattern scaled by its largest; above each the layers that information needs to get everywhere.
    """
    if not patterns:
        return empty("Patterns: none are known")
    columns = min(columns, len(patterns))
    lines = math.ceil(len(patterns) / columns)
    with style():
        cell, gap, caption = 1.32, 0.2, 0.28
        made = figure(max(0.4 + columns * (cell + gap), 6.8), 0.75 + lines * (cell + gap + caption))
        width, height = made.get_figwidth(), made.get_figheight()
        for place, (name, weights) in enumerate(patterns.items()):
            line, column = divmod(place, columns)
            x, y = 0.25 + column * (cell + gap), height - 0.72 - line * (cell + gap + caption) - caption - cell
            ax = made.add_axes((x / width, (y + 0.12) / height, cell / width, cell / height))
            _draw(ax, name, np.abs(np.asarray(weights, dtype=float)))
        wrap(
            made,
            "Who sees whom",
            "a row is a query, a column a key; layers: until every position has heard of every other",
        )
    return made


def _draw(ax: Axes, name: str, weights: np.ndarray) -> None:
    label = name.removesuffix(" causal")
    colour = look_of(label).colour
    top = float(weights.max()) or 1.0
    ramp = LinearSegmentedColormap.from_list("pattern", ["#ffffff", _light(colour), colour])
    shown = np.sqrt(weights / top)  # weights spread over orders of magnitude: what is faint is seen, too
    ax.imshow(shown, cmap=ramp, vmin=0, vmax=1, interpolation="nearest")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color(GRID)
    layers = path_length(weights)
    text = "never" if math.isinf(layers) else f"{layers:.0f} layer{'s' if layers != 1 else ''}"
    if name != label:
        text = f"causal, {text}"
    size = max(6.0, 8.0 * min(1.0, FITS / len(label)))
    longest = int(FITS * 8.0 / size)
    ax.set_title(
        label if len(label) <= longest else label[: longest - 1] + "…", fontsize=size, loc="left", pad=11, color=colour
    )
    ax.text(0, 1.025, text, transform=ax.transAxes, fontsize=6.8, color=SOFT, va="bottom")


def _light(colour: str) -> str:
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * 0.55):02x}" for part in parts)
