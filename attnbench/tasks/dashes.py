"""Pictures of dashed curves and discs, for Pathfinder: all images of a chunk are drawn at a time."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIFFICULTIES", "SIZES", "Stamps", "draw_images"]

DASH, THICKNESS, MARGIN, PADDING, ANTIALIAS, DISC = (
    2,
    0.5,
    1,
    1,
    2,
    1.5,
)  # pixels, but for ANTIALIAS: samples a pixel, each way
CONTINUITY, CURVE_CONTRAST, DASH_CONTRAST = 1.0, 2.0, 0.75
DISTRACTOR_TRIES = 4
DIFFICULTIES = ("easy", "intermediate", "hard")


@dataclass(frozen=True)
class _Size:
    """Of a side in pixels: dashes of a curve by difficulty, seed distance, and how many distractors of how many dashes."""

    dashes: dict[str, int]
    seed_distance: int
    distractors: int
    distractor_dashes: int
    examples: tuple[int, int, int]


SIZES = {
    32: _Size({"easy": 6, "intermediate": 9, "hard": 14}, 7, 5, 4, (160_000, 20_000, 20_000)),
    16: _Size({"easy": 2, "intermediate": 3, "hard": 4}, 5, 2, 2, (20_000, 1_000, 2_000)),
}


class Stamps:
    """A dash in every orientation, and a disc, as small square patches round a pivot.

    Orientations lead to the k pixels on a circle round the pivot: `angles` (k,). `end` and `next_pivot` (k, 2) are
    offsets from it. `ink` (k + 1, width, width) is what a dash adds to an image, `near` the pixels within a margin of
    it; the last of both is a disc's. `touched` (width * width, k) are the pixels that a dash needs.
    """

    def __init__(self) -> None:
        radius = DASH + MARGIN
        self.reach = radius + math.ceil(DISC)
        grid = np.arange(-self.reach, self.reach + 1)
        rows, columns = np.meshgrid(grid, grid, indexing="ij")
        on_circle = np.rint(np.hypot(rows, columns)) == radius
        self.angles = np.arctan2(rows[on_circle], columns[on_circle])
        along = np.stack([np.sin(self.angles), np.cos(self.angles)], axis=1)
        self.next_pivot = np.rint(along * (DASH + 2 * MARGIN)).astype(np.int64)
        self.end = np.rint(along * DASH).astype(np.int64)
        fine = (np.arange(ANTIALIAS) + 0.5) / ANTIALIAS - 0.5
        row, column, down, right = np.meshgrid(grid, grid, fine, fine, indexing="ij")
        points = np.stack([row + down, column + right], axis=-1)  # the samples of every pixel
        cover = np.stack([(_from_segment(points, unit) <= THICKNESS / 2 + 1e-9).mean(axis=(2, 3)) for unit in along])
        self.touched = (cover > 0).reshape(len(cover), -1).T.astype(np.float32)
        disc = (np.hypot(points[..., 0], points[..., 1]) <= DISC).mean(axis=(2, 3))
        dashes = np.minimum(1, CURVE_CONTRAST * DASH_CONTRAST * cover)
        self.ink = np.concatenate([dashes, disc[None]]).astype(np.float32)
        pixels = np.stack([rows, columns], axis=-1).astype(float)
        near = np.stack([_from_segment(pixels, unit) <= MARGIN + THICKNESS for unit in along])
        self.near = np.concatenate([near, disc[None] > 0])

    @property
    def width(self) -> int:
        return 2 * self.reach + 1


def _from_segment(points: NDArray[Any], unit: NDArray[Any]) -> NDArray[Any]:
    """Distance of points (..., 2) from a dash that starts at the pivot in the direction of `unit`."""
    nearest_on_it = np.clip(points @ unit, 0, DASH)[..., None] * unit
    return np.linalg.norm(points - nearest_on_it, axis=-1)


class _Canvas:
    """Images (count, side, side) in a frame wide enough for any patch; `taken` marks where no dash may come.

    What is drawn is remembered, `pivots` (count, strokes, 2) and `chosen` (count, strokes; -1 is a disc), and painted
    only once it is known which images come through.
    """

    def __init__(self, count: int, side: int, stamps: Stamps) -> None:
        self.stamps, self.side, self.frame = stamps, side, stamps.reach
        whole = side + 2 * self.frame
        self.pivots = np.zeros((count, 0, 2), np.int64)
        self.chosen = np.zeros((count, 0), np.int64)
        self.taken = np.ones((count, whole, whole), dtype=bool)
        inner = slice(self.frame + PADDING, whole - self.frame - PADDING)
        self.taken[:, inner, inner] = False

    def __len__(self) -> int:
        return len(self.taken)

    def keep(self, rows: NDArray[Any]) -> _Canvas:
        """Some of the images, as a canvas of their own."""
        kept = copy.copy(self)
        kept.taken, kept.pivots, kept.chosen = self.taken[rows], self.pivots[rows], self.chosen[rows]
        return kept

    def stroke(self, pivot: NDArray[Any], chosen: NDArray[Any]) -> None:
        """Remembers a dash or a disc in every image, and takes its place."""
        self.taken[self.square(pivot)] |= self.stamps.near[chosen]
        self.pivots = np.concatenate([self.pivots, pivot[:, None]], axis=1)
        self.chosen = np.concatenate([self.chosen, chosen[:, None]], axis=1)

    def painted(self) -> NDArray[np.float32]:
        """The images (count, side, side), in 0 .. 1."""
        ink = np.zeros(self.taken.shape, np.float32)
        for number in range(self.chosen.shape[1]):
            square = self.square(self.pivots[:, number])
            ink[square] = np.maximum(ink[square], self.stamps.ink[self.chosen[:, number]])
        inner = slice(self.frame, -self.frame)
        return ink[:, inner, inner]

    def square(self, pivot: NDArray[Any]) -> tuple[Any, Any, Any]:
        """Index of the patch round each image's pivot (count, 2)."""
        steps = np.arange(
            self.stamps.width
        )  # the frame is as wide as half a patch, so that it begins at the pivot's own number
        corner = np.clip(pivot, 0, self.side - 1)
        every = np.arange(len(self))[:, None, None]
        return every, (corner[:, :1] + steps)[:, :, None], (corner[:, 1:] + steps)[:, None, :]

    def free(self, pixels: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether no dash is near the pixels (count, k, 2); those outside of the image are not free."""
        inside = ((pixels >= 0) & (pixels < self.side)).all(axis=-1)
        place = self.frame + np.clip(pixels, 0, self.side - 1)
        return inside & ~self.taken[np.arange(len(self))[:, None], place[..., 0], place[..., 1]]

    def dash(
        self, rng: np.random.Generator, pivot: NDArray[Any], angle: NDArray[Any] | None, last: bool
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Draws a dash from each pivot, and returns its orientation's number, and whether there was room for one.

        `angle` is that of the curve so far (None: all orientations are alike); unless it is the `last`, the curve
        must be able to go on from where it leads.
        """
        stamps = self.stamps
        meets = (
            self.taken[self.square(pivot)].reshape(len(pivot), len(stamps.touched)).astype(np.float32) @ stamps.touched
        )
        weights = (meets == 0).astype(float)
        if not last:
            weights *= self.free(pivot[:, None] + stamps.next_pivot)
        if angle is not None:
            change = np.abs((stamps.angles - angle[:, None] + np.pi) % (2 * np.pi) - np.pi)
            weights *= np.cos(np.minimum(CONTINUITY * change, np.pi / 2)) ** 2
        weights[weights < 1e-12] = 0  # a right angle, but for rounding
        chosen = _pick(rng, weights)
        self.stroke(pivot, chosen)
        return chosen, weights.any(axis=1)


def _pick(rng: np.random.Generator, weights: NDArray[Any]) -> NDArray[Any]:
    """One column of each row, with probability in proportion to its weight (the last, where all are zero)."""
    total = np.cumsum(weights, axis=1)
    mark = rng.random((len(weights), 1)) * total[:, -1:]
    return np.minimum((total <= mark).sum(axis=1), weights.shape[1] - 1)


@dataclass
class _Curve:
    """A curve in every image: the pivot it began at, the next one, the end of its last dash, and that dash's angle."""

    start: NDArray[Any]
    pivot: NDArray[Any]
    tip: NDArray[Any]
    angle: NDArray[Any] | None = None

    @classmethod
    def at(cls, pivot: NDArray[Any]) -> _Curve:
        return cls(pivot, pivot, pivot)

    def grow(self, rng: np.random.Generator, canvas: _Canvas, last: bool) -> NDArray[np.bool_]:
        """Adds a dash in every image, and returns where there was room."""
        chosen, room = canvas.dash(rng, self.pivot, self.angle, last)
        self.angle = canvas.stamps.angles[chosen]
        self.tip = self.pivot + canvas.stamps.end[chosen]
        self.pivot = self.pivot + canvas.stamps.next_pivot[chosen]
        return room

    def keep(self, rows: NDArray[Any]) -> _Curve:
        return _Curve(
            self.start[rows], self.pivot[rows], self.tip[rows], None if self.angle is None else self.angle[rows]
        )


def draw_images(
    rng: np.random.Generator, count: int, side: int, difficulty: str
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The images that came out of `count` attempts, (n, side, side) in 0 .. 1, and their labels (n,)."""
    size = SIZES[side]
    canvas, curves = _two_curves(rng, count, side, size.dashes[difficulty], size.seed_distance)
    canvas, labels = _discs(rng, canvas, curves)
    for _ in range(size.distractors):
        canvas, drawn = _distractor(rng, canvas, size.distractor_dashes)
        labels = labels[drawn]
    return canvas.painted(), labels


def _two_curves(
    rng: np.random.Generator, count: int, side: int, dashes: int, apart: int
) -> tuple[_Canvas, list[_Curve]]:
    """Two curves that grow in turn; images in which one cannot grow on are given up."""
    canvas = _Canvas(count, side, Stamps())
    turn = rng.random(count) * 2 * np.pi
    first = rng.integers(PADDING, side - PADDING, (count, 2))
    second = first + np.rint(apart * np.stack([np.sin(turn), np.cos(turn)], axis=1)).astype(np.int64)
    curves = [_Curve.at(first), _Curve.at(second)]
    alive = canvas.free(second[:, None])[:, 0]
    for number in range(1, dashes + 1):
        for turn_of in (0, 1):
            canvas, curves = canvas.keep(alive), [curve.keep(alive) for curve in curves]
            alive = curves[turn_of].grow(rng, canvas, number == dashes)
    return canvas.keep(alive), [curve.keep(alive) for curve in curves]


def _discs(rng: np.random.Generator, canvas: _Canvas, curves: list[_Curve]) -> tuple[_Canvas, NDArray[np.int64]]:
    """Puts a disc on the first curve's start, and one on its tip (label 1) or on the other's (label 0).

    Images in which two ends lie closer than discs on them may are given up.
    """
    labels = rng.integers(0, 2, len(canvas))
    ends = [curves[0].start, curves[0].tip, curves[1].start, curves[1].tip]
    # Ends that get no disc must keep away too, or an image's chance to be given up would depend on its label.
    close = [np.linalg.norm(a - b, axis=1) < 2 * DISC + MARGIN for a, b in itertools.combinations(ends, 2)]
    alive = ~np.any(close, axis=0)
    for mark in (curves[0].start, np.where(labels[:, None] == 1, curves[0].tip, curves[1].tip)):
        canvas.stroke(mark, np.full(len(canvas), -1))
    return canvas.keep(alive), labels[alive]


def _distractor(rng: np.random.Generator, canvas: _Canvas, dashes: int) -> tuple[_Canvas, NDArray[np.int64]]:
    """Adds one short curve to every image that has room for it within some tries; the images, and which they were."""
    done: list[_Canvas] = []
    order: list[NDArray[np.int64]] = []
    waiting = np.arange(len(canvas))
    for _ in range(DISTRACTOR_TRIES):
        attempt = canvas.keep(waiting)
        rows = waiting
        free = ~attempt.taken[:, canvas.frame : -canvas.frame, canvas.frame : -canvas.frame].reshape(
            len(rows), canvas.side**2
        )
        place = _pick(rng, free.astype(float))
        curve = _Curve.at(np.stack([place // canvas.side, place % canvas.side], axis=1))
        for number in range(1, dashes + 1):
            room = curve.grow(rng, attempt, number == dashes)
            attempt, curve, rows = attempt.keep(room), curve.keep(room), rows[room]
        done.append(attempt)
        order.append(rows)
        waiting = np.setdiff1d(waiting, rows)
    joined = copy.copy(canvas)
    for name in ("taken", "pivots", "chosen"):
        setattr(joined, name, np.concatenate([getattr(part, name) for part in done]))
    return joined, np.concatenate(order)
