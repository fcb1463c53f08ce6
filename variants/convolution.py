"""A convolution along the sequence: what attention replaced, as a baseline. It reads v alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.errors import UserError, nearest
from attnbench.registry import register

KINDS = ("depthwise", "per-head", "full")


def supports(options: Mapping[str, Any]) -> Supports:
    return Supports(
        causal=True,
        padding=True,
        decode=True,
        reads=("v",),
        linear_in_v=options["kind"] == "per-head",
        time=Growth("n kernel d^2" if options["kind"] == "full" else "n kernel d", 1.0),
        memory=Growth("n d", 1.0),
        path="n / (kernel dilation)",
        small={"kernel": 3},
        notes=(
            "depthwise and full weigh each channel differently, so that only per-head has one matrix of weights per head",
        ),
    )


@register("convolution", supports=supports)
class Convolution(Variant):
    """A dilated convolution along the sequence.

    out_t = sum_s w_s v_(t + (s - reach) dilation),    s = 0 .. kernel - 1

    reach is kernel - 1 where causal, and (kernel - 1) // 2 else; what lies outside counts as zero, and so do masked tokens.
    There is no bias.

    Args:
        kernel: number of taps.
        dilation: distance between taps.
        kind: "depthwise" (w_s has a number for each channel), "per-head" (one for each head), or "full" (a matrix
            (heads * head_dim, heads * head_dim)).

    Source: the convolutional layer of Vaswani et al. 2017, table 1; "per-head" is the lightweight convolution of Wu et al.
    2019, "Pay Less Attention", section 3, without its softmax over taps.
    """

    def __init__(self, *, kernel: int = 9, dilation: int = 1, kind: str = "depthwise", **common: Any) -> None:
        super().__init__(**common)
        for option, value in (("kernel", kernel), ("dilation", dilation)):
            if not isinstance(value, int) or value < 1:
                raise UserError(f"convolution: {option} must be a whole number of at least 1, received {value!r}")
        if kind not in KINDS:
            raise UserError(
                f"convolution: kind must be one of {', '.join(KINDS)}, received {kind!r}{nearest(kind, KINDS)}"
            )
        channels = self.heads * self.head_dim
        shape = {"depthwise": (channels, 1), "per-head": (self.heads, 1), "full": (channels, channels)}[kind]
        self.kernel, self.dilation, self.kind = kernel, dilation, kind
        scale = (kernel * shape[1]) ** -0.5
        self.weight = nn.Parameter(torch.empty(*shape, kernel).uniform_(-scale, scale))

    @property
    def span(self) -> int:
        """Positions from the first tap to the last."""
        return (self.kernel - 1) * self.dilation

    @property
    def reach(self) -> int:
        """Positions before its own that an output sees."""
        return self.span if self.causal else (self.kernel - 1) // 2 * self.dilation

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return self._convolve(pad(_channels(v), (self.reach, self.span - self.reach)))

    def _convolve(self, x: Tensor) -> Tensor:
        """(batch, heads, n, width) out of x (batch, channels, n + span)."""
        weight = self.weight.to(x.dtype)
        if self.kind == "per-head":
            weight = weight.repeat_interleave(self.head_dim, dim=0)
        groups = 1 if self.kind == "full" else x.shape[1]
        out = conv1d(x, weight, dilation=self.dilation, groups=groups)
        return rearrange(out, "batch (heads width) n -> batch heads n width", heads=self.heads)

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None, **streams: Tensor
    ) -> Tensor:
        _, _, v, _, _ = self._prepared(q, k, v, key_mask, streams)
        x, n = _channels(v), v.shape[2]
        out = torch.zeros_like(x)
        for tap in range(self.kernel):
            shift = tap * self.dilation - self.reach  # out_t takes x_(t + shift)
            start, stop = max(0, -shift), max(0, min(n, n - shift))
            if start >= stop:
                continue
            seen = x[:, :, start + shift : stop + shift]
            if self.kind == "full":
                out[:, :, start:stop] += self.weight[:, :, tap] @ seen
            else:
                repeats = x.shape[1] // self.weight.shape[0]
                out[:, :, start:stop] += self.weight[:, 0, tap].repeat_interleave(repeats)[:, None] * seen
        return rearrange(out, "batch (heads width) n -> batch heads n width", heads=self.heads)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        n = k.shape[2]
        position = torch.arange(n, device=k.device)
        shift = position - position[:, None] + self.reach
        inside = (shift >= 0) & (shift <= self.span) & (shift % self.dilation == 0)
        weights = (self.weight[:, 0, (shift // self.dilation).clamp(0, self.kernel - 1)] * inside)[None]
        if key_mask is not None:
            weights = weights * key_mask[:, None, None, :]
        return weights.expand(k.shape[0], -1, -1, -1).to(k.dtype)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, **streams: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The state is what the next tap sees: the last tokens, up to each sample's last real one."""
        _, _, v, key_mask, _ = self._prepared(q, k, v, key_mask, streams)
        x = pad(_channels(v), (self.span, 0))
        past = torch.arange(self.span, device=v.device).expand(v.shape[0], -1)
        if key_mask is None:
            past = past + v.shape[2]
        else:
            past = past + (key_mask * torch.arange(1, v.shape[2] + 1, device=v.device)).amax(dim=1, keepdim=True)
        return self._convolve(x), x.gather(2, past[:, None].expand(-1, x.shape[1], -1))

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Tensor]:
        _, _, v, _, _ = self._prepared(q, k, v, None, streams)
        x = torch.cat([state, _channels(v)], dim=2)
        return self._convolve(x), x[:, :, 1:]


def _channels(v: Tensor) -> Tensor:
    return rearrange(v, "batch heads n width -> batch (heads width) n")
