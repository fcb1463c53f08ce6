"""Window and global tokens under one softmax: every key once, wherever the global tokens stand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.contract import Unsupported


def build(**options):
    return attnbench.create_variant("longformer", heads=2, head_dim=4, **options)


def draw(n, batch=1):
    torch.manual_seed(0)
    return list(torch.randn(3, batch, 2, n, 4, dtype=torch.float64))


def expected_mask(n, window, positions):
    position = torch.arange(n)
    special = torch.isin(position, torch.tensor(positions, dtype=torch.long))
    return ((position[:, None] - position).abs() < window) | special[:, None] | special


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 150),
    window=st.integers(1, 80),
    positions=st.lists(st.integers(0, 160), max_size=4),
)
def test_is_masked_full_attention_over_band_and_global_tokens(n, window, positions):
    q, k, v = draw(n)
    expected = scaled_dot_product_attention(q, k, v, attn_mask=expected_mask(n, window, positions))
    torch.testing.assert_close(build(window=window, tokens=positions)(q, k, v), expected)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 100), window=st.integers(1, 40), tokens=st.integers(0, 5))
def test_padding_hides_keys_and_global_tokens_alike(n, window, tokens):
    variant = build(window=window, tokens=tokens)
    inputs = [x.requires_grad_() for x in draw(n, batch=3)]
    key_mask = torch.rand(3, n) < 0.5
    fast, slow = variant(*inputs, key_mask=key_mask), variant.reference(*inputs, key_mask=key_mask)
    torch.testing.assert_close(fast, slow)
    weights = torch.randn_like(fast)
    got, expected = (torch.autograd.grad((x * weights).sum(), inputs) for x in (fast, slow))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_a_padded_global_token_is_ignored():
    q, k, v = draw(30)
    key_mask = torch.ones(1, 30, dtype=torch.bool).index_fill(1, torch.tensor([20]), False)
    out = build(window=3, tokens=[20])(q, k, v, key_mask=key_mask)
    torch.testing.assert_close(out, build(window=3, tokens=0)(q, k, v, key_mask=key_mask))


def test_refuses_causal_and_what_is_no_option():
    with pytest.raises(Unsupported, match="no causal form"):
        build(causal=True)
    with pytest.raises(ValueError, match="window must be"):
        build(window=0)
    for tokens in (-1, [1, -2], True, [0.5]):
        with pytest.raises(ValueError, match="tokens must be"):
            build(tokens=tokens)
