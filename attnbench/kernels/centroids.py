"""Centroids on the unit sphere: whose they are, and how they follow the tokens by moving average, outside the gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import normalize

__all__ = ["Members", "closest", "follow", "nearest", "random_centroids"]

PIECE = 2**18  # similarities of tokens that look for their centroid, held at once
ROUTED = 2**20  # of centroids that look for their tokens: products of a few of them with all tokens are slow

Members = tuple[Tensor, Tensor, Tensor | None]
"""x (batch, heads, n, width), the centroid that each token chose (batch, heads, n), which are real (batch, n; None: all)."""


def random_centroids(heads: int, clusters: int, width: int) -> Tensor:
    """(heads, clusters, width): directions drawn evenly from the unit sphere, from torch's global generator."""
    return normalize(torch.randn(heads, clusters, width), dim=-1)


@torch.no_grad()
def nearest(x: Tensor, centroids: Tensor) -> Tensor:
    """The centroid of largest cosine for each token of x (batch, heads, n, width): an index (batch, heads, n)."""
    batch, heads = x.shape[:2]
    rows = max(1, min(PIECE, x.numel()) // (batch * heads * centroids.shape[1]))
    with torch.autocast(x.device.type, enabled=False):
        transposed = centroids.to(_precise(x)).mT
        return torch.cat([(piece.to(_precise(x)) @ transposed).argmax(dim=-1) for piece in x.split(rows, dim=2)], dim=2)


@torch.no_grad()
def closest(
    x: Tensor, centroids: Tensor, count: int, real: Tensor | None, choices: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The `count` tokens of x (batch, heads, n, width) of largest cosine for each centroid.

    Positions (batch, heads, clusters, count). Where some are not `real` (batch, n; None: all
    are), the nearest come first and those last. With `choices` also, from the same cosines, the `nearest` of each token.
    """
    some = max(1, min(ROUTED, x.numel()) // (x.shape[0] * x.shape[2]))  # centroids, of one head or of several
    with torch.autocast(x.device.type, enabled=False):
        x, centroids = x.to(_precise(x)), centroids.to(_precise(x))
        lengths = torch.linalg.vector_norm(x.transpose(1, 2), dim=-1).clamp_min(torch.finfo(x.dtype).tiny).mT
        together = max(1, some // centroids.shape[1])
        few = zip(x.split(together, 1), lengths.split(together, 1), centroids.split(together), strict=True)
        found = [_taken(*each, count, real, some, choices) for each in few]
    taken, chosen = zip(*found, strict=True)
    return torch.cat(taken, dim=1), torch.cat(chosen, dim=1) if choices else None


def _taken(
    x: Tensor, lengths: Tensor, centroids: Tensor, count: int, real: Tensor | None, some: int, choices: bool
) -> tuple[Tensor, Tensor | None]:
    """What `closest` returns, for heads whose `some` centroids at a time are looked at together."""
    taken, best = [], None
    for number, piece in enumerate(centroids.split(some, dim=1)):
        cosines = (piece @ x.mT).div_(lengths[:, :, None])
        if choices:
            best = _better(best, cosines, number * some)
        if real is not None:
            cosines = cosines.masked_fill_(~real[:, None, None], -torch.inf)
        taken.append(cosines.topk(count, dim=-1, sorted=real is not None).indices)
    return torch.cat(taken, dim=2), best[1] if best else None


def _better(best: tuple[Tensor, Tensor] | None, cosines: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """The largest cosine of each token and its centroid, of those before `start` and those that `cosines` begin there with."""
    value, centroid = cosines.max(dim=2)
    centroid += start
    if best is None:
        return value, centroid
    return torch.maximum(best[0], value), torch.where(value > best[0], centroid, best[1])


def follow(centroids: Tensor, out: Tensor, members: Sequence[Members], decay: float) -> None:
    """Moves centroids (heads, clusters, width) in place towards the tokens that chose them.

    centroid = unit(decay centroid + (1 - decay) mean of the unit tokens that chose it); one that none chose stays.

    Where `out`, which was computed from the centroids as they are, awaits a gradient, they move when the backward pass is
    over, and thus once: a forward pass that checkpointing repeats finds them where the first one did. Where there is
    nothing to differentiate they move at once, and without grad mode (an inspection, or the first pass of reentrant
    checkpointing) not at all. Under torch.distributed the sums run over all ranks, so that ranks which begin equal stay equal.
    """
    if not torch.is_grad_enabled():
        return
    sums = _sums(centroids, members)
    if torch.compiler.is_compiling() or not out.requires_grad:
        _move(centroids, sums, decay)
        return
    pending = [sums]  # spent once, though a retained graph may be walked again

    def move() -> None:
        if pending:
            _move(centroids, pending.pop(), decay)

    # Only at the very end has everything that recomputation repeats seen the centroids of its own forward pass.
    engine = torch.autograd.Variable._execution_engine
    out.register_hook(lambda _: engine.queue_callback(move))


def _precise(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


@torch.no_grad()
def _sums(centroids: Tensor, members: Sequence[Members]) -> Tensor:
    """(heads, clusters, width + 1): per centroid the sum of the unit tokens that chose it, and their number."""
    heads, clusters, width = centroids.shape
    sums = centroids.new_zeros(heads * clusters, width, dtype=_precise(centroids))
    counts = sums.new_zeros(heads * clusters)
    head = clusters * torch.arange(heads, device=centroids.device)[:, None]
    for x, chosen, real in members:
        by_token = x.transpose(1, 2)  # batch, n, heads, width: the order of memory
        unit, once = normalize(by_token.to(sums.dtype), dim=-1), sums.new_ones(by_token.shape[:3])
        if real is not None:  # content that is no token may be anything, NaN too
            unit, once = unit.masked_fill(~real[..., None, None], 0), once.masked_fill(~real[..., None], 0)
        index = (chosen + head).transpose(1, 2).flatten()
        sums.index_add_(0, index, unit.flatten(0, 2))
        counts.index_add_(0, index, once.flatten())
    return torch.cat([sums, counts[:, None]], dim=-1).view(heads, clusters, width + 1)


@torch.no_grad()
def _move(centroids: Tensor, sums: Tensor, decay: float) -> None:
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(sums)
    total, count = sums[..., :-1], sums[..., -1:]
    moved = normalize(decay * centroids + (1 - decay) * total / count.clamp_min(1), dim=-1)
    centroids.copy_(torch.where(count > 0, moved, centroids))
