"""Norms over (batch, n, dim) that all take the key mask, since one of them must know which tokens are real."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnbench.errors import UserError, nearest

__all__ = ["NORMS", "BatchNorm", "LayerNorm", "RMSNorm", "create_norm"]


class LayerNorm(nn.LayerNorm):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias, over the features of each token (Ba et al. 2016)."""

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        return super().forward(x)


class RMSNorm(nn.RMSNorm):
    """y = x / sqrt(mean of squares + eps) * weight, over the features of each token (Zhang & Sennrich 2019)."""

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        return super().forward(x)


class BatchNorm(nn.Module):
    """Each feature normalised over the real tokens of the whole batch; padding never enters the statistics.

    In training the batch's own statistics are used and a running average of them is kept, which is used in eval; a batch
    without a real token changes nothing. Not for causal models: its training statistics see the future.

    Source: Ioffe & Szegedy 2015, with padding left out.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, dim: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        wide = x.float()
        if key_mask is not None:
            wide = wide.masked_fill(~key_mask[..., None], 0)
        mean, var = self._batch_statistics(wide, key_mask) if self.training else (self.running_mean, self.running_var)
        out = (wide - mean) * (var + self.eps).rsqrt() * self.weight + self.bias
        return out.to(x.dtype)

    def _batch_statistics(self, x: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        real = x.new_ones(*x.shape[:2], 1) if key_mask is None else key_mask[..., None].to(x.dtype)
        count = real.sum()
        mean = (x * real).sum(dim=(0, 1)) / count.clamp(min=1)
        var = ((x - mean).square() * real).sum(dim=(0, 1)) / count.clamp(min=1)
        with torch.no_grad():
            unbiased = var * count / (count - 1).clamp(min=1)
            weight = self.momentum * (count > 0)  # a tensor and no branch, so that it compiles
            for running, now in ((self.running_mean, mean), (self.running_var, unbiased)):
                running.lerp_(now.to(running.dtype), weight.to(running.dtype))
        return mean, var


NORMS: dict[str, type[nn.Module]] = {"layer": LayerNorm, "rms": RMSNorm, "batch": BatchNorm}


def create_norm(kind: str, dim: int, *, causal: bool = False) -> nn.Module:
    """A norm by name (layer, rms, batch). Raises ValueError for an unknown one, and for batch norm where causal."""
    if kind not in NORMS:
        raise UserError(f"unknown norm {kind!r}{nearest(kind, NORMS)}; valid: {', '.join(NORMS)}")
    if kind == "batch" and causal:
        raise UserError(
            "batch norm is refused where causal, since its training statistics see the future; use layer or rms"
        )
    return NORMS[kind](dim, eps=1e-5)
