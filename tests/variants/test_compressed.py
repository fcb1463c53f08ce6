"""Memory-compressed attention: blocks of keys and values, which a causal query sees only when they are over."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.contract import Unsupported


def build(**options):
    torch.manual_seed(0)
    return attnbench.create_variant("compressed", **({"heads": 2, "head_dim": 4, "factor": 3} | options)).double()


def draw(n, batch=2, keys=None, seed=1):
    generator = torch.Generator().manual_seed(seed)
    lengths = (n, keys or n, keys or n)
    return [torch.randn(batch, 2, length, 4, generator=generator, dtype=torch.float64) for length in lengths]


@given(
    n=st.integers(1, 20), factor=st.integers(1, 7), causal=st.booleans(), masked=st.booleans(), seed=st.integers(0, 99)
)
@settings(max_examples=50, deadline=None)
def test_output_and_gradients_equal_the_reference(n, factor, causal, masked, seed):
    variant = build(factor=factor, causal=causal)
    inputs = [x.requires_grad_() for x in draw(n, seed=seed)]
    key_mask = torch.rand(2, n, generator=torch.Generator().manual_seed(seed)) < 0.5 if masked else None
    rows = 1 if key_mask is None or not causal else key_mask[:, None, :, None]
    fast, slow = (f(*inputs, key_mask=key_mask) * rows for f in (variant, variant.reference))
    torch.testing.assert_close(fast, slow)
    wanted = [*inputs, *variant.parameters()]
    gradients = (
        torch.autograd.grad(x.square().sum(), wanted, materialize_grads=True, allow_unused=True) for x in (fast, slow)
    )
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_it_is_full_attention_to_a_strided_convolution():
    variant = build()
    q, k, v = draw(9)

    def convolved(x, matrices):
        weight = matrices.unflatten(1, (3, 4)).permute(0, 3, 2, 1).flatten(0, 1)  # (heads * out, in, tap)
        channels = x.transpose(2, 3).flatten(1, 2)
        out = torch.nn.functional.conv1d(channels, weight, stride=3, groups=2)
        return out.unflatten(1, (2, 4)).transpose(2, 3)

    keys, values = convolved(k, variant.compress_keys), convolved(v, variant.compress_values)
    torch.testing.assert_close(variant(q, k, v), scaled_dot_product_attention(q, keys, values))


@pytest.mark.parametrize("masked", [False, True])
def test_a_causal_query_sees_the_blocks_before_its_own_and_nothing_else(masked):
    variant = build(causal=True)
    q, k, v = draw(11, batch=1)
    v.requires_grad_()
    out = variant(q, k, v, key_mask=torch.ones(1, 11, dtype=torch.bool) if masked else None)
    for i in range(11):
        (gradient,) = torch.autograd.grad(out[:, :, i].square().sum(), v, retain_graph=True)
        seen = gradient.abs().sum(dim=(0, 1, 3)).nonzero().flatten().tolist()
        assert seen == list(range(i // 3 * 3))
    assert not out[:, :, :3].any()


def test_padding_changes_nothing_and_an_empty_sample_gives_zeros():
    for causal in (False, True):
        variant = build(causal=causal)
        q, k, v = draw(20, batch=3)
        mask = torch.arange(20) < torch.tensor([20, 10, 0])[:, None]
        poisoned = [q, *(x.masked_fill(~mask[:, None, :, None], torch.nan) for x in (k, v))]
        poisoned = [x.detach().requires_grad_() for x in poisoned]
        out = variant(*poisoned, key_mask=mask)
        alone = variant(*(x[1:2, :, :10] for x in (q, k, v)))
        torch.testing.assert_close(out[1:2, :, :10], alone)
        assert not out[2].any()
        out.sum().backward()
        assert all(x.grad.isfinite().all() for x in poisoned)


def test_cross_attention_is_for_the_form_that_is_not_causal():
    assert build(cross=True)(*draw(4, keys=10)).shape == (2, 2, 4, 4)
    with pytest.raises(Unsupported, match="self-attention alone"):
        build(cross=True, causal=True)
    with pytest.raises(Unsupported, match="received 4 queries and 10 keys"):
        build(causal=True)(*draw(4, keys=10))


def test_dropout_acts_in_training_alone():
    for causal in (False, True):
        variant = build(dropout=0.5, causal=causal)
        inputs = draw(12)
        assert not torch.equal(variant(*inputs), variant(*inputs))
        variant.eval()
        torch.testing.assert_close(variant(*inputs), variant.reference(*inputs))


def test_a_wrong_factor_is_one_clear_line():
    with pytest.raises(ValueError, match="factor must be a whole number of at least 1, received 0"):
        build(factor=0)
