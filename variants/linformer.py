"""Linformer: keys and values are mixed along the length down to a fixed number of slots, then attended to in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from einops import einsum
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Condensed, Variant
from attnbench.errors import UserError, nearest
from attnbench.kernels.slots import mix_into_slots
from attnbench.kernels.tokens import whole_blocks
from attnbench.registry import register

PROJECTIONS = ("learned", "convolution", "pooling")
SHARING = ("none", "heads", "keys-values")


def supports(options: Mapping[str, Any]) -> Supports:
    return Supports(
        cross=True,
        padding=True,
        dropout=True,
        max_len=True,
        condense=options["share"] != "none",
        time=Growth("n rank d", 1.0),
        memory=Growth("n d + rank d", 1.0),
        exact_when={"projection": "pooling", "rank": "n"},
        small={"rank": 8},
        notes=(
            "no causal form: every slot mixes tokens of the whole length, so later tokens would reach earlier outputs",
            "projections are not shared between layers, which a module that knows only its own layer cannot do",
            "in MultiHeadAttention tokens are mixed before they are projected to keys and values, unless share is none: the "
            "same by linearity, and rank tokens to project instead of n",
        ),
    )


@register("linformer", supports=supports)
class Linformer(Variant):
    """Attention to `rank` mixtures of the keys and values.

    out = softmax(q (E k)^T / sqrt(head_dim)) (F v),    E and F: (rank, n)

    Masked tokens are left out of every mixture. "learned": a shorter input uses the first n columns of E and F.
    "convolution" and "pooling": slot s mixes the tokens s * stride .. (s + 1) * stride - 1, with stride = ceil(max_len / rank),
    by one learned filter or as the mean of its real tokens; a slot without a real token is not attended to.

    Args:
        rank: number of slots.
        projection: how a slot mixes tokens: "learned", "convolution" or "pooling".
        share: which mixtures are one: "none", "heads" (one E and one F for all heads), "keys-values" (also E = F).

    Source: Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", equation 7 and section 4 (sharing,
    general projections).
    """

    def __init__(self, *, rank: int = 256, projection: str = "learned", share: str = "heads", **common: Any) -> None:
        super().__init__(**common)
        if not isinstance(rank, int) or rank < 1:
            raise UserError(f"linformer: rank must be a whole number of at least 1, received {rank!r}")
        for option, value, valid in (("projection", projection, PROJECTIONS), ("share", share, SHARING)):
            if value not in valid:
                raise UserError(
                    f"linformer: {option} must be one of {', '.join(valid)}, received {value!r}{nearest(value, valid)}"
                )
        assert self.max_len is not None  # declared as needed, so the base class has refused its absence
        self.rank, self.projection, self.stride = rank, projection, -(-self.max_len // rank)
        if projection == "pooling":
            self.mix_keys = self.mix_values = None
            return
        groups = self.heads if share == "none" else 1
        shape = (groups, rank, self.max_len) if projection == "learned" else (groups, self.stride)
        # The variance that keeps a mixture's norm: 1 / rank by Johnson-Lindenstrauss, 1 / stride for a filter.
        scale = (rank if projection == "learned" else self.stride) ** -0.5
        self.mix_keys = nn.Parameter(torch.randn(shape) * scale)
        self.mix_values = self.mix_keys if share == "keys-values" else nn.Parameter(torch.randn(shape) * scale)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        k, v = self._mixed(self.mix_keys, k, key_mask), self._mixed(self.mix_values, v, key_mask)
        return self.mix_slots(q, k, v, key_mask)

    def mix_length(self, tokens: Tensor, key_mask: Tensor | None) -> tuple[Condensed, Condensed]:
        matrices = (self.mix_keys,) if self.mix_values is self.mix_keys else (self.mix_keys, self.mix_values)
        if self.projection == "learned":
            learned = (self._columns(x, tokens).squeeze(0) for x in matrices if x is not None)
            found = [
                Condensed(mixed[:, None], share[:, None, :, None])
                for mixed, share in zip(*mix_into_slots(tokens.squeeze(1), key_mask, *learned), strict=True)
            ]
        else:
            real = (
                tokens.new_ones(1, 1, tokens.shape[2], 1) if key_mask is None else key_mask[:, None, :, None].to(tokens)
            )
            found = [Condensed(*(self._mixed(each, x, key_mask) for x in (tokens, real))) for each in matrices]
        return found[0], found[-1]

    def mix_slots(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        mask = None
        if self.projection != "learned" and key_mask is not None:
            real = self._counts(key_mask.shape[1], key_mask, k.device) > 0
            # Where no slot is real, all are seen: their values are zero, and so is the output.
            mask = (real | ~real.any(dim=1, keepdim=True))[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)

    def _mixed(self, weights: Tensor | None, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """The slots of x (batch, heads or 1, n, width), zero at masked tokens."""
        if self.projection == "learned":
            assert weights is not None
            weights = self._columns(weights, x)
            if weights.shape[0] == 1:  # one product for all heads, and one gradient
                return einsum(weights.squeeze(0), x, "rank n, batch heads n width -> batch heads rank width")
            return weights @ x
        blocks = whole_blocks(x, self.stride).unflatten(2, (-1, self.stride))
        if weights is None:
            counts = self._counts(x.shape[2], key_mask, x.device).clamp(min=1)
            return blocks.mean(dim=3) * (self.stride / counts).to(x.dtype)[:, None, :, None]
        filters = weights.to(x.dtype).expand(max(x.shape[1], len(weights)), self.stride)
        return einsum(filters, blocks, "heads stride, batch heads slots stride width -> batch heads slots width")

    @staticmethod
    def _columns(weights: Tensor, x: Tensor) -> Tensor:
        """Learned weights (groups, rank, n) for x (..., n, width)."""
        if x.shape[-2] < weights.shape[2]:  # else the gradient would be copied into zeros for nothing
            weights = weights[:, :, : x.shape[-2]]
        return weights.to(x.dtype)

    def _counts(self, n: int, key_mask: Tensor | None, device: torch.device) -> Tensor:
        """(batch or 1, slots): real tokens in each slot."""
        real = torch.ones(1, n, dtype=torch.bool, device=device) if key_mask is None else key_mask
        return pad(real, (0, -n % self.stride)).unflatten(1, (-1, self.stride)).sum(dim=2)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        real = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device) if key_mask is None else key_mask
        wide = torch.promote_types(q.dtype, torch.float32)
        mix_keys, mix_values = (self._matrix(weights, real).to(wide) for weights in (self.mix_keys, self.mix_values))
        scores = q.to(wide) @ (mix_keys @ k.to(wide)).transpose(-1, -2) * self.head_dim**-0.5
        if self.projection != "learned":
            slots = self._counts(k.shape[2], key_mask, k.device) > 0
            scores = scores.masked_fill(~(slots | ~slots.any(dim=1, keepdim=True))[:, None, None, :], -torch.inf)
        return (scores.softmax(dim=-1) @ mix_values).to(q.dtype)

    def _matrix(self, weights: Tensor | None, real: Tensor) -> Tensor:
        """E or F in full, (batch or 1, heads or 1, slots, n), with zeros at masked tokens."""
        position = torch.arange(real.shape[1], device=real.device)
        real = real[:, None, None, :]
        if self.projection == "learned":
            assert weights is not None
            return weights[None, :, :, : len(position)] * real
        slot = torch.arange(-(-len(position) // self.stride), device=real.device)
        member = (position // self.stride == slot[:, None]) & real
        if weights is None:
            return member / member.sum(dim=-1, keepdim=True).clamp(min=1)
        return member * weights[None, :, None, position % self.stride]
