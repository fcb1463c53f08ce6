"""Between tokens and vectors, at both ends: the embedding, and one vector out of a sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnbench.backbone.positions import added_positions
from attnbench.errors import UserError, nearest

__all__ = ["POOLINGS", "Embedding", "pool"]

POOLINGS = ("mean", "last", "cls")


class Embedding(nn.Module):
    """x_t = E[token_t] sqrt(dim) + P_t, then dropout: (batch, n) int64 -> (batch, n, dim).

    Rows of E begin at a scale of 1 / sqrt(dim), so that they serve an output layer tied to them as well.

    Source: Vaswani et al. 2017, sections 3.4 and 3.5.
    """

    def __init__(self, vocab: int, dim: int, *, positions: str, max_len: int | None, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        nn.init.normal_(self.tokens.weight, std=dim**-0.5)
        self.positions = added_positions(positions, dim, max_len)
        self.dropout = nn.Dropout(dropout)
        self.scale = dim**0.5

    def forward(self, tokens: Tensor, offset: int = 0) -> Tensor:
        return self.dropout(self.positions(self.tokens(tokens) * self.scale, offset))


def pool(x: Tensor, key_mask: Tensor | None, how: str) -> Tensor:
    """One vector per sequence: (batch, n, dim) -> (batch, dim).

    mean: over the real tokens (zeros where there are none). last: the last real token. cls: the first.
    """
    if how == "cls":
        return x[:, 0]
    if key_mask is None:
        return x.mean(dim=1) if how == "mean" else x[:, -1]
    if how == "mean":
        count = key_mask.sum(dim=1, keepdim=True).clamp(min=1)
        return x.masked_fill(~key_mask[..., None], 0).sum(dim=1) / count.to(x.dtype)
    places = torch.arange(x.shape[1], device=x.device)
    last = (key_mask * places).amax(dim=1)
    return x[torch.arange(len(x), device=x.device), last]


def check_pooling(how: str, causal: bool) -> None:
    """Raises ValueError for an unknown pooling, and for one that could see nothing."""
    if how not in POOLINGS:
        raise UserError(f"unknown pooling {how!r}{nearest(how, POOLINGS)}; valid: {', '.join(POOLINGS)}")
    if how == "cls" and causal:
        raise UserError(
            "pooling 'cls' reads a first token, which in a causal model sees no other; use 'last' or 'mean'"
        )
