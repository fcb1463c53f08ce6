"""Where a token stands: added to its embedding (sinusoidal, learned), turned into queries and keys (rotary), or untold."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnbench.errors import UserError, nearest

__all__ = ["POSITIONS", "Learned", "Sinusoidal", "added_positions", "rotate"]

POSITIONS = ("sinusoidal", "learned", "rotary", "none")


class Sinusoidal(nn.Module):
    """Fixed waves of geometrically growing wavelength, for any length.

    P[t, 2i] = sin(t / 10000^(2i / dim))    P[t, 2i + 1] = cos(t / 10000^(2i / dim))

    Source: Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Adds positions offset .. offset + n - 1 to x (batch, n, dim)."""
        angles = _angles(x.shape[1], self.dim, offset, x.device)
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return x + waves[:, : self.dim].to(x.dtype)


class Learned(nn.Module):
    """One learned vector per position up to max_len."""

    def __init__(self, dim: int, max_len: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_len, dim))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Adds positions offset .. offset + n - 1 to x (batch, n, dim). Raises ValueError past max_len."""
        end = offset + x.shape[1]
        if end > len(self.weight):
            raise UserError(f"learned positions: length {end} exceeds max_len {len(self.weight)}")
        return x + self.weight[offset:end].to(x.dtype)


class Unpositioned(nn.Module):
    """Adds nothing: for rotary positions, which enter in the attention, and for none at all."""

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        return x


def added_positions(kind: str, dim: int, max_len: int | None) -> nn.Module:
    """The module that adds positions of a kind to embeddings. Raises ValueError for an unknown kind."""
    if kind not in POSITIONS:
        raise UserError(f"unknown positions {kind!r}{nearest(kind, POSITIONS)}; valid: {', '.join(POSITIONS)}")
    if kind == "sinusoidal":
        return Sinusoidal(dim)
    if kind == "learned":
        if max_len is None:
            raise UserError("learned positions need max_len, the longest length they will meet; received None")
        return Learned(dim, max_len)
    return Unpositioned()


def rotate(x: Tensor, offset: int = 0) -> Tensor:
    """Turns each pair of features of x (..., n, width) by an angle that grows with its position.

    (a, b) -> (a cos - b sin, a sin + b cos)  with angle  t / 10000^(2i / width)  for pair i at position t

    The product of a rotated query and a rotated key so depends on their distance alone.

    Source: Su et al. 2021, "RoFormer", equation 34.
    """
    angles = _angles(x.shape[-2], x.shape[-1], offset, x.device)
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


def _angles(n: int, width: int, offset: int, device: torch.device) -> Tensor:
    """(n, ceil(width / 2)) float32, computed anew each time: a table would be one more buffer that can be too short."""
    steps = torch.arange(offset, offset + n, device=device, dtype=torch.float32)
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    return steps[:, None] * rates
