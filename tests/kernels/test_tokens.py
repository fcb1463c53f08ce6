"""Layouts of tokens: what is a view stays one, and nothing is padded by nothing."""

from __future__ import annotations

import torch

from attnbench.kernels.tokens import empty_tokens, flat_rows, whole_blocks


def test_heads_of_empty_tokens_are_joined_without_a_copy():
    made = empty_tokens(torch.empty(2, 3, 1), 5, 4, torch.float64)
    assert (made.shape, made.dtype, made._base) == ((2, 3, 5, 4), torch.float64, None)
    assert made.transpose(1, 2).flatten(2).data_ptr() == made.data_ptr()


def test_flat_rows_are_the_same_memory_or_none():
    one, two = (empty_tokens(torch.empty(batch, 3, 1), 5, 4) for batch in (1, 2))
    assert flat_rows(one, 4, torch.float32).data_ptr() == one.data_ptr()
    assert flat_rows(two, 4, torch.float32) is None  # batch and heads are no one axis there
    assert flat_rows(two.contiguous(), 4, torch.float32).shape == (6, 5, 4)
    assert flat_rows(one, 5, torch.float32) is None
    assert flat_rows(one, 4, torch.float64) is None


def test_blocks_are_filled_with_zeros_and_whole_ones_are_left_alone():
    x = torch.ones(1, 2, 5, 3)
    padded = whole_blocks(x, 4)
    assert padded.shape == (1, 2, 8, 3)
    assert torch.equal(padded[:, :, :5], x)
    assert not padded[:, :, 5:].any()
    assert whole_blocks(x, 5) is x


def test_blocks_of_tokens_lie_as_their_tokens_do() -> None:
    x = torch.empty(2, 3, 1, 5)
    blocks, tokens = empty_tokens(x, (4, 6), 5), empty_tokens(x, 24, 5)
    assert blocks.shape == (2, 3, 4, 6, 5)
    assert not blocks._is_view()
    assert blocks.flatten(2, 3).stride() == tokens.stride()
