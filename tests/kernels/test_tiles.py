"""Tiles in runs: every pair of a query and a key that a tile holds is seen once, and no other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnbench.kernels.tiles import Run, runs


def sliding(batch: int, heads: int, n: int, size: int, passes: int = 1) -> Tensor:
    """Chunks of a list of passes * n positions, each with the chunk before it in its pass: (passes, batch, heads, T, 4)."""
    start = torch.arange(0, n, size)
    stop = (start + size).clamp(max=n)
    bounds = torch.stack([start, stop, (start - size).clamp(min=0), stop], dim=-1)
    return (bounds + n * torch.arange(passes)[:, None, None, None, None]).expand(passes, batch, heads, -1, -1)


def ragged(batch: int, heads: int, n: int, count: int) -> Tensor:
    return torch.randint(0, n + 1, (1, batch, heads, count, 2, 2)).sort(dim=-1).values.flatten(-2)


def met(run: Run) -> Tensor:
    """The pairs of slots (query, key) that a run shows."""
    queries, keys = torch.broadcast_tensors(run.queries[:, :, None], run.by_tile(run.keys)[:, None, :])
    seen = torch.ones_like(keys, dtype=torch.bool)
    if run.real_queries is not None:
        seen &= run.real_queries[:, :, None]
    if run.real_keys is not None:
        seen &= run.real_keys[:, None, :]
    for tiles, count in run.short:
        seen[tiles, :, :count] = False
    return torch.stack([queries[seen], keys[seen]], dim=-1)


def wanted(tiles: Tensor, n: int) -> list[list[int]]:
    _, batch, heads, _, _ = tiles.shape
    row = n * torch.arange(batch * heads).view(batch, heads, 1, 1)
    pairs = [
        [q, k] for q0, q1, k0, k1 in (tiles + row).reshape(-1, 4).tolist() for q in range(q0, q1) for k in range(k0, k1)
    ]
    return sorted(pairs)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 3),
    chunks=st.integers(1, 6),
    tail=st.integers(0, 3),
    passes=st.integers(1, 2),
    room=st.sampled_from([1, 40, 100, 10_000]),
    slides=st.booleans(),
)
def test_every_pair_once(batch: int, heads: int, chunks: int, tail: int, passes: int, room: int, slides: bool) -> None:
    n = 4 * chunks + tail
    tiles = sliding(batch, heads, n, 4, passes) if slides else ragged(batch, heads, passes * n, 5)
    found = [met(run) for run in runs(tiles, (passes * n, passes * n), room)]
    assert sorted(torch.cat(found).tolist() if found else []) == wanted(tiles, passes * n)


def test_chunks_that_slide_go_in_one_run_of_a_sample_and_share_their_keys() -> None:
    found = list(runs(sliding(2, 3, 64, 4), (64, 64), 10_000))
    assert [(len(run.queries), run.step, run.width, len(run.keys)) for run in found] == 2 * [(48, 4, 8, 196)]
    assert all(run.lead == 4 for run in found)
    assert found[1].keys.min() == 3 * 64  # no key of the other sample, not even a hidden one


@pytest.mark.parametrize(("width", "step"), [(6, 2), (5, 2), (4, 4), (3, 2)])
def test_sums_are_the_transpose_of_views(width: int, step: int) -> None:
    count, rows = 5, 3
    run = Run(torch.zeros(count, rows, dtype=torch.long), torch.arange((count - 1) * step + width), width, step)
    x = torch.randn(len(run.keys), 2, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(count, width, rows, dtype=torch.float64)
    grads = torch.randn(count, rows, 2, dtype=torch.float64)
    (expected,) = torch.autograd.grad(run.by_tile(x), x, weights @ grads)
    torch.testing.assert_close(run.gathered(weights, grads, torch.full_like(x, torch.nan)), expected)
