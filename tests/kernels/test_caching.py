"""Decoding caches: what stays, and where the real tokens stand."""

from __future__ import annotations

import torch

from attnbench.kernels.caching import extended, right_aligned


def rows(*values):
    return torch.tensor(values, dtype=torch.float32)[:, None, :, None]


def test_without_padding_the_last_positions_stay_and_no_more_memory_is_held():
    x = rows([1, 2, 3, 4, 5])
    cache = right_aligned(x, x, None, keep=3)
    assert cache.k.flatten().tolist() == [3, 4, 5]
    assert cache.k.untyped_storage().nbytes() == 3 * 4
    for token in (6, 7):
        cache = extended(cache, rows([token]), rows([token]), keep=3)
    assert cache.v.flatten().tolist() == [5, 6, 7]
    assert cache.v.untyped_storage().nbytes() == 3 * 4


def test_padding_moves_aside_and_holes_stay_where_they_are():
    x = rows([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [0, 0, 0, 0, 0])
    mask = torch.tensor([[True, False, True, False, False], [True] * 5, [False] * 5])
    cache = right_aligned(x, x, mask, keep=4)
    assert cache.key_mask.tolist() == [[False, True, False, True], [True] * 4, [False] * 4]
    assert cache.k[0, 0, cache.key_mask[0]].flatten().tolist() == [1, 3]
    assert cache.k[1].flatten().tolist() == [7, 8, 9, 10]
    cache = extended(cache, rows([11], [12], [13]), rows([11], [12], [13]), keep=4)
    assert cache.key_mask.tolist() == [[True, False, True, True], [True] * 4, [False] * 3 + [True]]


def test_a_short_prompt_grows_to_the_window():
    cache = right_aligned(rows([1]), rows([1]), None, keep=3)
    lengths = []
    for token in (2, 3, 4):
        cache = extended(cache, rows([token]), rows([token]), keep=3)
        lengths.append(cache.k.shape[2])
    assert lengths == [2, 3, 3]
