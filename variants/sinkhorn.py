"""Sinkhorn attention: a learned, doubly normalised sorting re-orders blocks; a block sees itself and what is sorted to it."""

from __future__ import annotations

from typing import Any

import torch
from einops import einsum, rearrange
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.kernels import masked_attention
from attnbench.kernels.mixtures import beside_mixtures
from attnbench.kernels.tokens import whole_blocks
from attnbench.registry import register

TINY = 1e-30  # a total share below it stays as it is: its inverse would overflow in the backward pass
EMPTY = 1e-6  # a place to which the sorting gives less of its row's weight than this is empty


@register(
    "sinkhorn",
    supports=Supports(
        causal=True,
        padding=True,
        time=Growth("n block d + n^2 d / block", 1.5),
        memory=Growth("n d + (n / block)^2", 1.0),
        exact_when={"block": "n"},
        small={"block": 4},
        notes=(
            "scores pairs of blocks by a bilinear form of pooled queries and keys, as later implementations do, instead of by "
            "a network from pooled tokens to a fixed number of blocks: any length works, and max_len does not bind",
            "no Gumbel noise unless asked for, and never in eval",
            "causal: a block sorts earlier blocks alone, by its first query, and column sums run forward over the rows so far",
        ),
    ),
)
class Sinkhorn(Variant):
    """Attention to the own block and to one block's worth of tokens from elsewhere, chosen by a soft sorting of the blocks.

        R_ij = pool(q of block i) W pool(k of block j)^T / (sqrt(head_dim) temperature)
        S = exp of R after `iterations` rounds of taking the log-sum-exp off its columns and off its rows
        k'_i = sum_j S_ij k_j,  v'_i = sum_j S_ij v_j        (k_j, v_j: the block's tokens, place by place)
        out_i = softmax(q_i [k_i; k'_i]^T / sqrt(head_dim)) [v_i; v'_i]

    W is learned, one matrix per head, and begins as the identity. Pooling is the mean of a block's real tokens. At each place
    the mixture runs over the blocks that have a real token there; a place that no block fills is not seen.

    Causal: W pool(k_j) for j < i alone, pool(q) is the block's first query, and a column's sum at row i runs over rows up to i.

    Args:
        block: tokens in a block; a last block may be shorter.
        temperature: below 1 sharpens the sorting towards a permutation.
        iterations: rounds of normalisation.
        noise: in training, adds Gumbel noise to R.

    Source: Tay et al. 2020, "Sparse Sinkhorn Attention", sections 3.1 to 3.3.
    """

    def __init__(
        self, *, block: int = 128, temperature: float = 0.75, iterations: int = 5, noise: bool = False, **common: Any
    ) -> None:
        super().__init__(**common)
        for option, value in (("block", block), ("iterations", iterations)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{self.name}: {option} must be a whole number of at least 1, received {value!r}")
        if not temperature > 0:
            raise ValueError(f"{self.name}: temperature must be above 0, received {temperature!r}")
        self.block, self.temperature, self.iterations, self.noise = block, temperature, iterations, noise
        self.pairing = nn.Parameter(torch.eye(self.head_dim).repeat(self.heads, 1, 1))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        n, size = q.shape[2], min(self.block, q.shape[2])
        q, k, v = (self._folded(x, size) for x in (q, k, v))
        real = self._real(key_mask, n, size, q)
        sorting = self.sorting(q, k, real)
        gain, filled = self._places(sorting, real, size)
        mask = self._visible(self._own(real, size, q.device), filled, q)
        k, v = (beside_mixtures(x, sorting, gain) for x in (k, v))
        q, k, v = (rearrange(x, "b h blocks place d -> (b blocks) h place d") for x in (q, k, v))
        if mask is None:
            out = scaled_dot_product_attention(q, k, v)
        else:
            mask = rearrange(mask, "b h blocks place key -> (b blocks) h place key")
            out = masked_attention(q, k, v, mask)
        return rearrange(out, "(b blocks) h place d -> b h (blocks place) d", b=sorting.shape[0])[:, :, :n]

    def sorting(self, q: Tensor, k: Tensor, real: Tensor | None) -> Tensor:
        """S (batch, heads, blocks, blocks), in float32 at least, of folded q and k; an empty block is nobody else's."""
        q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q[..., :1, :] if self.causal else q, k))
        with torch.autocast(q.device.type, enabled=False):
            asks, gives = q[..., 0, :] if self.causal else _pooled(q, real), _pooled(k, real)
            scores = (asks @ self.pairing.to(q.dtype) @ gives.mT) / (self.head_dim**0.5 * self.temperature)
            if self.noise and self.training:
                scores = scores - torch.empty_like(scores).exponential_().log()
            blocks = scores.shape[-1]
            allowed = scores.new_ones(1, blocks, blocks, dtype=torch.bool)
            if real is not None:
                some = real.any(dim=-1)
                allowed = allowed & some[:, :, None] & some[:, None, :]
            if self.causal:
                allowed = allowed.tril(-1)[:, None]
                return _balanced_forwards(scores.masked_fill(~allowed, -torch.inf), self.iterations)
            if real is not None:  # an empty block is sorted to itself
                allowed = allowed | (torch.eye(blocks, dtype=torch.bool, device=q.device) & ~some[:, :, None])
                scores = scores.masked_fill(~allowed[:, None], -torch.inf)
            return _balanced(scores, self.iterations)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        n, size = q.shape[2], min(self.block, q.shape[2])
        q, k = self._folded(q, size), self._folded(k, size)
        real = self._real(key_mask, n, size, q)
        sorting = self.sorting(q, k, real)
        gain, filled = self._places(sorting, real, size)
        there = q.new_ones(1, q.shape[2], size) if real is None else real.to(q.dtype)
        shares = sorting.to(q.dtype)[..., None] * there[:, None, None]  # b h i j place: what a place is mixed from
        shares = shares if gain is None else shares * gain.to(q.dtype)[..., None, :]
        sorted_k = einsum(shares, k, "b h i j place, b h j place d -> b h i place d")
        scores = (q @ torch.cat([k, sorted_k], dim=-2).mT) * self.head_dim**-0.5
        visible = self._visible(self._own(real, size, q.device), filled, q)
        visible = torch.ones_like(scores, dtype=torch.bool) if visible is None else visible.expand_as(scores)
        some = visible.any(dim=-1, keepdim=True)
        weights = torch.where(some, scores.masked_fill(~visible & some, -torch.inf).softmax(dim=-1), 0)
        own, moved = weights.split(size, dim=-1)
        spread = einsum(moved, shares, "b h i query place, b h i j place -> b h i query j place")
        spread = spread + einsum(own, torch.eye(q.shape[2]).to(own), "b h i query place, i j -> b h i query j place")
        return rearrange(spread, "b h i query j place -> b h (i query) (j place)")[:, :, :n, :n]

    def _folded(self, x: Tensor, size: int) -> Tensor:
        return rearrange(whole_blocks(x, size), "b h (blocks place) d -> b h blocks place d", place=size)

    def _real(self, key_mask: Tensor | None, n: int, size: int, q: Tensor) -> Tensor | None:
        """(batch or 1, blocks, place): which places hold a real token; None where all do."""
        if key_mask is None:
            if n % size == 0:
                return None
            key_mask = torch.ones(1, n, dtype=torch.bool, device=q.device)
        return rearrange(pad(key_mask, (0, -n % size)), "b (blocks place) -> b blocks place", place=size)

    def _places(self, sorting: Tensor, real: Tensor | None, size: int) -> tuple[Tensor | None, Tensor | None]:
        """What makes each place of a sorted block a mean of real tokens, and which places are filled; None, None: all are."""
        if real is None and not self.causal:
            return None, None
        there = sorting.new_ones(1, sorting.shape[-1], size) if real is None else real.to(sorting.dtype)
        mass = einsum(sorting, there, "b h i j, b j place -> b h i place")
        filled = mass > EMPTY
        return torch.where(filled, 1 / mass.masked_fill(~filled, 1), 0), filled

    def _visible(self, own: Tensor | None, filled: Tensor | None, q: Tensor) -> Tensor | None:
        """Which places of the own and of the sorted block a query of folded q sees; None: all of them.

        bool, (batch, heads or 1, blocks, size or 1, 2 size).
        """
        if own is None and filled is None:
            return None
        batch, _, blocks, size, _ = q.shape
        masks = [own, None if filled is None else filled[..., None, :]]
        present = [x for x in masks if x is not None]
        heads, rows = (max(x.shape[axis] for x in present) for axis in (1, 3))
        every = q.new_ones(1, 1, 1, 1, size, dtype=torch.bool)
        return torch.cat([(every if x is None else x).expand(batch, heads, blocks, rows, size) for x in masks], dim=-1)

    def _own(self, real: Tensor | None, size: int, device: torch.device) -> Tensor | None:
        """Which places of its own block a query sees: bool, broadcastable to (batch, heads, blocks, size, size); None: all."""
        own = None if real is None else real[:, None, :, None]
        if not self.causal:
            return own
        below = torch.ones(1, 1, 1, size, size, dtype=torch.bool, device=device).tril()
        return below if own is None else own & below


def _pooled(x: Tensor, real: Tensor | None) -> Tensor:
    """(batch, heads, blocks, d): the mean of each block's real tokens (the others are zero)."""
    if real is None:
        return x.mean(dim=-2)
    return x.sum(dim=-2) / real.sum(dim=-1).clamp_min(1)[:, None, :, None]


def _balanced(logs: Tensor, iterations: int) -> Tensor:
    """exp of logs after rounds of Sinkhorn normalisation, rows last; every row and column holds something finite."""
    rows = torch.zeros_like(logs[..., :1])
    for _ in range(iterations):
        columns = (logs - rows).logsumexp(dim=-2, keepdim=True)
        rows = (logs - columns).logsumexp(dim=-1, keepdim=True)
    return (logs - columns - rows).exp()


def _balanced_forwards(logs: Tensor, iterations: int) -> Tensor:
    """The same with column sums that run over the rows so far; a row of -inf alone becomes zeros.

    A share is at most 1 once its row is normalised, so that no later row can drown an earlier one: plain sums will do.
    """
    some = (logs > -torch.inf).any(dim=-1, keepdim=True)
    shares = torch.where(some, logs.masked_fill(~some, 0).softmax(dim=-1), 0)
    for _ in range(iterations):
        shares = shares / _divisor(shares.cumsum(dim=-2))
        shares = shares / _divisor(shares.sum(dim=-1, keepdim=True))
    return shares


def _divisor(total: Tensor) -> Tensor:
    return torch.where(total > TINY, total, 1)
