"""Hashed attention: a token attends to those that hash near it, found by sorting hashes and cutting the order into chunks."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.kernels.gathered import gathered_attention
from attnbench.registry import register

FACTORS, COLUMNS = 4, 4  # of a hash, and of the rotation behind each factor: 8^4 hashes


@register(
    "lsh",
    supports=Supports(
        padding=True,
        reads=("q", "v"),
        time=Growth("hashes n bucket d + n log n", 1.0),
        memory=Growth("n d + hashes n", 1.0),
        path="log n",
        small={"bucket": 4, "hashes": 2},
        notes=(
            "queries are the keys, as in the paper: reads q and v, keys are q / |q|, and no key projection is made",
            "no causal form: where the chunks of the sorted order are cut depends on later tokens, so masking them leaks",
            "a hash is four rotations to 8 directions each, at any length, where the paper takes one to n / bucket: hashing "
            "costs n, not n^2, and chunks keep their size, since the sorted order is what is cut",
            "a key found in several rounds counts as often; chunk 0 has no chunk before it, where code often wraps round",
        ),
    ),
)
class LSH(Variant):
    """Attention among tokens that share a hash, in several rounds.

    Round r sorts the tokens by (hash_r(q), position) and cuts the order into chunks of `bucket`. A token sees its own chunk and
    the one before, itself excepted: its product with itself would always win. One softmax runs over what all rounds found
    (which is their outputs combined by log-sum-exp). A token that no round shows another sees itself.

        scores = q (q / |q|)^T / sqrt(head_dim)
        hash(q) = (argmax [q R_1; -q R_1], ..., argmax [q R_4; -q R_4])

    Args:
        bucket: tokens in a chunk.
        hashes: rounds.

    Source: Kitaev et al. 2020, "Reformer: The Efficient Transformer", section 2.
    """

    rotations: Tensor

    def __init__(self, *, bucket: int = 64, hashes: int = 4, **common: Any) -> None:
        super().__init__(**common)
        for option, value in (("bucket", bucket), ("hashes", hashes)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{self.name}: {option} must be a whole number of at least 1, received {value!r}")
        self.bucket, self.hashes = bucket, hashes
        self.register_buffer("rotations", torch.randn(hashes, FACTORS, self.head_dim, COLUMNS))

    def mix(self, q: Tensor, k: None, v: Tensor, key_mask: Tensor | None) -> Tensor:
        order = self.order(q, key_mask)
        tiles = self.chunks(q, key_mask)
        out, lse = gathered_attention(q, _keys(q), v, order, order, tiles, exclude_self=True)
        if key_mask is None and min(q.shape[2], self.bucket) > 1:  # nobody is alone
            return out
        return torch.where(lse[..., None] == -torch.inf, v, out)

    @torch.no_grad()
    def order(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        """(batch, heads, hashes * n): the positions in sorted order, one round after the other, masked ones last."""
        precise = torch.promote_types(q.dtype, torch.float32)
        rotations = rearrange(self.rotations.to(precise), "hash factor d column -> (column hash factor) d")
        with torch.autocast(q.device.type, enabled=False):
            rotated = rotations @ q.to(precise).mT  # tokens last: all that follows runs along them
        rotated = rearrange(
            rotated, "b h (column hash factor) n -> column b h hash factor n", column=COLUMNS, factor=FACTORS
        )
        hashed = _farthest(rotated).long()
        hashed = sum(hashed[..., factor, :] * (2 * COLUMNS) ** (FACTORS - 1 - factor) for factor in range(FACTORS))
        if key_mask is not None:
            hashed = hashed.masked_fill(~key_mask[:, None, None], (2 * COLUMNS) ** FACTORS)
        return hashed.sort(dim=-1, stable=True).indices.flatten(2)

    def chunks(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        """(hashes, batch, heads, chunks, 4): each chunk's queries, and its keys, as runs of the sorted order."""
        batch, heads, n, _ = q.shape
        count = torch.full((batch,), n, device=q.device) if key_mask is None else key_mask.sum(dim=-1)
        start = torch.arange(0, n, self.bucket, device=q.device)
        stop = torch.minimum(start + self.bucket, count[:, None])
        start = start.expand_as(stop)
        bounds = torch.stack([start, stop, (start - self.bucket).clamp_min(0), stop], dim=-1)
        bounds = bounds.masked_fill((start >= stop)[..., None], 0)
        rounds = n * torch.arange(self.hashes, device=q.device)
        return (bounds[:, None] + rounds[:, None, None, None, None]).expand(-1, -1, heads, -1, -1)

    def dense_weights(self, q: Tensor, k: None, *, key_mask: Tensor | None = None) -> Tensor:
        n = q.shape[2]
        chunk = self.order(q, key_mask).unflatten(2, (self.hashes, n)).argsort(dim=-1) // self.bucket
        behind = chunk[..., :, None] - chunk[..., None, :]
        found = ((behind == 0) | (behind == 1)).sum(dim=2)  # batch heads n n: in how many rounds
        found = found.masked_fill(torch.eye(n, dtype=torch.bool, device=q.device), 0)
        real = torch.ones(q.shape[0], n, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        found = found * (real[:, None, :, None] & real[:, None, None, :])
        scores = (q @ _keys(q).mT) * self.head_dim**-0.5 + found.to(q.dtype).log()
        alone = torch.eye(n, dtype=q.dtype, device=q.device).expand_as(scores)
        seen = found.any(dim=-1, keepdim=True)
        return torch.where(seen, scores.masked_fill(~seen, 0).softmax(dim=-1), alone)


def _farthest(x: Tensor) -> Tensor:
    """argmax [x; -x] along the first axis of x (columns, ...), without writing both out."""
    columns = len(x)
    length, best = x[0].abs(), (x[0] < 0).to(torch.uint8) * columns
    for column in range(1, columns):
        other = x[column].abs()
        best = torch.where(other > length, column + (x[column] < 0).to(torch.uint8) * columns, best)
        length = torch.maximum(length, other)
    return best


def _keys(q: Tensor) -> Tensor:
    """q / |q|, and 0 for 0."""
    return torch.nn.functional.normalize(q, dim=-1)
