"""Decoding caches over padded prompts: distances between positions must come out as they would without the padding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Cache", "extended", "right_aligned"]


class Cache(NamedTuple):
    """Keys and values met so far (batch, heads, n, head_dim), and which of them are real (None: all)."""

    k: Tensor
    v: Tensor
    key_mask: Tensor | None


def right_aligned(k: Tensor, v: Tensor, key_mask: Tensor | None, keep: int | None = None) -> Cache:
    """The last `keep` positions (None: all) up to each sample's last real one, which is moved to the end."""
    n = k.shape[2]
    keep = n if keep is None else min(keep, n)
    if key_mask is None:
        return Cache(k[:, :, n - keep :].clone(), v[:, :, n - keep :].clone(), None)
    index = torch.arange(n, device=k.device)
    last = torch.where(key_mask, index, -1).amax(dim=1, keepdim=True)
    index = index[n - keep :] + last - (n - 1)
    real = (index >= 0) & key_mask.gather(1, index.clamp_min(0))
    rows = index.clamp_min(0)[:, None, :, None]
    k, v = (x.gather(2, rows.expand(-1, x.shape[1], -1, x.shape[3])) for x in (k, v))
    return Cache(k, v, real)


def extended(cache: Cache, k: Tensor, v: Tensor, keep: int | None = None) -> Cache:
    """The cache with one more position, real in every sample, of which the last `keep` stay (None: all)."""
    start = 0 if keep is None else max(0, cache.k.shape[2] + 1 - keep)
    mask = cache.key_mask
    if mask is not None:
        mask = torch.cat([mask[:, start:], mask.new_ones(mask.shape[0], 1)], dim=1)
    return Cache(torch.cat([cache.k[:, :, start:], k], dim=2), torch.cat([cache.v[:, :, start:], v], dim=2), mask)
