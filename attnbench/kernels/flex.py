"""The band on CUDA: FlexAttention with a block mask, which visits the blocks of the band and no others.

The pieces of this package run on any device; on CUDA FlexAttention is faster where it applies. `applies` gives the reason
where it does not, and `attnbench.kernels.backend` says which of the two a call takes, so that the choice is never silent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from attnbench.kernels.layout import Band

__all__ = ["BLOCK", "applies", "band_attention", "band_blocks", "band_mask"]

BLOCK = 128  # rows and columns of a block: FlexAttention's own default


def applies(device: torch.device, dtype: torch.dtype, head_dim: int, *, listed: bool = False) -> str | None:
    """None where FlexAttention takes such inputs (`listed`: with further keys beside the band), else the reason why not."""
    if device.type != "cuda":
        return f"FlexAttention has no backward pass on {device.type}"
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"FlexAttention takes no {dtype}"
    if head_dim < 16 or head_dim & (head_dim - 1):
        return f"FlexAttention wants a power of two of at least 16 for head_dim, received {head_dim}"
    if listed:
        return "FlexAttention visits blocks, and single keys beside the band would each cost a whole one"
    return None


def band_blocks(band: Band, device: torch.device, *, hidden: bool = False, block: int = BLOCK) -> tuple[Tensor, ...]:
    """(partial counts, partial indices, full counts, full indices) of the key blocks that every block of queries sees.

    Counts are (blocks of queries), indices (blocks of queries, blocks of keys), the seen ones first and in order. A block is
    full where every pair in it is visible; none is where keys may be hidden besides. Nothing here is n_q x n_k.
    """
    first = torch.arange(0, band.n_q, block, device=device)[:, None] + band.shift
    last = (first + block).clamp_max(band.n_q + band.shift) - 1
    key_first = torch.arange(0, band.n_k, block, device=device)
    key_last = (key_first + block).clamp_max(band.n_k) - 1
    seen = (key_last >= first - band.before) & (key_first <= last + band.after)
    whole = (key_last - key_first == block - 1) & (last - first == block - 1)  # the kernel pads the last blocks
    full = whole & (key_first >= last - band.before) & (key_last <= first + band.after) & (not hidden)
    return *_ordered(seen & ~full), *_ordered(full)


def _ordered(chosen: Tensor) -> tuple[Tensor, Tensor]:
    counts = chosen.sum(dim=1, dtype=torch.int32)
    return counts, chosen.to(torch.int8).argsort(dim=1, descending=True, stable=True).to(torch.int32)


def band_mask(band: Band, key_mask: Tensor | None, device: torch.device) -> BlockMask:
    """The band as FlexAttention wants it."""
    counts, indices, full_counts, full = (x[None, None] for x in band_blocks(band, device, hidden=key_mask is not None))
    return BlockMask.from_kv_blocks(
        counts,
        indices,
        full_counts,
        full,
        BLOCK_SIZE=BLOCK,
        mask_mod=_visible(band, key_mask),
        seq_lengths=(band.n_q, band.n_k),
    )


def _visible(band: Band, key_mask: Tensor | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        offset = key - query - band.shift
        near = (offset >= -band.before) & (offset <= band.after)
        return near if key_mask is None else near & key_mask[batch, key]

    return visible


@functools.cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True)  # uncompiled, it would write out all scores


def band_attention(
    q: Tensor, k: Tensor, v: Tensor, band: Band, key_mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """(out, lse) of a band, as `sparse_attention` returns them; inputs as there, on a device that `applies` accepts."""
    mask = band_mask(band, key_mask, q.device)
    out, aux = _compiled()(q, k, v, block_mask=mask, scale=scale, return_aux=AuxRequest(lse=True))
    return out, aux.lse
