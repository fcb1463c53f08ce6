"""A window, a few global tokens, and for every block of queries a few random blocks of keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.kernels import dense_softmax, full_rows, sparse_attention
from attnbench.registry import register

DRAWS = 4096  # query blocks with draws of their own; longer sequences start over


@register(
    "bigbird",
    supports=Supports(
        padding=True,
        time=Growth("n (window + tokens + random block) d", 1.0),
        memory=Growth("n d", 1.0),
        path="2",
        exact_when={"window": "n"},
        small={"window": 4, "tokens": 2, "random": 1, "block": 4},
        notes=(
            "the window is exact per position, and the global tokens the first ones; in the paper both are whole blocks",
            "global tokens share the projections of the others",
            "causal is refused, since a global token carries later tokens to earlier ones",
        ),
    ),
)
class BigBird(Variant):
    """Local, global and random attention under one softmax.

    out_i = softmax over j of (q_i k_j / sqrt(head_dim)) v_j,
    |i - j| < window, or i is global, or j is global, or j lies in a random block of i's block

    The random blocks of a block of queries are distinct, differ from head to head, and lie outside what its window touches
    and outside the blocks that are wholly global. They come from fixed draws that a seed made at construction, mapped to the
    blocks that a sample really has, up to its last real token. Where no more than `random` blocks are left, all are seen.

    Args:
        window: reach of the window, itself included: 2 window - 1 keys.
        tokens: how many of the first positions are global.
        random: random key blocks for each block of queries.
        block: positions of a block.
        seed: of the random draws.

    Source: Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", section 2 and appendix D.
    """

    draws: Tensor

    def __init__(
        self, *, window: int = 96, tokens: int = 64, random: int = 3, block: int = 64, seed: int = 0, **common: Any
    ) -> None:
        super().__init__(**common)
        for option, value, least in (
            ("window", window, 1),
            ("tokens", tokens, 0),
            ("random", random, 0),
            ("block", block, 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(
                    f"{self.name}: {option} must be a whole number of at least {least}, received {value!r}"
                )
        self.window, self.tokens, self.random, self.block = window, tokens, random, block
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("draws", torch.randint(2**40, (self.heads, DRAWS, random), generator=generator))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        n, reach = q.shape[2], self.window - 1
        tokens = min(self.tokens, n)
        ordinary = torch.arange(n, device=q.device)[None] >= tokens
        if tokens and key_mask is not None:
            ordinary = ordinary & key_mask
        out, _ = sparse_attention(
            q,
            k,
            v,
            before=reach,
            after=reach,
            band_mask=ordinary.expand(q.shape[0], n) if tokens else key_mask,
            extra=self._extra(n, tokens, key_mask),
            extra_mask=key_mask,
            rows=self.block,
        )
        if not tokens:
            return out
        rows = full_rows(q[:, :, :tokens], k, v, key_mask)
        if key_mask is not None:  # a masked position is no global token
            rows = torch.where(key_mask[:, None, :tokens, None], rows, out[:, :, :tokens])
        return torch.cat([rows, out[:, :, tokens:]], dim=2)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        n = q.shape[2]
        position = torch.arange(n, device=q.device)
        special = (position < self.tokens)[None]
        if key_mask is not None:
            special = special & key_mask
        blocks = self.random_blocks(n, key_mask)[:, :, position // self.block]
        chosen = (blocks[..., None] == position // self.block).any(dim=-2)
        near = (position[:, None] - position).abs() < self.window
        # What lies in a random block and is a (masked) global token too is still seen, if at all, as a key like any other.
        return dense_softmax(q, k, near | chosen | special[:, None, :, None] | special[:, None, None], key_mask)

    def random_blocks(self, n: int, key_mask: Tensor | None = None) -> Tensor:
        """(batch or 1, heads, blocks of queries, random) key blocks, -1 for none."""
        device = self.draws.device
        total = -(-n // self.block)
        blocks = torch.arange(total, device=device)
        last = torch.full((1,), n, device=device)
        if key_mask is not None:
            last = torch.where(key_mask, torch.arange(1, n + 1, device=device), 0).amax(dim=1)
        filled = -(-last // self.block)[:, None, None]
        reach = -(-(self.window - 1) // self.block)
        low = (blocks - reach).clamp_min(0)
        taken: list[Tensor] = []
        first = torch.full_like(low, self.tokens // self.block)
        # Candidates in order: the blocks after the global ones and before the window, then those after the window.
        before = (low - first).clamp_min(0)
        after_start = torch.maximum(blocks + reach + 1, first)
        after = (filled - after_start).clamp_min(0)
        before = torch.minimum(before, (filled - first).clamp_min(0))
        chosen: list[Tensor] = []
        draws = self.draws[:, blocks % DRAWS]
        for index in range(self.random):
            left = before + after - index
            rank = torch.where(left > 0, draws[None, :, :, index] % left.clamp_min(1), -1)
            for other in taken:  # ranks already drawn, in ascending order
                rank = torch.where((other >= 0) & (rank >= other), rank + 1, rank)
            taken = list(torch.stack([*taken, rank]).sort(dim=0).values)
            inside = torch.where(rank < before, rank + first, rank - before + after_start)
            chosen.append(torch.where(rank < 0, -1, inside))
        if not chosen:
            return blocks.new_empty(1, self.heads, total, 0)
        return torch.stack(chosen, dim=-1)

    def _extra(self, n: int, tokens: int, key_mask: Tensor | None) -> Tensor:
        """(batch or 1, heads, tiles, keys) positions of global tokens and random blocks, -1 for none."""
        blocks = self.random_blocks(n, key_mask)
        inside = torch.arange(self.block, device=blocks.device)
        positions = (blocks[..., None] * self.block + inside).flatten(-2)
        absent = (blocks < 0)[..., None].expand(*blocks.shape, self.block).flatten(-2)
        positions = positions.masked_fill(absent | (positions >= n) | (positions < tokens), -1)
        first = torch.arange(tokens, device=blocks.device).expand(*positions.shape[:-1], tokens)
        return torch.cat([first, positions], dim=-1)
