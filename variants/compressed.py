"""Memory-compressed attention: a strided convolution shortens keys and values before full attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.errors import UserError
from attnbench.kernels.tokens import whole_blocks
from attnbench.registry import register


def supports(options: Mapping[str, Any]) -> Supports:
    return Supports(
        causal=True,
        cross=not options["causal"],
        padding=True,
        dropout=True,
        linear_in_v=False,
        time=Growth("n^2 d / factor", 2.0),
        memory=Growth("n d", 1.0),
        small={"factor": 3},
        notes=(
            "causal: a block is seen from the next block on, so that the tokens of the first block see nothing and get zeros",
            "linear in v, but channels are mixed, so that there is no one matrix of weights per head",
            "each head is compressed by itself, without a bias",
        ),
    )


@register("compressed", supports=supports)
class Compressed(Variant):
    """Full attention to compressed keys and values.

    out = softmax(q k'^T / sqrt(head_dim)) v',    k'_b = sum_s A_s k_(b factor + s),    v'_b = sum_s B_s v_(b factor + s)

    with learned matrices A_s and B_s (head_dim, head_dim) for each head and s = 0 .. factor - 1: a convolution with kernel and
    stride `factor`. Masked tokens count as zero, and a block without a real token is not attended to. Where causal, a token
    sees the blocks before its own.

    Args:
        factor: number of tokens in a block.

    Source: Liu et al. 2018, "Generating Wikipedia by Summarizing Long Sequences", section 4.2.3.
    """

    def __init__(self, *, factor: int = 3, **common: Any) -> None:
        super().__init__(**common)
        if not isinstance(factor, int) or factor < 1:
            raise UserError(f"compressed: factor must be a whole number of at least 1, received {factor!r}")
        self.factor = factor
        shape, scale = (self.heads, factor * self.head_dim, self.head_dim), (factor * self.head_dim) ** -0.5
        self.compress_keys = nn.Parameter(torch.empty(shape).uniform_(-scale, scale))
        self.compress_values = nn.Parameter(torch.empty(shape).uniform_(-scale, scale))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        keys = self._blocks(k) @ self.compress_keys.to(k.dtype)
        values = self._blocks(v) @ self.compress_values.to(v.dtype)
        real = None if key_mask is None else self._real(key_mask)[:, None, None, :]
        if self.causal:
            return self._causal(q, keys, values, real)
        # Where no block is real, all are seen: their values are zero, and so is the output.
        mask = None if real is None else real | ~real.any(dim=-1, keepdim=True)
        return scaled_dot_product_attention(q, keys, values, attn_mask=mask, dropout_p=self._rate)

    @property
    def _rate(self) -> float:
        return self.dropout if self.training else 0.0

    def _blocks(self, x: Tensor) -> Tensor:
        return rearrange(
            whole_blocks(x, self.factor),
            "batch heads (blocks step) width -> batch heads blocks (step width)",
            step=self.factor,
        )

    def _real(self, key_mask: Tensor) -> Tensor:
        """(batch, blocks): blocks with a real token."""
        return pad(key_mask, (0, -key_mask.shape[1] % self.factor)).unflatten(1, (-1, self.factor)).any(dim=2)

    def _causal(self, q: Tensor, keys: Tensor, values: Tensor, real: Tensor | None) -> Tensor:
        """Queries at one place of their blocks see the blocks as a sequence of its own does, one block late."""
        n, late = q.shape[2], keys.shape[2] - 1
        if late == 0:
            return q * 0
        queries = whole_blocks(q, self.factor)[:, :, self.factor :]
        queries = rearrange(
            queries, "batch heads (blocks step) width -> batch (heads step) blocks width", step=self.factor
        )
        mask = None
        if real is not None:
            past = torch.ones(late, late, dtype=torch.bool, device=q.device).tril()
            mask = past & real[..., :late]
            mask = mask | (past & ~mask.any(dim=-1, keepdim=True))
        out = scaled_dot_product_attention(
            queries,
            keys[:, :, :late],
            values[:, :, :late],
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=self._rate,
            enable_gqa=True,
        )
        out = rearrange(out, "batch (heads step) blocks width -> batch heads (blocks step) width", step=self.factor)
        return pad(out, (0, 0, self.factor, 0))[:, :, :n]

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None, **streams: Tensor
    ) -> Tensor:
        q, k, v, key_mask, _ = self._prepared(q, k, v, key_mask, streams)
        keys, values = self._summed(self.compress_keys, k), self._summed(self.compress_values, v)
        blocks = keys.shape[2]
        visible = torch.ones(q.shape[2], blocks, dtype=torch.bool, device=q.device)
        if self.causal:
            block = torch.arange(blocks, device=q.device)
            visible = block < torch.arange(q.shape[2], device=q.device)[:, None] // self.factor
        if key_mask is not None:
            visible = visible & self._real(key_mask)[:, None, None, :]
        scores = (q @ keys.mT) * self.head_dim**-0.5
        weights = torch.where(visible, (scores - scores.amax(dim=-1, keepdim=True)).exp(), 0)
        total = weights.sum(dim=-1, keepdim=True)
        return weights / torch.where(total == 0, 1, total) @ values

    def _summed(self, matrices: Tensor, x: Tensor) -> Tensor:
        steps = matrices.unflatten(1, (self.factor, self.head_dim))
        tokens = [torch.einsum("bhd,hde->bhe", row, steps[:, t % self.factor]) for t, row in enumerate(x.unbind(2))]
        blocks = [tokens[start : start + self.factor] for start in range(0, len(tokens), self.factor)]
        return torch.stack([torch.stack(block).sum(dim=0) for block in blocks], dim=2)
