"""Layers on top of each other: the body of an encoder or a decoder, from vectors to vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.backbone.attention import hide
from attnbench.backbone.layers import Block, BlockState, Layer, Use, final_norm
from attnbench.contract import COMMON_OPTIONS, Unsupported
from attnbench.errors import UserError
from attnbench.registry import variant_info

__all__ = ["Stack", "refusals"]


class Stack(nn.Module):
    """`depth` equal layers: (batch, n, dim) -> (batch, n, dim), without embedding or head.

    Learned global tokens, where the variant's capabilities name an option for their number, are prepended once, carried
    through all layers, and taken off at the end.

    Args:
        dim, heads, depth: width of a token, heads of an attention, number of layers.
        variant, options: registry name, and the variant's own options.
        max_len: the longest input.
        causal: position t sees positions up to t alone.
        cross_variant, cross_options: where given, each layer also attends to a context with this variant.
        positions: "rotary", or None.
        layer: the other fields of `Layer`; dropout is 0 here unless given.

    Raises:
        Unsupported: a variant does not declare its use here; all reasons are given.
        ValueError: an option is unknown or out of range; batch norm where causal.
    """

    def __init__(
        self,
        dim: int = 512,
        heads: int = 8,
        depth: int = 6,
        *,
        variant: str = "full",
        options: Mapping[str, Any] | None = None,
        max_len: int | None = None,
        causal: bool = False,
        cross_variant: str | None = None,
        cross_options: Mapping[str, Any] | None = None,
        positions: str | None = None,
        **layer: Any,
    ) -> None:
        super().__init__()
        if depth < 1:
            raise UserError(f"depth must be at least 1, received {depth}")
        shape = Layer.of({"dim": dim, "heads": heads, "dropout": 0.0} | layer)
        globals_ = global_tokens(variant, options or {}, max_len)
        own_len = None if max_len is None else max_len + globals_
        use = Use(variant, options or {}, own_len, causal)
        cross = None if cross_variant is None else Use(cross_variant, cross_options or {}, max_len, cross=True)
        reasons = refusals(shape, [use] if cross is None else [use, cross])
        if reasons:
            raise Unsupported(reasons)
        self.causal = causal
        self.global_tokens = nn.Parameter(torch.randn(globals_, dim) * dim**-0.5) if globals_ else None
        self.blocks = nn.ModuleList(Block(shape, use, cross=cross, positions=positions) for _ in range(depth))
        self.norm = final_norm(shape, causal)

    @property
    def decodes(self) -> bool:
        """Whether `prefill` and `step` work here."""
        return all(block.attention.decodes for block in self._blocks)

    @property
    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """x, and the context (batch, n_k, dim) where there is cross-attention; masks are bool with True at real tokens."""
        x, key_mask = self._prepend(hide(x, key_mask), key_mask)
        for block in self.blocks:
            x = block(x, key_mask=key_mask, context=context, context_mask=context_mask)
        return self._finish(x, key_mask)

    def prefill(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> tuple[Tensor, list[BlockState]]:
        """The forward pass over a prompt, and the state from which `step` goes on."""
        x, key_mask = self._prepend(hide(x, key_mask), key_mask)
        states = []
        for block in self._blocks:
            x, state = block.prefill(x, key_mask=key_mask, context=context, context_mask=context_mask)
            states.append(state)
        return self._finish(x, key_mask), states

    def step(self, x: Tensor, states: list[BlockState]) -> tuple[Tensor, list[BlockState]]:
        """The output for one new token x (batch, 1, dim), and the next state."""
        following = []
        for block, state in zip(self._blocks, states, strict=True):
            x, state = block.step(x, state)
            following.append(state)
        return x if self.norm is None else self.norm(x), following

    def _prepend(self, x: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.global_tokens is None:
            return x, key_mask
        count = len(self.global_tokens)
        x = torch.cat([self.global_tokens.to(x.dtype).expand(x.shape[0], -1, -1), x], dim=1)
        if key_mask is not None:
            key_mask = torch.cat([key_mask.new_ones(key_mask.shape[0], count), key_mask], dim=1)
        return x, key_mask

    def _finish(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        if self.norm is not None:
            x = self.norm(x, key_mask)
        return x if self.global_tokens is None else x[:, len(self.global_tokens) :]


def global_tokens(variant: str, options: Mapping[str, Any], max_len: int | None) -> int:
    """How many learned tokens a variant asks the backbone to prepend under these options."""
    for name in options:
        if name in COMMON_OPTIONS:
            raise UserError(f"{variant}: {name} is set by the model, not among a variant's own options")
    info = variant_info(variant, max_len=max_len, **options)
    option = info.supports.global_tokens
    return int(info.options[option] or 0) if option is not None else 0


def refusals(layer: Layer, uses: list[Use]) -> list[str]:
    """Every reason, over all uses, why a variant cannot take its place."""
    reasons = []
    for use in uses:
        common = {"max_len": use.max_len, "causal": use.causal, "dropout": layer.attention_dropout, "cross": use.cross}
        info = variant_info(use.variant, **common, **use.options)
        reasons += info.supports.refusals(
            use.variant,
            causal=use.causal,
            cross=use.cross,
            dropout=layer.attention_dropout > 0,
            max_len=use.max_len,
        )
    return list(dict.fromkeys(reasons))
