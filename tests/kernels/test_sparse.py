"""The band engine against softmax over counted keys."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import sparse, sparse_attention


def counts(n_q, n_k, *, batch, heads, before, after, shift, band_mask=None, extra=None, extra_mask=None, rows=None):
    """How often each query sees each key."""
    offset = torch.arange(n_k) - (torch.arange(n_q)[:, None] + shift)
    seen = ((offset >= -before) & (offset <= after)).double().expand(batch, heads, n_q, n_k).clone()
    if band_mask is not None:
        seen *= band_mask[:, None, None]
    if extra is not None:
        tile = torch.arange(n_q) // rows if extra.shape[2] > 1 else torch.zeros(n_q, dtype=torch.long)
        keys = extra.expand(batch, heads, -1, -1)[:, :, tile]
        there = keys >= 0
        if extra_mask is not None:
            there = there & extra_mask[torch.arange(batch)[:, None, None, None], keys.clamp_min(0)]
        seen.scatter_add_(3, keys.clamp_min(0), there.double())
    return seen


def explicit(q, k, v, seen):
    some = (seen > 0).any(dim=-1, keepdim=True)
    scores = torch.where(some, q @ k.mT * q.shape[-1] ** -0.5 + seen.log(), 0)
    return torch.where(some, scores.softmax(dim=-1) @ v, 0), scores.logsumexp(dim=-1).masked_fill(
        ~some[..., 0], -torch.inf
    )


def draw(batch, heads, n_q, n_k, spread=1.0, dtype=torch.float64):
    torch.manual_seed(0)
    shapes = (n_q, 4), (n_k, 4), (n_k, 3)
    return [(spread * torch.randn(batch, heads, *shape, dtype=dtype)).requires_grad_() for shape in shapes]


def assert_same(inputs, **call):
    batch, heads, n_q, _ = inputs[0].shape
    (out, lse) = sparse_attention(*inputs, **call)
    wanted, wanted_lse = explicit(*inputs, counts(n_q, inputs[1].shape[2], batch=batch, heads=heads, **call))
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(lse, wanted_lse)
    weights, seen = torch.randn_like(out), lse > -torch.inf
    got = torch.autograd.grad((out * weights).sum() + lse[seen].sum(), inputs)
    expected = torch.autograd.grad((wanted * weights).sum() + wanted_lse[seen].sum(), inputs)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@settings(max_examples=60, deadline=None)
@given(
    n_q=st.integers(1, 150),
    n_k=st.integers(1, 150),
    batch=st.integers(1, 2),
    heads=st.integers(1, 3),
    before=st.integers(0, 160),
    after=st.sampled_from([0, 1, 5, 31, 200]),
    aligned=st.booleans(),
    padded=st.booleans(),
    spread=st.sampled_from([1.0, 30.0]),
)
def test_a_band_equals_the_softmax_over_it(n_q, n_k, batch, heads, before, after, aligned, padded, spread):
    torch.manual_seed(2)
    mask = torch.rand(batch, n_k) < 0.6 if padded else None
    inputs = draw(batch, heads, n_q, n_k, spread)
    assert_same(inputs, before=before, after=after, shift=n_k - n_q if aligned else 0, band_mask=mask)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 100),
    rows=st.sampled_from([1, 7, 16, 64]),
    tiled=st.booleans(),
    per_sample=st.booleans(),
    per_head=st.booleans(),
    reach=st.sampled_from([0, 3, 40]),
    padded=st.booleans(),
    spread=st.sampled_from([1.0, 30.0]),
)
def test_listed_keys_count_beside_the_band(n, rows, tiled, per_sample, per_head, reach, padded, spread):
    torch.manual_seed(3)
    shape = 2 if per_sample else 1, 3 if per_head else 1, -(-n // rows) if tiled else 1, 5
    extra = torch.randint(-1, n, shape)
    masks = [torch.rand(2, n) < 0.6 if padded else None for _ in range(2)]
    inputs = draw(2, 3, n, n, spread)
    assert_same(
        inputs, before=reach, after=reach, shift=0, extra=extra, rows=rows, band_mask=masks[0], extra_mask=masks[1]
    )


@pytest.mark.parametrize("room", [8, 2**14, 2**18])
@pytest.mark.parametrize("heads", [1, 5])
def test_pieces_join_seamlessly_whatever_their_size(monkeypatch, room, heads):
    monkeypatch.setattr(sparse, "piece_bytes", lambda device: room)
    extra = torch.randint(-1, 300, (1, heads, 10, 4))
    assert_same(draw(1, heads, 300, 300), before=20, after=30, shift=0, extra=extra, rows=32)


def test_any_layout_in_memory():
    plain = draw(2, 3, 90, 90)
    twisted = [x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in plain]
    expanded = [x.detach()[:1, :1].expand(2, 3, -1, -1) for x in plain]
    for inputs in (twisted, expanded):
        got = sparse_attention(*inputs, before=9, after=9)
        torch.testing.assert_close(got, sparse_attention(*[x.contiguous() for x in inputs], before=9, after=9))


def test_gradcheck():
    extra = torch.tensor([[[[0, 9], [-1, 3], [5, -1]]]])

    def finite(*tensors):
        out, lse = sparse_attention(*tensors, before=2, after=1, extra=extra, rows=4, band_mask=mask)
        return out, lse.masked_fill(lse == -torch.inf, 0)

    mask = torch.arange(10)[None] % 3 > 0
    assert torch.autograd.gradcheck(finite, draw(1, 1, 10, 10))


def test_compiles_whole_and_counts_what_it_computes():
    inputs = draw(1, 2, 256, 256, dtype=torch.float32)

    def call(q, k, v):
        return sparse_attention(q, k, v, before=31, after=0)

    torch.testing.assert_close(torch.compile(call, backend="aot_eager", fullgraph=True)(*inputs), call(*inputs))
    with FlopCounterMode(display=False) as counter:
        call(*inputs)[0].sum().backward()
    scores = 2 * 256 * 64  # tiles of 32 rows see 63 keys, rounded up to 64
    assert counter.get_total_flops() == 2 * scores * (4 + 3) + 2 * scores * (3 * 4 + 2 * 3)


def test_memory_freed_by_others_is_never_read():
    """Fresh memory is full of NaN; whatever the engine leaves unwritten shows."""
    inputs = draw(1, 2, 200, 200, dtype=torch.float32)
    mask = torch.arange(200)[None] < 70
    torch.use_deterministic_algorithms(True)  # fills new tensors with NaN
    try:
        out, lse = sparse_attention(*inputs, before=7, after=7, band_mask=mask)
        (out.sum() + lse[:, :, :70].sum()).backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(x.grad.isfinite().all() for x in inputs)
    assert (out[:, :, 77:] == 0).all()
    assert (lse[:, :, 77:] == -torch.inf).all()


def test_tiles_at_both_ends_that_see_the_same_keys_are_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    heights = []

    def watched(q: Tensor, *rest: Any) -> None:
        heights.append(q.shape[1])
        attend(q, *rest)

    attend = sparse.attend
    monkeypatch.setattr(sparse, "attend", watched)
    q, k, v = (torch.randn(1, 4, 1024, 8) for _ in range(3))
    sparse_attention(q, k, v, before=191, after=191)
    assert sorted(heights) == [64, 64, 64, 64, 192, 256]  # between the ends, one piece for each head
