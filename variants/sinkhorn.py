"""Sinkhorn attention: a learned, doubly normalised sorting re-orders blocks; a block sees itself and what is sorted to it."""

from __future__ import annotations

from typing import Any

import torch
from einops import einsum, rearrange
from torch import Tensor, nn
from torch.nn.functional import pad

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.kernels import block_attention
from attnbench.registry import register

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
        self, *, block: int = 128, temperature: float = 0.75, iterations: int = 8, noise: bool = False, **common: Any
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
        (sorted_k, filled), (sorted_v, _) = self._sorted(sorting, k, real), self._sorted(sorting, v, real)
        mask = self._visible(real, filled, size, q.device)
        out, _ = block_attention(q, torch.cat([k, sorted_k], dim=-2), torch.cat([v, sorted_v], dim=-2), mask)
        return rearrange(out, "b h blocks place d -> b h (blocks place) d")[:, :, :n]

    def sorting(self, q: Tensor, k: Tensor, real: Tensor | None) -> Tensor:
        """S (batch, heads, blocks, blocks), in float32 at least, of folded q and k; zero in rows and columns of empty ones."""
        q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q[..., :1, :] if self.causal else q, k))
        with torch.autocast(q.device.type, enabled=False):
            asks, gives = q[..., 0, :] if self.causal else _pooled(q, real), _pooled(k, real)
            scores = (asks @ self.pairing.to(q.dtype) @ gives.mT) / (self.head_dim**0.5 * self.temperature)
            if self.noise and self.training:
                scores = scores - torch.empty_like(scores).exponential_().log()
            blocks = scores.shape[-1]
            allowed = scores.new_ones(1, 1, blocks, blocks, dtype=torch.bool)
            if self.causal:
                allowed = allowed.tril(-1)
            if real is not None:
                some = real.any(dim=-1)
                allowed = allowed & some[:, None, :, None] & some[:, None, None, :]
            return _balanced(scores.masked_fill(~allowed, -torch.inf), self.iterations, self.causal)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        n, size = q.shape[2], min(self.block, q.shape[2])
        q, k = self._folded(q, size), self._folded(k, size)
        real = self._real(key_mask, n, size, q)
        sorting = self.sorting(q, k, real)
        sorted_k, filled = self._sorted(sorting, k, real)
        scores = (q @ torch.cat([k, sorted_k], dim=-2).mT) * self.head_dim**-0.5
        mask = self._visible(real, filled, size, q.device)
        visible = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand_as(scores)
        some = visible.any(dim=-1, keepdim=True)
        weights = torch.where(some, scores.masked_fill(~visible & some, -torch.inf).softmax(dim=-1), 0)
        own, moved = weights.split(size, dim=-1)
        there = q.new_ones(1, q.shape[2], size) if real is None else real.to(q.dtype)
        shares = (
            sorting.to(q.dtype)[..., None] * there[:, None, None]
        )  # b h i j place: which blocks a place is mixed from
        shares = shares / shares.sum(dim=-2, keepdim=True).clamp_min(EMPTY)
        spread = einsum(moved, shares, "b h i query place, b h i j place -> b h i query j place")
        spread = spread + einsum(own, torch.eye(q.shape[2]).to(own), "b h i query place, i j -> b h i query j place")
        return rearrange(spread, "b h i query j place -> b h (i query) (j place)")[:, :, :n, :n]

    def _folded(self, x: Tensor, size: int) -> Tensor:
        short = -x.shape[2] % size
        x = pad(x, (0, 0, 0, short)) if short else x
        return rearrange(x, "b h (blocks place) d -> b h blocks place d", place=size)

    def _real(self, key_mask: Tensor | None, n: int, size: int, q: Tensor) -> Tensor | None:
        """(batch or 1, blocks, place): which places hold a real token; None where all do."""
        if key_mask is None:
            if n % size == 0:
                return None
            key_mask = torch.ones(1, n, dtype=torch.bool, device=q.device)
        return rearrange(pad(key_mask, (0, -n % size)), "b (blocks place) -> b blocks place", place=size)

    def _sorted(self, sorting: Tensor, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The mixtures of blocks (like x), and which of their places are filled (batch, heads, blocks, place; None: all)."""
        size = x.shape[-2]
        with torch.autocast(x.device.type, enabled=False):
            mixed = rearrange(sorting @ x.flatten(-2).to(sorting.dtype), "b h i (place d) -> b h i place d", place=size)
        if real is None and not self.causal:
            return mixed.to(x.dtype), None
        there = sorting.new_ones(1, x.shape[2], size) if real is None else real.to(sorting.dtype)
        mass = einsum(sorting, there, "b h i j, b j place -> b h i place")
        filled = mass > EMPTY
        return (mixed / mass.masked_fill(~filled, 1)[..., None]).to(x.dtype), filled

    def _visible(self, real: Tensor | None, filled: Tensor | None, size: int, device: torch.device) -> Tensor | None:
        """Bool, broadcastable to (batch, heads, blocks, size, 2 size): own places, then sorted ones; None where all is seen."""
        if filled is None:
            return None
        own = torch.ones(1, 1, 1, 1, size, dtype=torch.bool, device=device) if real is None else real[:, None, :, None]
        if self.causal:
            own = own & torch.ones(size, size, dtype=torch.bool, device=device).tril()
        filled = filled[..., None, :]
        shape = torch.broadcast_shapes(own.shape[:-1], filled.shape[:-1])
        return torch.cat([own.expand(*shape, -1), filled.expand(*shape, -1)], dim=-1)


def _pooled(x: Tensor, real: Tensor | None) -> Tensor:
    """(batch, heads, blocks, d): the mean of each block's real tokens (the others are zero)."""
    if real is None:
        return x.mean(dim=-2)
    return x.sum(dim=-2) / real.sum(dim=-1).clamp_min(1)[:, None, :, None]


def _balanced(logs: Tensor, iterations: int, causal: bool) -> Tensor:
    """exp of logs after rounds of Sinkhorn normalisation, rows last; -inf stays out, a row of nothing else becomes zeros."""
    logs = logs - _log_sum(logs, dim=-1)
    for _ in range(iterations):
        if (
            causal
        ):  # row i knows the rows up to i; entries are at most 1 here, so that no later row can drown an earlier one
            tiny = torch.finfo(logs.dtype).tiny
            logs = logs - logs.exp().cumsum(dim=-2).clamp_min(tiny).log()
        else:
            logs = logs - _log_sum(logs, dim=-2)
        logs = logs - _log_sum(logs, dim=-1)
    return logs.exp()


def _log_sum(logs: Tensor, dim: int) -> Tensor:
    """Log-sum-exp that is finite, with a zero gradient, where there is nothing to sum."""
    top = logs.detach().amax(dim=dim, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0)
    return (logs - top).exp().sum(dim=dim, keepdim=True).clamp_min(torch.finfo(logs.dtype).tiny).log() + top
