"""The explicit matrix and the full rows that sparse patterns are stated and completed with."""

from __future__ import annotations

import torch

from attnbench.kernels import dense_softmax, full_rows


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
