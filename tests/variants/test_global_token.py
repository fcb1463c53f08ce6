"""Global tokens: who sees whom, chosen, learned and pooled, with padding that hides or moves them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.contract import Unsupported


def build(**options):
    return attnbench.create_variant("global-token", heads=2, head_dim=4, **options)


def draw(n, batch=1):
    torch.manual_seed(0)
    return list(torch.randn(3, batch, 2, n, 4, dtype=torch.float64))


def rows(variant, n, key_mask=None):
    """For each position, the positions that its output depends on."""
    q, k, v = draw(n)
    rows = variant(q, k, v.requires_grad_(), key_mask=key_mask).sum(dim=(0, 1, 3))
    gradients = [torch.autograd.grad(row, v, retain_graph=True)[0] for row in rows]
    return [seen.abs().sum(dim=(0, 1, 3)).nonzero().flatten().tolist() for seen in gradients]


def test_special_tokens_see_all_and_are_seen_by_all():
    everything = list(range(6))
    assert rows(build(tokens=1), 6) == [everything, [0, 1], [0, 2], [0, 3], [0, 4], [0, 5]]
    assert rows(build(tokens=[4, 2]), 6) == [[0, 2, 4], [1, 2, 4], everything, [2, 3, 4], everything, [2, 4, 5]]
    assert rows(build(tokens=1, kind="learned"), 6) == rows(build(tokens=1), 6)


def test_a_padded_or_absent_special_token_is_none():
    key_mask = torch.tensor([[True, True, True, True, False, True]])
    assert rows(build(tokens=[4, 2, 100]), 6, key_mask)[0] == [0, 2]
    assert rows(build(tokens=[4]), 6, key_mask)[1] == [1]


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 20),
    kind=st.sampled_from(["chosen", "learned", "pooled"]),
    tokens=st.integers(1, 25),
    padded=st.booleans(),
)
def test_equals_its_dense_definition(n, kind, tokens, padded):
    variant = build(kind=kind, tokens=tokens)
    inputs = [x.requires_grad_() for x in draw(n, batch=3)]
    key_mask = torch.rand(3, n) < 0.5 if padded else None
    fast, slow = variant(*inputs, key_mask=key_mask), variant.reference(*inputs, key_mask=key_mask)
    torch.testing.assert_close(fast, slow)
    weights = torch.randn_like(fast)
    got, expected = (torch.autograd.grad((x * weights).sum(), inputs) for x in (fast, slow))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_one_pooled_token_collects_with_the_mean_query_and_hands_out():
    q, k, v = draw(5)
    summary = scaled_dot_product_attention(q.mean(dim=2, keepdim=True), k, v)
    expected = [
        scaled_dot_product_attention(
            q[:, :, i : i + 1],
            torch.cat([k.mean(dim=2, keepdim=True), k[:, :, i : i + 1]], dim=2),
            torch.cat([summary, v[:, :, i : i + 1]], dim=2),
        )
        for i in range(5)
    ]
    torch.testing.assert_close(build(kind="pooled", tokens=1)(q, k, v), torch.cat(expected, dim=2))


@pytest.mark.parametrize("kind", ["chosen", "pooled"])
def test_padding_changes_no_real_position(kind):
    variant = build(kind=kind, tokens=4)
    q, k, v = draw(12)
    key_mask = torch.arange(12)[None] < 7
    out = variant(*[x.masked_fill(~key_mask[:, None, :, None], torch.nan) for x in (q, k, v)], key_mask=key_mask)
    torch.testing.assert_close(out[:, :, :7], variant(q[:, :, :7], k[:, :, :7], v[:, :, :7]))


def test_capabilities_by_kind():
    supports = {
        kind: attnbench.variant_info("global-token", kind=kind).supports for kind in ("chosen", "learned", "pooled")
    }
    assert [supports[kind].global_tokens for kind in supports] == [None, "tokens", None]
    with pytest.raises(Unsupported, match="no causal form"):
        build(causal=True)


@pytest.mark.parametrize(
    "options", [{"tokens": 0}, {"tokens": True}, {"tokens": [-1]}, {"tokens": []}, {"tokens": [1, 2], "kind": "pooled"}]
)
def test_refuses_what_counts_or_names_no_tokens(options):
    with pytest.raises(ValueError, match="global-token: tokens must be a count of at least 1"):
        build(**options)
    with pytest.raises(ValueError, match="kind must be"):
        build(kind="external")
