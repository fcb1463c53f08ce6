"""The kinds of key sets that a piece may see, and the kinds of masks over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.kernels.layout import Piece
from attnbench.kernels.pieces import Mask

__all__ = ["Hidden", "Keys", "Listed", "Triangles", "Window"]


@dataclass
class Hidden:
    """A bool mask (1 or c, T or 1, W) over a piece."""

    mask: Tensor

    def zero_(self, weights: Tensor) -> None:
        weights.mul_(self.mask.mT.to(weights.dtype))

    def exclude_(self, scores: Tensor) -> None:
        scores.masked_fill_(~self.mask.mT, -torch.inf)


@dataclass(frozen=True)
class Triangles:
    """The band's edges within a tile: key row j and query column i are visible to each other where low <= j - i <= high."""

    low: int
    high: int

    def zero_(self, weights: Tensor) -> None:
        weights.tril_(-self.low).triu_(-self.high)

    def exclude_(self, scores: Tensor) -> None:
        _, width, rows = scores.shape
        offset = torch.arange(width, device=scores.device)[:, None] - torch.arange(rows, device=scores.device)
        scores.masked_fill_((offset < self.low) | (offset > self.high), -torch.inf)


@dataclass(frozen=True)
class Keys:
    """Visible keys (c, W), whichever the query."""

    mask: Tensor

    def zero_(self, weights: Tensor) -> None:
        weights.mul_(self.mask[..., None].to(weights.dtype))

    def exclude_(self, scores: Tensor) -> None:
        scores.masked_fill_(~self.mask[..., None], -torch.inf)


@dataclass
class Window:
    """The contiguous keys of a piece."""

    k: Tensor
    v: Tensor
    masks: Sequence[Mask]
    weights: Tensor
    scratch: Tensor
    piece: Piece

    def accumulate(self, total: Tensor, weights: Tensor, rows: Tensor) -> None:
        piece, done = self.piece, 0
        if piece.step:
            # Ranges of neighbouring tiles overlap. Taken in bands as wide as a tile is tall they do not, and lie back to back.
            head = total[piece.heads.start]
            for done in range(piece.rows, piece.width + 1, piece.rows):
                start = piece.start + done - piece.rows
                target = head[start : start + piece.count * piece.rows].view(piece.count, piece.rows, -1)
                target.baddbmm_(weights[:, done - piece.rows : done], rows)
        if done < piece.width:
            piece.keys(total, done).add_(torch.bmm(weights[:, done:], rows))


@dataclass
class Listed:
    """The extra keys of a piece: heads (c, 1) and positions (c or 1, E) in them."""

    k: Tensor
    v: Tensor
    masks: Sequence[Mask]
    weights: Tensor
    scratch: Tensor
    heads: Tensor
    positions: Tensor

    def accumulate(self, total: Tensor, weights: Tensor, rows: Tensor) -> None:
        sums = torch.bmm(weights, rows)
        if self.positions.shape[0] == 1:
            sums = sums.sum(dim=0, keepdim=True)
        index = (self.heads[: sums.shape[0]] * total.shape[1] + self.positions).view(-1, 1)
        total.view(-1, total.shape[2]).scatter_add_(0, index.expand(-1, total.shape[2]), sums.flatten(0, 1))
