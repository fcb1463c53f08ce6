"""Attention inside blocks, and the joining of partial results, against softmax written out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import block_attention, blocks, merge


def explicit(q, k, v, mask=None):
    """(out, lse), with zeros and -inf where nothing is visible, in double precision."""
    q, k, v = (x.double() for x in (q, k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    visible = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand_as(scores)
    some = visible.any(dim=-1)
    scores = scores.masked_fill(~visible & some[..., None], -torch.inf)
    out = torch.where(some[..., None], scores.softmax(dim=-1) @ v, 0)
    return out, scores.logsumexp(dim=-1).masked_fill(~some, -torch.inf)


def draw(*lead, n_q=5, n_k=7, d=4, e=3, spread=1.0, dtype=torch.float64):
    torch.manual_seed(0)
    q, k = spread * torch.randn(*lead, n_q, d), spread * torch.randn(*lead, n_k, d)
    return [x.to(dtype).requires_grad_() for x in (q, k, torch.randn(*lead, n_k, e))]


def masks(lead, n_q, n_k):
    torch.manual_seed(1)
    full = torch.rand(*lead, n_q, n_k) < 0.5
    return {
        "none": None,
        "full": full,
        "keys": full[..., :1, :],
        "one": full.flatten(0, -3)[0],
        "nothing": full & False,
    }


def assert_same(inputs, mask, **tolerance):
    (out, lse), (wanted, wanted_lse) = block_attention(*inputs, mask), explicit(*inputs, mask)
    torch.testing.assert_close(out, wanted.to(out.dtype), **tolerance)
    torch.testing.assert_close(lse, wanted_lse.to(lse.dtype), **tolerance)
    seen = lse > -torch.inf
    weights = torch.randn_like(wanted)
    got = torch.autograd.grad((out * weights).sum() + lse[seen].sum(), inputs)
    expected = torch.autograd.grad((wanted * weights).sum() + wanted_lse[seen].sum(), inputs)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


@settings(max_examples=40, deadline=None)
@given(
    n_q=st.integers(1, 9),
    n_k=st.integers(1, 9),
    lead=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    which=st.sampled_from(["none", "full", "keys", "one", "nothing"]),
    spread=st.sampled_from([0.1, 1.0, 30.0]),  # the last is out of the range in which the maximum goes unsubtracted
)
def test_output_lse_and_gradients_equal_the_softmax(n_q, n_k, lead, which, spread):
    assert_same(draw(*lead, n_q=n_q, n_k=n_k, spread=spread), masks(lead, n_q, n_k)[which])


@pytest.mark.parametrize("which", ["none", "full", "keys"])
@pytest.mark.parametrize("room", [8, 300, 1000])
def test_pieces_join_seamlessly_whatever_their_size(monkeypatch, which, room):
    monkeypatch.setattr(blocks, "piece_bytes", lambda device: room)
    assert_same(draw(2, 3), masks((2, 3), 5, 7)[which])


@pytest.mark.parametrize("which", ["none", "full"])
def test_gradcheck(which):
    inputs, mask = draw(2), masks((2,), 5, 7)[which]

    def finite(*tensors):
        out, lse = block_attention(*tensors, mask)
        return out, lse.masked_fill(lse == -torch.inf, 0)

    assert torch.autograd.gradcheck(finite, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_once(dtype):
    inputs = draw(3, n_q=16, n_k=512, d=16, spread=3, dtype=dtype)
    out, lse = block_attention(*inputs)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), explicit(*inputs)[0], rtol=torch.finfo(dtype).eps, atol=2e-3)


def test_autocast_forward_and_backward_inside_it():
    inputs = draw(3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = block_attention(*inputs)
        out.sum().backward()
    assert out.dtype == torch.bfloat16
    assert all(x.grad.dtype == torch.float32 and x.grad.isfinite().all() for x in inputs)


def test_compiles_whole_and_counts_its_operations():
    inputs, mask = draw(2, 3), masks((2, 3), 5, 7)["full"]
    compiled = torch.compile(block_attention, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs, mask), block_attention(*inputs, mask))
    with FlopCounterMode(display=False) as counter:
        block_attention(*inputs, mask)[0].sum().backward()
    products = 2 * 6 * 5 * 7
    assert counter.get_total_flops() == products * (4 + 3) + products * (3 * 4 + 2 * 3)


@pytest.mark.parametrize(
    "mask", [torch.ones(5, 7), torch.ones(7, dtype=torch.bool), torch.ones(1, 1, 1, 5, 7, dtype=torch.bool)]
)
def test_refuses_masks_that_do_not_fit(mask):
    with pytest.raises(ValueError, match="block_attention: mask must"):
        block_attention(*draw(2), mask)


def test_refuses_shapes_that_do_not_fit():
    q, k, v = draw(2)
    with pytest.raises(ValueError, match="equal leading dimensions"):
        block_attention(q, k[:1], v)


def test_merge_is_one_softmax_over_the_union():
    q, k, v = draw(2, n_k=9)
    mask = masks((2,), 5, 9)["full"]
    mask[0, 1], mask[0, 2, :4], mask[0, 3, 4:] = False, False, False
    parts = [block_attention(q, k[:, at], v[:, at], mask[..., at]) for at in (slice(0, 4), slice(4, 9))]
    (out, lse), (wanted, wanted_lse) = merge(*parts), explicit(q, k, v, mask)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(lse, wanted_lse)
    weights, seen = torch.randn_like(out), lse > -torch.inf
    got = torch.autograd.grad((out * weights).sum() + lse[seen].sum(), (q, k, v))
    expected = torch.autograd.grad((wanted * weights).sum() + wanted_lse[seen].sum(), (q, k, v))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
