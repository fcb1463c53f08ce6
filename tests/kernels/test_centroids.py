"""Which centroid takes which tokens: against all cosines at once, whatever the size of the pieces."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from attnbench.kernels import centroids as kernel
from attnbench.kernels.centroids import closest, nearest, random_centroids


def cosines(x: Tensor, centroids: Tensor) -> Tensor:
    """(batch, heads, clusters, n), in double precision."""
    return centroids.double() @ normalize(x.double(), dim=-1).mT


sizes = st.tuples(
    *(st.integers(1, high) for high in (3, 3, 40, 9)), st.integers(0, 2**16), st.sampled_from([1, 40, 300, 2**20])
)


@settings(deadline=None)
@given(sizes)
def test_tokens_and_their_centroids_are_those_of_largest_cosine(size: tuple[int, ...]) -> None:
    batch, heads, n, clusters, seed, piece = size
    torch.manual_seed(seed)
    x, centroids, count = torch.randn(batch, heads, n, 8), random_centroids(heads, clusters, 8), 1 + seed % n
    whole = cosines(x, centroids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "ROUTED", piece)
        patch.setattr(kernel, "PIECE", piece)
        taken, chosen = closest(x, centroids, count, None, choices=True)
        alone = nearest(x, centroids)
    assert chosen is not None
    assert taken.shape == (batch, heads, clusters, count)
    for choice in (chosen, alone):
        torch.testing.assert_close(whole.gather(2, choice[:, :, None])[:, :, 0], whole.amax(dim=2), atol=1e-6, rtol=0)
    found = whole.gather(3, taken).sort(dim=-1, descending=True).values
    torch.testing.assert_close(found, whole.topk(count, dim=-1).values, atol=1e-6, rtol=0)
    assert all(len(set(row.tolist())) == count for row in taken.flatten(0, 2))  # none is taken twice


def test_what_is_no_token_is_taken_last() -> None:
    torch.manual_seed(0)
    x, centroids, real = torch.randn(2, 2, 10, 8), random_centroids(2, 3, 8), torch.arange(10) < 6
    taken, chosen = closest(x, centroids, 8, real.expand(2, 10))
    assert chosen is None
    assert (taken[..., :6] < 6).all()
    assert (taken[..., 6:] >= 6).all()
    found = cosines(x, centroids).gather(3, taken[..., :6])
    assert (found.diff(dim=-1) <= 1e-6).all()  # the nearest first
