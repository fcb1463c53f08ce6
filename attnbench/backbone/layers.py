"""One layer of the Transformer, encoder's and decoder's alike: attention, cross-attention where asked, feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from torch import Tensor, nn

from attnbench.backbone.attention import Decoding, Memory, MultiHeadAttention
from attnbench.backbone.norms import NORMS, create_norm
from attnbench.backbone.projection import Projection
from attnbench.errors import UserError, nearest

__all__ = ["Block", "BlockState", "FeedForward", "Layer", "Use"]

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}
ORDERS = ("post", "pre")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The shape that all layers of a model share. Defaults are those of Vaswani et al. 2017 (base model).

    dim: width of a token. heads, kv_heads (None: heads), head_dim (None: dim / heads): of every attention.
    hidden: width inside the feed-forward (None: 4 dim). activation: relu | gelu.
    norm: layer | rms | batch. order: post | pre, the norm after the residual sum or before the sub-layer.
    dropout: on every sub-layer's output. attention_dropout: on attention weights, where the variant has it.
    bias: of the attention's projections.
    """

    dim: int = 512
    heads: int = 8
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden: int | None = None
    activation: str = "relu"
    norm: str = "layer"
    order: str = "post"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    bias: bool = True

    def __post_init__(self) -> None:
        for name, valid in (("activation", ACTIVATIONS), ("norm", NORMS), ("order", ORDERS)):
            value = getattr(self, name)
            if value not in valid:
                raise UserError(f"unknown {name} {value!r}{nearest(value, valid)}; valid: {', '.join(valid)}")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must lie in [0, 1), received {self.dropout!r}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Layer:
        """A layer from options. Raises ValueError for an unknown one, naming the valid ones."""
        valid = [field.name for field in fields(cls)]
        for option in options:
            if option not in valid:
                raise UserError(
                    f"unknown model option {option!r}{nearest(option, valid)}; valid options of a layer: {', '.join(valid)}"
                )
        return cls(**options)

    def attention(self, use: Use, positions: str | None) -> MultiHeadAttention:
        return MultiHeadAttention(
            self.dim,
            self.heads,
            variant=use.variant,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_len=use.max_len,
            causal=use.causal,
            dropout=self.attention_dropout,
            cross=use.cross,
            bias=self.bias,
            positions=positions,
            **use.options,
        )


class Use(NamedTuple):
    """One place where a variant works: which variant, under which options, and how."""

    variant: str
    options: Mapping[str, Any]
    max_len: int | None = None
    causal: bool = False
    cross: bool = False


class FeedForward(nn.Sequential):
    """y = activation(x W_1 + b_1) W_2 + b_2, each token by itself (Vaswani et al. 2017, equation 2)."""

    def __init__(self, dim: int, hidden: int, activation: str = "relu") -> None:
        widen, narrow = Projection(dim, hidden), Projection(hidden, dim)
        super().__init__(widen, ACTIVATIONS[activation](), narrow)
        for linear in (widen, narrow):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)


class Residual(nn.Module):
    """What stands round a sub-layer f: norm(x + dropout(f(x))) in post order, x + dropout(f(norm(x))) in pre order."""

    def __init__(self, layer: Layer, causal: bool) -> None:
        super().__init__()
        self.pre = layer.order == "pre"
        self.norm = create_norm(layer.norm, layer.dim, causal=causal)
        self.dropout = nn.Dropout(layer.dropout)

    def enter(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        return self.norm(x, key_mask) if self.pre else x

    def leave(self, x: Tensor, out: Tensor, key_mask: Tensor | None = None) -> Tensor:
        x = x + self.dropout(out)
        return x if self.pre else self.norm(x, key_mask)


class BlockState(NamedTuple):
    """The decoding state of one block; the cross-attention's keys and values are projected once."""

    attention: Decoding
    memory: Memory | None


class Block(nn.Module):
    """Self-attention, then cross-attention where `cross` is given, then the feed-forward; each in a residual with a norm.

    (batch, n, dim) -> (batch, n, dim).

    Raises:
        Unsupported: a variant does not declare its use here.
        ValueError: batch norm where causal.
    """

    def __init__(self, layer: Layer, use: Use, *, cross: Use | None = None, positions: str | None = None) -> None:
        super().__init__()
        self.attention = layer.attention(use, positions)
        self.mixing = Residual(layer, use.causal)
        self.cross = None if cross is None else layer.attention(cross, None)
        self.crossing = None if cross is None else Residual(layer, use.causal)
        self.feed_forward = FeedForward(layer.dim, layer.hidden or 4 * layer.dim, layer.activation)
        self.feeding = Residual(layer, use.causal)

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        out = self.attention(self.mixing.enter(x, key_mask), key_mask=key_mask)
        x = self.mixing.leave(x, out, key_mask)
        return self._rest(x, self._remember(context, context_mask), key_mask)

    def prefill(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> tuple[Tensor, BlockState]:
        out, decoding = self.attention.prefill(self.mixing.enter(x, key_mask), key_mask=key_mask)
        x = self.mixing.leave(x, out, key_mask)
        memory = self._remember(context, context_mask)
        return self._rest(x, memory, key_mask), BlockState(decoding, memory)

    def step(self, x: Tensor, state: BlockState) -> tuple[Tensor, BlockState]:
        out, decoding = self.attention.step(self.mixing.enter(x), state.attention)
        x = self.mixing.leave(x, out)
        return self._rest(x, state.memory, None), BlockState(decoding, state.memory)

    def _remember(self, context: Tensor | None, context_mask: Tensor | None) -> Memory | None:
        if self.cross is None:
            return None
        if context is None:
            raise UserError("this block attends to a context (batch, n_k, dim), received None")
        return self.cross.remember(context, context_mask)

    def _rest(self, x: Tensor, memory: Memory | None, key_mask: Tensor | None) -> Tensor:
        if self.cross is not None and self.crossing is not None and memory is not None:
            x = self.crossing.leave(x, self.cross.attend(self.crossing.enter(x, key_mask), memory), key_mask)
        return self.feeding.leave(x, self.feed_forward(self.feeding.enter(x, key_mask)), key_mask)


def final_norm(layer: Layer, causal: bool) -> nn.Module | None:
    """Pre order leaves the last sum without a norm, which then ends the stack."""
    return create_norm(layer.norm, layer.dim, causal=causal) if layer.order == "pre" else None
