"""The explicit matrix and the full rows that sparse patterns are stated and completed with."""

from __future__ import annotations

import torch

from attnbench.kernels import dense_softmax, full_rows, masked_attention


def test_weights_sum_to_one_where_something_is_visible_and_to_zero_elsewhere():
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 1, 3, 4)
    visible = torch.tensor([[True, True, False], [False, False, False], [False, False, True]])
    key_mask = torch.tensor([[True, True, False], [True, True, True]])
    weights = dense_softmax(q, k, visible, key_mask)
    assert weights.sum(dim=-1).round(decimals=5).tolist() == [[[1, 0, 0]], [[1, 0, 1]]]
    assert weights[0, 0, 0, 2] == 0
    expected = (q[1, 0, 0] @ k[1, 0, :2].T / 2).softmax(dim=-1)
    torch.testing.assert_close(weights[1, 0, 0, :2], expected)


def test_full_rows_are_full_attention_over_the_real_keys():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 1, 2, 4), torch.randn(2, 1, 5, 4), torch.randn(2, 1, 5, 4)
    every = torch.ones(1, 1, 1, 5, dtype=torch.bool)
    torch.testing.assert_close(full_rows(q, k, v), dense_softmax(q, k, every) @ v)
    mask = torch.tensor([[True, False, True, True, False], [False] * 5])
    out = full_rows(q, k, v, mask)
    torch.testing.assert_close(out, dense_softmax(q, k, every, mask) @ v)
    assert (out[1] == 0).all()


def test_masked_attention_gives_zeros_and_no_gradient_where_nothing_is_seen():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, n, 4, requires_grad=True) for heads, n in ((4, 3), (2, 5), (2, 5)))
    mask = torch.rand(2, 1, 3, 5) < 0.5
    mask[0, 0, 1] = False
    out = masked_attention(q, k, v, mask, grouped=True)
    wide_k, wide_v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    torch.testing.assert_close(out, dense_softmax(q, wide_k, mask) @ wide_v)
    assert (out[0, :, 1] == 0).all()
    for ours, dense in zip(
        torch.autograd.grad(out.square().sum(), (q, k, v)),
        torch.autograd.grad((dense_softmax(q, wide_k, mask) @ wide_v).square().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(ours, dense, rtol=1e-4, atol=1e-5)
    torch.manual_seed(1)
    dropped = masked_attention(q, k, v, mask, dropout=0.5, grouped=True)
    assert not torch.equal(dropped, out)
    assert (dropped[0, :, 1] == 0).all()
