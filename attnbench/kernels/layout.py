"""How a band of keys is cut into tiles and pieces: pure bookkeeping on whole numbers, and views on tensors.

Queries go in tiles of T. Every tile sees one contiguous range of W keys, shifted inwards at the ends of the sequence, so that
all ranges are equally wide and no key is ever padded. Neighbouring tiles whose ranges lie alike form a *run*.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

__all__ = ["Band", "Piece", "cut", "tile_rows"]


@dataclass(frozen=True)
class Band:
    """Query i sees the keys from i + shift - before to i + shift + after, those that exist."""

    n_q: int
    n_k: int
    before: int
    after: int
    shift: int = 0

    @property
    def span(self) -> int:
        return self.before + self.after + 1


@dataclass(frozen=True)
class Piece:
    """`count` tiles of `rows` queries: one after the other in one head (step = rows), or one in each head (step = 0).

    first: the first query. start, width: the keys of the first tile; those of the next start `step` later.
    heads: the heads it covers, of batch and heads flattened; exactly one where step > 0.
    """

    heads: slice
    first: int
    rows: int
    start: int
    width: int
    step: int
    count: int

    def queries(self, x: Tensor) -> Tensor:
        """The piece's rows of x (heads, n_q, ...): a view (count, rows, ...)."""
        return self._tiles(x, self.first, self.rows)

    def keys(self, x: Tensor, offset: int = 0, length: int | None = None) -> Tensor:
        """The piece's keys of x (heads, n_k, ...), or `length` of them from `offset`: a view (count, width, ...)."""
        return self._tiles(x, self.start + offset, self.width - offset if length is None else length)

    def _tiles(self, x: Tensor, first: int, length: int) -> Tensor:
        if not self.step:
            return x[self.heads, first : first + length]
        across, along, *inner = x.stride()
        offset = x.storage_offset() + self.heads.start * across + first * along
        return x.as_strided((self.count, length, *x.shape[2:]), (self.step * along, along, *inner), offset)


def tile_rows(band: Band) -> int:
    """Rows of a tile: fewer waste fewer scores outside the window, more make better matrix products."""
    return 64 if band.span > 96 else 32


def _runs(band: Band, rows: int, tallest: int) -> Iterator[tuple[int, int, int, int]]:
    """(first query, rows of a tile, start of its keys, number of tiles) of each run; the last tile may be shorter.

    Tiles that see the very same keys, as at the ends of the sequence, become one, of at most `tallest` rows.
    """
    width, first = _width(band, rows), 0

    def start_of(query: int) -> int:
        return _start(band, query, width)

    while first < band.n_q:
        tall = length = 1
        start, left = start_of(first), (band.n_q - first) // rows
        while tall < left and (tall + 1) * rows <= tallest and start_of(first + tall * rows) == start:
            tall += 1
        while tall == 1 and length < left and start_of(first + length * rows) == start + length * rows:
            length += 1
        tall = tall * rows if left else band.n_q - first
        yield first, tall, start, length
        first += tall * length


def _width(band: Band, rows: int) -> int:
    """Keys of a tile, rounded up to lie well in memory."""
    width = rows + band.span - 1
    return min(band.n_k, -(-width // 16) * 16)


def _start(band: Band, first: int, width: int) -> int:
    return max(0, min(first + band.shift - band.before, band.n_k - width))


@functools.lru_cache(maxsize=64)  # a model asks for the same few again and again
def cut(band: Band, heads: int, room: int, rows: int | None = None) -> tuple[Piece, ...]:
    """All pieces of a band over `heads` heads, with at most `room` scores each (or one tile, if that is more).

    Tiles have `rows` rows; where that is None, as many as suit the band.
    """
    return tuple(_pieces(band, heads, room, rows))


def _pieces(band: Band, heads: int, room: int, rows: int | None) -> Iterator[Piece]:
    given, rows = rows, min(tile_rows(band) if rows is None else rows, band.n_q)
    width = _width(band, rows)
    tallest = rows if given else room // width  # where a caller counts in tiles, they stay as they are
    for first, tall, start, length in _runs(band, rows, tallest):
        most = max(1, room // (tall * width))
        if length >= heads:  # along the sequence, head by head
            piece = Piece(slice(0, 1), first, tall, start, width, tall, 0)
            steps = range(0, length, -(-length // -(-length // most)))
            for head in range(heads):
                for tile in steps:
                    yield replace(
                        piece,
                        heads=slice(head, head + 1),
                        first=first + tile * tall,
                        start=start + tile * tall,
                        count=min(steps.step, length - tile),
                    )
        else:  # across the heads, tile by tile
            for tile in range(length):
                for head in range(0, heads, most):
                    these = slice(head, min(head + most, heads))
                    at = tile * tall
                    yield Piece(these, first + at, tall, start + at, width, 0, these.stop - these.start)
