"""A recurrent network along the sequence: what attention replaced, as a baseline. It reads v alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.errors import UserError, nearest
from attnbench.registry import register

CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}


def supports(options: Mapping[str, Any]) -> Supports:
    return Supports(
        causal=True,
        padding=True,
        decode=True,
        reads=("v",),
        linear_in_v=False,
        time=Growth("n d^2", 1.0),
        memory=Growth("n d", 1.0),
        sequential="n",
        path="n",
        compiles=False,
        notes=("torch.compile(fullgraph=True) refuses recurrent modules by default",),
    )


@register("recurrent", supports=supports)
class Recurrent(Variant):
    """One recurrent layer over all heads together.

    h_t = cell(v_t, h_(t-1)),    out_t = h_t

    v_t and h_t are vectors of width heads * head_dim. Where not causal, a second cell runs from the end, and each of the two
    gives half of the width. The state passes over masked tokens as if they were not there, and their outputs are zero.

    Args:
        cell: "gru" (Cho et al. 2014) or "lstm" (Hochreiter & Schmidhuber 1997).

    Raises:
        ValueError: not causal, and heads * head_dim is odd.

    Source: the recurrent layer of Vaswani et al. 2017, table 1.
    """

    def __init__(self, *, cell: str = "gru", **common: Any) -> None:
        super().__init__(**common)
        if cell not in CELLS:
            raise UserError(f"recurrent: cell must be gru or lstm, received {cell!r}{nearest(cell, CELLS)}")
        width = self.heads * self.head_dim
        if not self.causal and width % 2:
            raise UserError(f"recurrent: heads * head_dim must be even where not causal, received {width}")
        directions = 1 if self.causal else 2
        self.cell = cell
        self.rnn = CELLS[cell](width, width // directions, batch_first=True, bidirectional=not self.causal)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return self._run(v, key_mask)[0]

    def _run(self, v: Tensor, key_mask: Tensor | None, state: Any = None) -> tuple[Tensor, Any]:
        tokens = rearrange(v, "batch heads n width -> batch n (heads width)")
        # In the parameters' type: a state that passes through thousands of steps is no place for autocast.
        with torch.autocast(v.device.type, enabled=False):
            tokens = tokens.to(self.rnn.weight_hh_l0.dtype)
            out, state = self.rnn(tokens, state) if key_mask is None else self._packed(tokens, key_mask)
        return rearrange(out, "batch n (heads width) -> batch heads n width", heads=self.heads).to(v.dtype), state

    def _packed(self, tokens: Tensor, key_mask: Tensor) -> tuple[Tensor, Any]:
        """Runs over the real tokens alone, moved to the front; and puts the outputs back in their places."""
        lengths, n = key_mask.sum(dim=1), key_mask.shape[1]
        order = (~key_mask).to(torch.uint8).argsort(dim=1, stable=True)[..., None]
        front = tokens.gather(1, order.expand_as(tokens))
        # A sample without real tokens runs over a token of zeros, and is put to zero below.
        packed = pack_padded_sequence(front, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        packed_out, state = self.rnn(packed)
        out, _ = pad_packed_sequence(packed_out, batch_first=True, total_length=n)
        out = out.new_zeros(out.shape).scatter(1, order.expand_as(out), out)
        some = (lengths > 0)[None, :, None]
        state = tuple(part * some for part in state) if self.cell == "lstm" else state * some
        return out.masked_fill(~key_mask[..., None], 0), state

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None, **streams: Tensor
    ) -> Tensor:
        _, _, v, key_mask, _ = self._prepared(q, k, v, key_mask, streams)
        tokens = rearrange(v, "batch heads n width -> n batch (heads width)")
        n, batch, _ = tokens.shape
        real = tokens.new_ones(batch, n) if key_mask is None else key_mask.to(tokens)
        outs = []
        for suffix, steps in (("", range(n)), ("_reverse", range(n - 1, -1, -1)))[: 1 if self.causal else 2]:
            w_in, w_state, b_in, b_state = (
                getattr(self.rnn, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            h = c = tokens.new_zeros(batch, w_state.shape[1])
            rows: list[Tensor] = [h] * n
            for t in steps:
                new_h, new_c = CELL[self.cell](tokens[t] @ w_in.T + b_in, h @ w_state.T + b_state, h, c)
                seen = real[:, t, None]
                h, c = new_h * seen + h * (1 - seen), new_c * seen + c * (1 - seen)
                rows[t] = new_h * seen
            outs.append(torch.stack(rows, dim=1))
        return rearrange(torch.cat(outs, dim=-1), "batch n (heads width) -> batch heads n width", heads=self.heads)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, **streams: Tensor
    ) -> tuple[Tensor, Any]:
        _, _, v, key_mask, _ = self._prepared(q, k, v, key_mask, streams)
        return self._run(v, key_mask)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Any]:
        _, _, v, _, _ = self._prepared(q, k, v, None, streams)
        return self._run(v, None, state)


def gru(x: Tensor, s: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The gated recurrent unit, given W x + b and U h + b' in torch's order of gates (reset, update, new)."""
    (x_reset, x_update, x_new), (s_reset, s_update, s_new) = x.chunk(3, dim=-1), s.chunk(3, dim=-1)
    new = (x_new + (x_reset + s_reset).sigmoid() * s_new).tanh()
    update = (x_update + s_update).sigmoid()
    return (1 - update) * new + update * h, c


def lstm(x: Tensor, s: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The long short-term memory, given W x + b and U h + b' in torch's order of gates (in, forget, cell, out)."""
    enter, forget, new, leave = (x + s).chunk(4, dim=-1)
    c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * c.tanh(), c


CELL = {"gru": gru, "lstm": lstm}
