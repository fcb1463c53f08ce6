"""How tiles of listed tokens are batched into runs: bookkeeping on whole numbers.

A tile is a run of queries and the run of keys that they see, as *slots*: places in the lists of positions, of all samples and
heads one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Run", "runs"]

FILL = 0.75  # a run takes in tiles down to this share of its width; the rest of the width is wasted work

Tile = tuple[int, int, int, int]
"""The first slot and the one after the last, of queries and of keys."""


@dataclass(frozen=True)
class Run:
    """Tiles of one piece.

    queries: slots (c, T), padded with repeats.
    keys: slots (U,); a tile's are `width` in a row, and each tile's begin `step` behind the last one's. Where step < width,
        neighbours share keys.
    real_queries, real_keys: which are real (c, T) and (c, width); None: all of them.
    short: tiles of which as many leading keys are not theirs: (numbers of the tiles, keys).
    lead: by how many slots the keys start before the queries, where that is the same in all tiles.
    """

    queries: Tensor
    keys: Tensor
    width: int
    step: int
    real_queries: Tensor | None = None
    real_keys: Tensor | None = None
    short: tuple[tuple[Tensor, int], ...] = ()
    lead: int | None = None

    def by_tile(self, x: Tensor) -> Tensor:
        """What stands at `keys`, (U, ...), as each tile sees it: a view (c, width, ...)."""
        tiles = x.unfold(0, self.width, self.step)
        return tiles if x.dim() == 1 else tiles.mT

    def gathered(self, weights: Tensor, rows: Tensor, total: Tensor) -> Tensor:
        """weights (c, width, T) @ rows (c, T, d) of all tiles, added up key by key in total (U, d)."""
        if self.step == self.width:
            return torch.bmm(weights, rows, out=total.view(-1, self.width, total.shape[-1])).view_as(total)
        # Taken in bands of `step` keys, no two tiles meet in a key.
        count, total = len(weights), total.zero_()
        for start in range(0, self.width, self.step):
            band = slice(start, min(start + self.step, self.width))
            if band.stop - start == self.step:
                keys = total[start : start + count * self.step]
                keys.view(count, self.step, -1).baddbmm_(weights[:, band], rows)
            else:
                keys = total[start : start + (count - 1) * self.step + band.stop - start]
                keys.unfold(0, band.stop - start, self.step).mT.add_(torch.bmm(weights[:, band], rows))
        return total


def runs(tiles: Tensor, lists: tuple[int, int], room: int) -> Iterator[Run]:
    """Tiles (..., batch, heads, T, 4) of lists of so many positions, in runs of at most `room` padded scores."""
    batch, heads = tiles.shape[-4:-2]
    row = torch.arange(batch * heads, device=tiles.device).view(batch, heads, 1, 1)
    shifts = row * torch.tensor([lists[0], lists[0], lists[1], lists[1]], device=tiles.device)
    parts: list[Tile] = []
    for q0, q1, k0, k1 in (tiles + shifts).reshape(-1, 4).tolist():
        if k1 > k0:
            rows = max(1, room // (k1 - k0))
            parts += [(start, min(start + rows, q1), k0, k1) for start in range(q0, q1, rows)]
    chains, others = _chains(parts, heads * lists[0], room)
    for chain in chains:
        sample = chain[0][0] // (heads * lists[0])
        yield _chained(chain, sample * heads * lists[1], tiles.device)
    for group in _alike(others, room):
        yield _grouped(group, tiles.device)


def _chains(parts: list[Tile], sample: int, room: int) -> tuple[list[list[Tile]], list[Tile]]:
    """Tiles that slide along the lists, each by its own rows, so that neighbours share keys; and all others.

    A chain stays within a sample (of so many slots): what a tile does not see is next to what it sees, and must be its own.
    """
    found: list[list[Tile]] = []
    last = (-1, -1, -1, -1)
    for tile in sorted(parts):
        rows = tile[1] - tile[0]
        alike = tile[0] == last[1] and tile[3] - last[3] == rows == last[1] - last[0]
        if alike and tile[0] // sample == last[0] // sample:
            found[-1].append(tile)
        else:
            found.append([tile])
        last = tile
    least = min(room, sum(map(_scores, parts))) // 2  # what is shorter does better together with others
    chains, others = [], []
    for chain in found:
        rows = chain[0][1] - chain[0][0]
        width = max(k1 - k0 for _, _, k0, k1 in chain)
        padded = len(chain) * width * rows
        if rows < width and padded >= least and sum(map(_scores, chain)) >= FILL * padded:
            most = max(1, room // (width * rows))
            most = -(-len(chain) // -(-len(chain) // most))  # equally long ones
            chains += [chain[start : start + most] for start in range(0, len(chain), most)]
        else:
            others += chain
    return chains, others


def _scores(tile: Tile) -> int:
    q0, q1, k0, k1 = tile
    return (q1 - q0) * (k1 - k0)


def _alike(parts: list[Tile], room: int) -> Iterator[list[Tile]]:
    """Groups of nearly equal width, widest first."""
    parts = sorted(parts, key=lambda tile: (tile[2] - tile[3], tile[0] - tile[1]))
    start = 0
    while start < len(parts):
        width, height, stop = parts[start][3] - parts[start][2], 0, start
        while stop < len(parts) and parts[stop][3] - parts[stop][2] >= FILL * width:
            height = max(height, parts[stop][1] - parts[stop][0])
            if stop > start and (stop + 1 - start) * height * width > room:
                break
            stop += 1
        yield parts[start:stop]
        start = stop


def _chained(chain: list[Tile], first: int, device: torch.device) -> Run:
    """first: the sample's first key, which stands in for keys before it: they are hidden, but must be finite all the same."""
    q0, q1, _, k1 = chain[0]
    rows, width = q1 - q0, max(k1 - k0 for _, _, k0, k1 in chain)
    queries = torch.arange(q0, chain[-1][1], device=device).view(-1, rows)
    keys = torch.arange(k1 - width, chain[-1][3], device=device).clamp_min_(first)
    missing: dict[int, list[int]] = {}
    for number, (_, _, start, stop) in enumerate(chain):
        if stop - start < width:
            missing.setdefault(width - (stop - start), []).append(number)
    short = tuple((torch.tensor(numbers, device=device), count) for count, numbers in missing.items())
    return Run(queries, keys, width, rows, short=short, lead=q0 - k1 + width)


def _grouped(group: list[Tile], device: torch.device) -> Run:
    q0s, q1s, k0s, k1s = (list(column) for column in zip(*group, strict=True))
    (queries, real_queries), (keys, real_keys) = _slots(q0s, q1s, device), _slots(k0s, k1s, device)
    leads = {q0 - k0 for q0, k0 in zip(q0s, k0s, strict=True)}
    lead = leads.pop() if len(leads) == 1 else None
    return Run(queries, keys.view(-1), keys.shape[1], keys.shape[1], real_queries, real_keys, lead=lead)


def _slots(starts: list[int], stops: list[int], device: torch.device) -> tuple[Tensor, Tensor | None]:
    lengths = {stop - start for start, stop in zip(starts, stops, strict=True)}
    slots = torch.tensor(starts, device=device)[:, None] + torch.arange(max(lengths), device=device)
    if len(lengths) == 1:
        return slots, None
    last = torch.tensor(stops, device=device)[:, None] - 1
    return torch.minimum(slots, last), slots <= last
