"""Performer: unbiased estimate of full attention, orthogonal features in a buffer, and stabilisers that leak nothing."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import attnbench


def build(**options):
    torch.manual_seed(0)
    return attnbench.create_variant("performer", **({"heads": 2, "head_dim": 8} | options))


def draw(n, scale=1.0, batch=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(batch, 2, n, 8, generator=generator) for _ in range(3))
    return q * scale, k * scale, v


@pytest.mark.parametrize("causal", [False, True])
def test_the_estimate_approaches_full_attention_as_features_grow(causal):
    q, k, v = draw(40, scale=0.4)
    exact = scaled_dot_product_attention(q, k, v, is_causal=causal)
    errors = [(build(features=m, causal=causal)(q, k, v) - exact).norm() / exact.norm() for m in (8, 128, 16384)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.02  # directions that are not uniform leave a bias of .05


def test_rows_are_orthogonal_in_blocks_and_as_long_as_normal_vectors():
    projection = build(features=4000).projection.double()
    first = projection[:8]
    products = first @ first.T
    torch.testing.assert_close(products - products.diag().diag(), torch.zeros(8, 8).double(), rtol=0, atol=1e-5)
    assert abs(projection.square().sum(1).mean() - 8) < 0.3  # the mean of a chi-squared of 8 degrees of freedom
    assert projection.square().sum(1).std() > 2


def test_the_default_number_of_features_is_d_ln_d():
    assert build(head_dim=64).features == 266
    assert build(head_dim=1).features == 1


def test_the_projection_is_a_buffer_that_only_redraw_changes():
    variant = build()
    before = variant.projection.clone()
    variant.train()(*draw(9))
    assert torch.equal(variant.projection, before)
    assert list(variant.state_dict()) == ["projection"]
    variant.redraw(torch.Generator().manual_seed(3))
    again = build()
    again.redraw(torch.Generator().manual_seed(3))
    assert not torch.equal(variant.projection, before)
    assert torch.equal(variant.projection, again.projection)


def test_later_keys_of_any_size_leave_earlier_rows_alone():
    """A maximum over all keys as the stabiliser would wipe out the rows before a key that dwarfs theirs."""
    variant = build(causal=True)
    q, k, v = draw(64)
    k[:, :, :32] *= 12  # weights far below those of the later, shorter keys
    before = variant(q, k, v)
    for factor in (0.0, 1.0, 1e3):
        after = variant(q, torch.cat([k[:, :, :32], factor * k[:, :, 32:]], dim=2), v)
        torch.testing.assert_close(after[:, :, :32], before[:, :, :32])
    torch.testing.assert_close(before[:, :, 0], v[:, :, 0])


def test_one_sample_does_not_feel_the_others_in_its_batch():
    variant = build()
    q, k, v = draw(16)
    alone = variant(q[:1], k[:1], v[:1])
    k[1] *= 50
    torch.testing.assert_close(variant(q, k, v)[:1], alone)


def test_gradients_equal_those_of_the_reference_though_stabilisers_are_held_constant():
    variant = build().double()
    inputs = [x.double().requires_grad_() for x in draw(12, scale=2)]
    fast = torch.autograd.grad(variant(*inputs).square().sum(), inputs)
    slow = torch.autograd.grad(variant.reference(*inputs).square().sum(), inputs)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b)


def test_decoding_equals_the_forward_pass():
    variant = build(causal=True).eval()
    q, k, v = draw(14, scale=2)
    whole = variant(q, k, v)
    _, state = variant.prefill(q[:, :, :5], k[:, :, :5], v[:, :, :5])
    for t in range(5, 14):
        row, state = variant.step(*(x[:, :, t : t + 1] for x in (q, k, v)), state)
        torch.testing.assert_close(row, whole[:, :, t : t + 1])


def test_a_wrong_number_of_features_is_one_clear_line():
    with pytest.raises(ValueError, match="features must be a whole number of at least 1 or None, received 0"):
        build(features=0)
