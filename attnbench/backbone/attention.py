"""Multi-head attention around any variant: projections in, the variant's mixing, a projection out."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from attnbench.backbone.positions import rotate
from attnbench.backbone.projection import Projection
from attnbench.contract import Condensed, Unsupported
from attnbench.errors import UserError
from attnbench.registry import create_variant

__all__ = ["Decoding", "Memory", "MultiHeadAttention"]


class Memory(NamedTuple):
    """What queries look at: projected keys (None where the variant reads none) and values, and which tokens are real.

    condensed: keys and values are those of slots, to which the variant has condensed the tokens before they were projected.
    """

    k: Any
    v: Tensor
    key_mask: Tensor | None
    condensed: bool = False


class _Rows(NamedTuple):
    """Tokens as rows (batch * n, dim). The gradients of all their projections meet in the memory of the first of them; with
    tokens (batch, n, dim) autograd would take more for their sum."""

    rows: Tensor
    sizes: tuple[int, int]

    @classmethod
    def of(cls, x: Tensor) -> _Rows:
        return cls(x.flatten(0, 1), (x.shape[0], x.shape[1]))

    def tokens(self) -> Tensor:
        return self.rows.unflatten(0, self.sizes)


class Decoding(NamedTuple):
    """The state between two steps of decoding: the variant's own, and how many positions went by."""

    state: Any
    position: int


class MultiHeadAttention(nn.Module):
    """out = mix(x W_q, c W_k, c W_v) W_o, mixed by a registered variant; c is x, or a context in cross-attention.

    (batch, n, dim) -> (batch, n, dim). Only what the variant reads is projected; each further stream that it declares is
    projected from x as the queries are.

    Args:
        dim: width of a token.
        heads, kv_heads: number of query heads, and of key/value heads (None: `heads`).
        head_dim: width of a head (None: dim / heads).
        variant, options: registry name, and the variant's own options as keywords.
        max_len, causal, dropout, cross: as for the variant.
        bias: whether the projections have one.
        positions: "rotary" turns queries and keys by their position, in self-attention with a variant that reads both;
            else None.

    Raises:
        Unsupported: the variant does not declare what is asked.
        ValueError: the variant or an option is unknown, or a width does not fit.

    Source: Vaswani et al. 2017, section 3.2.2; grouped heads: Ainslie et al. 2023.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        variant: str = "full",
        kv_heads: int | None = None,
        head_dim: int | None = None,
        max_len: int | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        cross: bool = False,
        bias: bool = True,
        positions: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if head_dim is None and dim % heads:
            raise UserError(f"dim must be a multiple of heads where head_dim is not given, received {dim} and {heads}")
        head_dim = head_dim or dim // heads
        if positions not in (None, "none", "rotary"):
            raise UserError(f"positions in attention must be None or 'rotary', received {positions!r}")
        if positions == "rotary" and head_dim % 2:
            raise UserError(f"rotary positions need an even head_dim, received {head_dim}")
        self.dim, self.heads, self.head_dim, self.cross = dim, heads, head_dim, cross
        self.kv_heads = kv_heads or heads
        common = {"kv_heads": self.kv_heads, "max_len": max_len, "causal": causal, "dropout": dropout, "cross": cross}
        self.mixer = create_variant(variant, heads=heads, head_dim=head_dim, **common, **options)
        supports = self.mixer.supports
        self.rotary = positions == "rotary" and not cross and {"q", "k"} <= set(supports.reads)

        def projection(width: int) -> Projection:
            return Projection(dim, width, bias=bias)

        self.query = projection(heads * head_dim) if "q" in supports.reads else None
        self.key = projection(self.kv_heads * head_dim) if "k" in supports.reads else None
        self.value = projection(self.kv_heads * head_dim)
        self.streams = nn.ModuleDict(
            {stream.name: projection(heads * (stream.width or head_dim)) for stream in supports.streams}
        )
        self.out = Projection(heads * head_dim, dim, bias=bias)
        # Mixing along the length first leaves fewer tokens to project, and costs no more where tokens are not wider than keys.
        self.condenses = supports.condense and not self.rotary and dim <= self.kv_heads * head_dim
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform projections and zero biases; the variant's own parameters are its own affair."""
        for linear in (self.query, self.key, self.value, *self.streams.values(), self.out):
            if isinstance(linear, nn.Linear):
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, context: Tensor | None = None, *, key_mask: Tensor | None = None) -> Tensor:
        """Mixes the tokens of x (batch, n, dim), or those of the context (batch, n_k, dim) into it where `cross`.

        key_mask (batch, n_k), bool, True = a real token of what is attended to. What stands elsewhere never reaches a real
        output or a gradient, not even as NaN.
        """
        if self.cross:
            if context is None:
                raise UserError("cross-attention needs a context (batch, n_k, dim), received None")
            return self.attend(x, self.remember(context, key_mask))
        if context is not None:
            raise UserError("self-attention takes no context; build it with cross=True")
        rows = _Rows.of(hide(x, key_mask))
        return self._mix(rows, self._memory(rows, key_mask, 0))

    def remember(self, context: Tensor, key_mask: Tensor | None = None, offset: int = 0) -> Memory:
        """Keys and values of a context, which several calls of `attend` may share."""
        return self._memory(_Rows.of(hide(context, key_mask)), key_mask, offset)

    def attend(self, x: Tensor, memory: Memory) -> Tensor:
        """Cross-attention of x (batch, n_q, dim) to what was remembered."""
        return self._mix(_Rows.of(x), memory)

    def prefill(self, x: Tensor, *, key_mask: Tensor | None = None) -> tuple[Tensor, Decoding]:
        """The forward pass over a prompt, and the state from which `step` goes on. Raises Unsupported where it cannot."""
        if not self.decodes:
            raise Unsupported([f"{self.mixer.name} does not decode token by token"])
        rows = _Rows.of(hide(x, key_mask))
        q, streams = self._queries(rows, 0)
        memory = self._memory(rows, key_mask, 0)
        out, state = self.mixer.prefill(q, memory.k, memory.v, key_mask, **streams)
        return self._joined(out), Decoding(state, x.shape[1])

    def step(self, x: Tensor, decoding: Decoding) -> tuple[Tensor, Decoding]:
        """The output for one new token x (batch, 1, dim), and the next state."""
        rows = _Rows.of(x)
        q, streams = self._queries(rows, decoding.position)
        memory = self._memory(rows, None, decoding.position)
        out, state = self.mixer.step(q, memory.k, memory.v, decoding.state, **streams)
        return self._joined(out), Decoding(state, decoding.position + 1)

    @property
    def decodes(self) -> bool:
        """Whether `prefill` and `step` work here."""
        return self.mixer.causal and self.mixer.supports.decode

    def _mix(self, x: _Rows, memory: Memory) -> Tensor:
        q, streams = self._queries(x, 0)
        options = {"condensed": True} if memory.condensed else {}
        mixed = self.mixer(q, memory.k, memory.v, key_mask=memory.key_mask, **options, **streams)
        del q, memory, streams  # without gradients their memory is free for what comes out
        return self._joined(mixed)

    def _memory(self, x: _Rows, key_mask: Tensor | None, offset: int) -> Memory:
        if self.condenses:
            keys, values = self.mixer.condense(x.tokens()[:, None], key_mask=key_mask)
            k = None if self.key is None else self._of_slots(self.key, keys)
            return Memory(k, self._of_slots(self.value, values), key_mask, condensed=True)
        k = None if self.key is None else self._heads(self.key, x, self.kv_heads)
        if k is not None and self.rotary:
            k = rotate(k, offset)
        return Memory(k, self._heads(self.value, x, self.kv_heads), key_mask)

    def _queries(self, x: _Rows, offset: int) -> tuple[Any, dict[str, Tensor]]:
        q = None if self.query is None else self._heads(self.query, x, self.heads)
        if q is not None and self.rotary:
            q = rotate(q, offset)
        return q, {name: self._heads(project, x, self.heads) for name, project in self.streams.items()}

    def _of_slots(self, projection: nn.Linear, mixed: Condensed) -> Tensor:
        """What the variant would make of the projected tokens, from the tokens that it has mixed."""
        slots = _Rows.of(mixed.tokens.squeeze(1))
        out = self._heads(projection, slots, self.kv_heads)
        if projection.bias is None:
            return out
        bias = rearrange(projection.bias, "(heads width) -> heads 1 width", heads=self.kv_heads)
        return out + ((mixed.share - 1) * bias).to(out.dtype)  # which each token would have brought along

    @staticmethod
    def _heads(projection: nn.Module, x: _Rows, heads: int) -> Tensor:
        """(batch, heads, n, width): what a projection makes of tokens."""
        tokens = projection(x.rows).unflatten(0, x.sizes)
        return rearrange(tokens, "batch n (heads width) -> batch heads n width", heads=heads)

    def _joined(self, mixed: Tensor) -> Tensor:
        """(batch, n, dim): the outgoing projection of what was mixed."""
        return self.out(rearrange(mixed, "batch heads n width -> batch n (heads width)"))

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, *, variant: str = "full", **options: Any) -> MultiHeadAttention:
        """A torch attention's weights, copied, around a variant: nothing is shared, and the original is left as it was.

        It takes (batch, n, dim) whatever the original's `batch_first`. `options` may hold any argument of this class;
        dropout defaults to the original's. With variant="full" the outputs are equal.

        Raises:
            UserError: the original has key or value widths of its own, or adds key/value rows, which have no place here.
        """
        extras = {
            "kdim or vdim": module.in_proj_weight is None,
            "add_bias_kv": module.bias_k is not None,
            "add_zero_attn": module.add_zero_attn,
        }
        refused = [name for name, present in extras.items() if present]
        if refused:
            raise UserError(f"cannot take over a torch attention with {', '.join(refused)}; valid: one without")
        options = {"dropout": module.dropout, "bias": module.in_proj_bias is not None} | options
        made = cls(module.embed_dim, module.num_heads, variant=variant, **options)
        made.to(module.out_proj.weight.device, module.out_proj.weight.dtype)
        with torch.no_grad():
            made._copy(module)
        return made.train(module.training)

    def _copy(self, module: nn.MultiheadAttention) -> None:
        biases = None if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
        for place, linear in enumerate((self.query, self.key, self.value)):
            if linear is None:
                continue
            weight = module.in_proj_weight.chunk(3)[place]
            if linear.weight.shape != weight.shape:
                raise UserError(
                    f"weights of shape {tuple(weight.shape)} do not fit a projection of shape {tuple(linear.weight.shape)}; "
                    "kv_heads and head_dim must be the original's"
                )
            linear.weight.copy_(weight)
            if biases is not None and linear.bias is not None:
                linear.bias.copy_(biases[place])
        self.out.load_state_dict(copy.deepcopy(module.out_proj.state_dict()))


def hide(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """x (batch, n, dim) with zeros where the mask is False: a NaN there would poison the projections' gradients."""
    if key_mask is None:
        return x
    if key_mask.dtype != torch.bool or key_mask.shape != x.shape[:2]:
        raise UserError(
            f"key_mask must be a bool tensor (batch, n) = {tuple(x.shape[:2])} with True at real tokens, "
            f"received {key_mask.dtype} {tuple(key_mask.shape)}"
        )
    return x.masked_fill(~key_mask[..., None], 0)
