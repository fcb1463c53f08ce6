"""Attention inside gathered tiles, against a dense softmax over what the tiles say."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import gathered
from attnbench.kernels.gathered import gathered_attention


def draw(n_q: int, n_k: int, batch: int = 2, heads: int = 2, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((n_q, 4), (n_k, 4), (n_k, 3))
    return [torch.randn(batch, heads, *shape, dtype=dtype, generator=generator) for shape in shapes]


def ragged(n_q: int, n_k: int, count: int, passes: int, seed: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Random orders, and for each pass runs of queries that partition the list, with runs of keys of any length."""
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.rand(2, 2, n, generator=generator).argsort(dim=-1) for n in (n_q, n_k)]
    cuts = torch.randint(0, n_q + 1, (passes, 2, 2, count - 1), generator=generator).sort(dim=-1).values
    end = torch.full((passes, 2, 2, 1), n_q)
    edges = torch.cat([torch.zeros_like(end), cuts, end], dim=-1)
    bounds = torch.randint(0, n_k + 1, (passes, 2, 2, count, 2), generator=generator).sort(dim=-1).values
    return *orders, torch.stack([edges[..., :-1], edges[..., 1:], bounds[..., 0], bounds[..., 1]], dim=-1)


def counts(q: Tensor, k: Tensor, queries: Tensor, keys: Tensor, tiles: Tensor) -> Tensor:
    """(batch, heads, n_q, n_k): in how many tiles a query and a key meet."""
    met = torch.zeros(*q.shape[:3], k.shape[2], dtype=q.dtype)
    for each in tiles.tolist():
        for b, sample in enumerate(each):
            for h, row in enumerate(sample):
                for q0, q1, k0, k1 in row:
                    met[b, h, queries[b, h, q0:q1, None], keys[b, h, None, k0:k1]] += 1
    return met


def dense(q: Tensor, k: Tensor, v: Tensor, met: Tensor) -> tuple[Tensor, Tensor]:
    some = met.any(dim=-1, keepdim=True)
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + torch.where(some, met, 1).log()
    return (scores.softmax(dim=-1) * some) @ v, scores.logsumexp(dim=-1).masked_fill(~some[..., 0], -torch.inf)


@settings(max_examples=40, deadline=None)
@given(
    n_q=st.integers(1, 20),
    n_k=st.integers(1, 20),
    count=st.integers(1, 6),
    passes=st.integers(1, 3),
    large=st.booleans(),
    causal=st.booleans(),
    tight=st.booleans(),
)
def test_equals_a_dense_softmax(
    n_q: int, n_k: int, count: int, passes: int, large: bool, causal: bool, tight: bool
) -> None:
    q, k, v = (x.requires_grad_() for x in draw(n_q, n_k))
    queries, keys, tiles = ragged(n_q, n_k, count, passes)
    factor = 200 if large else 1  # beyond the range in which the maxima may stay unsubtracted
    with pytest.MonkeyPatch.context() as patch:
        if tight:  # pieces of a handful of scores: tiles are cut by rows
            patch.setattr(gathered, "piece_scores", lambda x, share: 25)
        out, lse = gathered_attention(factor * q, k, v, queries, keys, tiles, causal=causal)
        met = counts(q, k, queries, keys, tiles)
        if causal:
            met = met.tril(n_k - n_q)
        expected, expected_lse = dense(factor * q, k, v, met)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(lse, expected_lse)
        some = met.any(dim=-1)
        loss, expected_loss = (x.square().sum() + y[some].sum() for x, y in ((out, lse), (expected, expected_lse)))
        found = torch.autograd.grad(loss, (q, k, v))
    for one, other in zip(found, torch.autograd.grad(expected_loss, (q, k, v)), strict=True):
        torch.testing.assert_close(one, other)


def chunks(n: int, size: int) -> tuple[Tensor, Tensor]:
    order = torch.rand(2, 2, n).argsort(dim=-1)
    start = torch.arange(0, n, size)
    bounds = torch.stack([start, (start + size).clamp_max(n), (start - size).clamp_min(0), (start + size).clamp_max(n)])
    return order, bounds.T.expand(1, 2, 2, -1, -1)


@pytest.mark.parametrize("n", [8, 21])
@pytest.mark.parametrize("factor", [1, 200])
def test_nobody_sees_itself(n: int, factor: int) -> None:
    q, _, v = draw(n, n)
    order, tiles = chunks(n, 4)
    out, _ = gathered_attention(factor * q, q, v, order, order, tiles, exclude_self=True)
    met = counts(q, q, order, order, tiles) * (1 - torch.eye(n, dtype=q.dtype))
    torch.testing.assert_close(out, dense(factor * q, q, v, met)[0])


@pytest.mark.parametrize("layout", ["contiguous", "by token", "interleaved", "expanded"])
def test_any_memory_layout(layout: str) -> None:
    q, k, v = draw(12, 12)
    order, tiles = chunks(12, 4)
    expected, _ = gathered_attention(q, k, v, order, order, tiles)
    if layout == "by token":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    elif layout == "interleaved":
        q, k = (x.mT.contiguous().mT for x in (q, k))
    elif layout == "expanded":
        q, k, v = (x[:, :1].expand(-1, 2, -1, -1) for x in (q, k, v))
        expected, _ = gathered_attention(q.clone(), k.clone(), v.clone(), order, order, tiles)
    torch.testing.assert_close(gathered_attention(q, k, v, order, order, tiles)[0], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in draw(64, 64))
    order, tiles = chunks(64, 16)
    out, lse = gathered_attention(q, k, v, order, order, tiles)
    expected, _ = gathered_attention(*(x.double() for x in (q, k, v)), order, order, tiles)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(out.double(), expected, atol=1e-2, rtol=1e-2)


def test_traced_differentiated_and_counted() -> None:
    inputs = [x.requires_grad_() for x in draw(12, 12)]
    order, tiles = chunks(12, 4)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return gathered_attention(q, k, v, order, order, tiles)[0]

    torch.library.opcheck(
        torch.ops.attnbench.gathered_attention.default,
        (*inputs, order, order, tiles, False, False, 0.5),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), run(*inputs))
    pairs = 2 * 2 * (4 * 4 + 4 * 8 + 4 * 8)
    with FlopCounterMode(display=False) as counter:
        run(*inputs).sum().backward()
    assert counter.get_total_flops() == 2 * pairs * (4 + 3) + 2 * pairs * (3 * 4 + 2 * 3)


def test_what_is_not_finite_stays_in_its_sample() -> None:
    q, k, v = (x.requires_grad_() for x in draw(32, 32))
    order, tiles = chunks(32, 4)
    clean, _ = gathered_attention(q, k, v, order, order, tiles)
    bad = [torch.cat([torch.full_like(x[:1], torch.nan), x[1:]]).detach().requires_grad_() for x in (q, k, v)]
    out, _ = gathered_attention(*bad, order, order, tiles)
    torch.testing.assert_close(out[1], clean[1])
    out[1].sum().backward()
    assert all(x.grad[1].isfinite().all() for x in bad)
