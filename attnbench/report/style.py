"""One look for all plots: a fixed colour and marker per label, colour-blind safe, and nothing global is touched."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib

__all__ = ["GRID", "INK", "PAPER", "SOFT", "Look", "look_of", "style"]

PAPER, INK, SOFT, GRID = "#ffffff", "#1b1e23", "#6b7280", "#e3e6ea"

# Pairwise a visible step apart for readers with normal, protan and deutan vision, and dark enough to be read as text on white.
_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#b5478f",
    "#5f3b0c",
    "#1d93ad",
    "#882255",
    "#7a3be0",
    "#2e603f",
    "#e0402f",
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "d")
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.6), (1.4, 1.4), (6, 1.5, 1.4, 1.5))

# Known variants hold their places for ever; a stranger's label gets one by its name alone. New names go to the end.
_KNOWN = (
    *("local", "strided", "global-token", "clustering", "sinkhorn", "linformer", "synthesizer", "linear", "performer"),
    *("lsh", "mixed", "nystrom", "cosformer", "recurrent", "convolution", "delta", "routing", "gated"),
    *("bigbird", "longformer", "blockwise", "retention", "fourier", "pooling"),
)
_PLAIN = {"full": (INK, "o"), "full-naive": ("#5b626d", "s"), "none": ("#8d949e", "x"), "uniform": ("#8d949e", "+")}
_BACKEND = {"backend", "backend_fallback", "interactive", "toolbar", "timezone", "webagg.port", "date.epoch"}


@dataclass(frozen=True)
class Look:
    """How a label looks in every plot."""

    colour: str
    marker: str
    dashes: tuple[float, ...]


def look_of(label: str) -> Look:
    """The look of a label: the same in every plot, of every run, on every machine."""
    if label in _PLAIN:
        return Look(*_PLAIN[label], ())
    place = _KNOWN.index(label) if label in _KNOWN else zlib.crc32(label.encode())
    return Look(
        _COLOURS[place % len(_COLOURS)],
        _MARKERS[place % len(_MARKERS)],
        _DASHES[place // len(_COLOURS) % len(_DASHES)],
    )


_SETTINGS = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so a figure looks the same everywhere
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # a label is text, whatever dollars it holds
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "legend.frameon": False,
    "text.hinting": "none",  # glyphs as designed, and drawn in half the time
    "svg.fonttype": "path",
    "svg.hashsalt": "attnbench",  # the same picture is the same file
    "path.simplify": True,
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's settings while a figure is drawn: ours over its defaults; the caller's come back after."""
    settings: Any = {key: value for key, value in matplotlib.rcParamsDefault.items() if key not in _BACKEND} | _SETTINGS
    with matplotlib.rc_context(settings):
        yield
