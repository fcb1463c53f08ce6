"""Folding: the blocks really are strides, of every length, padded or not, and decoding follows the same fold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.contract import Unsupported


def build(**options):
    return attnbench.create_variant("strided", heads=2, head_dim=4, **options)


def draw(n, batch=1):
    torch.manual_seed(0)
    return list(torch.randn(3, batch, 2, n, 4, dtype=torch.float64))


def row(variant, n, i):
    """The positions that output i depends on."""
    q, k, v = draw(n)
    v.requires_grad_()
    variant(q, k, v)[:, :, i].sum().backward()
    return v.grad.abs().sum(dim=(0, 1, 3)).nonzero().flatten().tolist()


def test_sees_multiples_of_the_stride_away():
    assert row(build(stride=3), 12, 0) == [0, 3, 6, 9]
    assert row(build(stride=3), 11, 4) == [1, 4, 7, 10]
    assert row(build(stride=3, causal=True), 12, 7) == [1, 4, 7]
    assert row(build(stride=50), 12, 7) == [7]


def test_the_square_root_is_of_max_len():
    assert [build(max_len=n).stride for n in (1, 2, 16, 17, 4096)] == [1, 2, 4, 5, 64]
    with pytest.raises(Unsupported, match="needs max_len"):
        build()
    assert build(stride=4).stride == 4


def test_a_stride_of_one_is_full_attention():
    q, k, v = draw(9)
    for causal in (False, True):
        torch.testing.assert_close(
            build(stride=1, causal=causal)(q, k, v), scaled_dot_product_attention(q, k, v, is_causal=causal)
        )


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 40), stride=st.integers(1, 12), causal=st.booleans(), padded=st.booleans())
def test_equals_its_dense_definition(n, stride, causal, padded):
    variant = build(stride=stride, causal=causal)
    inputs = [x.requires_grad_() for x in draw(n, batch=3)]
    key_mask = torch.rand(3, n) < 0.5 if padded else None
    fast, slow = variant(*inputs, key_mask=key_mask), variant.reference(*inputs, key_mask=key_mask)
    torch.testing.assert_close(fast, slow)
    weights = torch.randn_like(fast)
    got, expected = (torch.autograd.grad((x * weights).sum(), inputs) for x in (fast, slow))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("padding", [0, 1, 2, 3])
def test_decodes_as_the_whole_sequence_however_the_prompt_was_padded(padding):
    variant = build(stride=3, causal=True)
    q, k, v = draw(20)
    whole = variant(q, k, v)
    prompt = [torch.nn.functional.pad(x[:, :, :7], (0, 0, 0, padding), value=9.0) for x in (q, k, v)]
    key_mask = torch.arange(7 + padding)[None] < 7 if padding else None
    out, state = variant.prefill(*prompt, key_mask)
    outs = [out[:, :, :7]]
    for t in range(7, 20):
        out, state = variant.step(*[x[:, :, t : t + 1] for x in (q, k, v)], state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, dim=2), whole)


@pytest.mark.parametrize("stride", [0, 1.5, True, "root"])
def test_refuses_what_is_no_stride(stride):
    with pytest.raises(ValueError, match="stride must be a whole number of at least 1 or 'sqrt'"):
        build(stride=stride)
