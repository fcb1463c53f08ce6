"""Random blocks: distinct, outside the window, fixed by the seed, independent of padding; and never full in disguise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbench

SMALL = {"window": 4, "tokens": 2, "random": 2, "block": 4}


def build(heads=2, **options):
    return attnbench.create_variant("bigbird", heads=heads, head_dim=4, **(SMALL | options))


def draw(n, batch=1):
    torch.manual_seed(0)
    return list(torch.randn(3, batch, 2, n, 4, dtype=torch.float64))


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 400),
    window=st.integers(1, 40),
    tokens=st.integers(0, 20),
    random=st.integers(0, 6),
    block=st.integers(1, 16),
)
def test_random_blocks_are_distinct_and_outside_window_and_global_blocks(n, window, tokens, random, block):
    variant = build(window=window, tokens=tokens, random=random, block=block)
    blocks = variant.random_blocks(n)[0]
    total, reach = -(-n // block), -(-(window - 1) // block)
    for own in range(total):
        free = set(range(tokens // block, total)) - set(range(own - reach, own + reach + 1))
        for head in range(2):
            chosen = [b for b in blocks[head, own].tolist() if b >= 0]
            assert len(chosen) == len(set(chosen)) == min(random, len(free))
            assert set(chosen) <= free


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 90),
    window=st.integers(1, 12),
    tokens=st.integers(0, 9),
    random=st.integers(0, 9),
    padded=st.booleans(),
)
def test_equals_its_dense_definition(n, window, tokens, random, padded):
    variant = build(window=window, tokens=tokens, random=random)
    inputs = [x.requires_grad_() for x in draw(n, batch=2)]
    key_mask = torch.rand(2, n) < 0.5 if padded else None
    fast, slow = variant(*inputs, key_mask=key_mask), variant.reference(*inputs, key_mask=key_mask)
    torch.testing.assert_close(fast, slow)
    weights = torch.randn_like(fast)
    got, expected = (torch.autograd.grad((x * weights).sum(), inputs) for x in (fast, slow))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_stays_sparse_at_any_length():
    for n in (32, 64, 256):
        q, k, _ = draw(n)
        seen = (build().dense_weights(q, k) > 0).sum(dim=-1)
        assert seen[:, :, 2:].max() <= 7 + 2 + 2 * 4  # window, global tokens, random blocks
        assert (seen[:, :, :2] == n).all()


def test_the_pattern_is_the_seeds_and_travels_with_the_state():
    same, other = build(seed=0), build(seed=1)
    assert (same.random_blocks(200) == build(seed=0).random_blocks(200)).all()
    assert (same.random_blocks(200) != other.random_blocks(200)).any()
    other.load_state_dict(same.state_dict())
    assert (same.random_blocks(200) == other.random_blocks(200)).all()
    heads = same.random_blocks(200)[0]
    assert (heads[0] != heads[1]).any()


def test_padding_changes_no_real_position():
    variant, lengths = build(), (50, 31, 1)
    q, k, v = draw(50, batch=3)
    key_mask = torch.arange(50) < torch.tensor(lengths)[:, None]
    out = variant(*[x.masked_fill(~key_mask[:, None, :, None], torch.nan) for x in (q, k, v)], key_mask=key_mask)
    for sample, length in enumerate(lengths):
        alone = variant(*[x[sample : sample + 1, :, :length] for x in (q, k, v)])
        torch.testing.assert_close(out[sample : sample + 1, :, :length], alone)


@pytest.mark.parametrize("options", [{"window": 0}, {"tokens": -1}, {"random": 1.5}, {"block": 0}])
def test_refuses_what_is_no_option(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be a whole number of at least"):
        build(**options)
