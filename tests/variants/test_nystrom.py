"""Nystromformer: landmarks over each sample's real tokens, the pseudo-inverse, and the optional convolution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from variants.nystrom import pseudo_inverse, segment_means


def build(**options):
    torch.manual_seed(0)
    return attnbench.create_variant("nystrom", **({"heads": 2, "head_dim": 4, "landmarks": 5} | options)).double()


def draw(n, batch=2, seed=1):
    return torch.randn(3, batch, 2, n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).unbind()


@given(
    n=st.integers(1, 40), landmarks=st.integers(1, 12), kernel=st.sampled_from([None, 1, 5]), seed=st.integers(0, 99)
)
@settings(max_examples=25, deadline=None)
def test_output_and_gradients_equal_the_reference(n, landmarks, kernel, seed):
    variant = build(landmarks=landmarks, residual_kernel=kernel)
    inputs = [x.requires_grad_() for x in draw(n, seed=seed)]
    real = torch.rand(2, n, generator=torch.Generator().manual_seed(seed)) < 0.5
    for key_mask in (None, real):
        rows = 1 if key_mask is None else key_mask[:, None, :, None]
        fast = variant(*inputs, key_mask=key_mask) * rows
        slow = variant.reference(*inputs, key_mask=key_mask) * rows
        torch.testing.assert_close(fast, slow)
        wanted = [*inputs, *variant.parameters()]
        for a, b in zip(
            torch.autograd.grad(fast.square().sum(), wanted, materialize_grads=True),
            torch.autograd.grad(slow.square().sum(), wanted, materialize_grads=True),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)  # the iteration amplifies rounding


def test_landmarks_are_means_over_consecutive_segments_of_real_tokens():
    x = torch.arange(1.0, 11).view(1, 1, 10, 1)
    assert segment_means(x, 4, None).flatten().tolist() == [2, 5, 8, 10]
    mask = torch.tensor([[True, False, True, True, False, True, False, True, False, False]])
    means = segment_means(x.masked_fill(~mask[:, None, :, None], 0), 2, mask)  # real: 1, 3, 4, 6, 8
    torch.testing.assert_close(means.flatten(), torch.tensor([8 / 3, 7.0]))


@pytest.mark.parametrize("lengths", [(40, 23, 3), (40, 5, 1), (40, 6, 0)])
def test_padding_changes_nothing_whether_landmarks_are_many_or_few(lengths):
    variant = build(residual_kernel=3)
    q, k, v = draw(40, batch=3)
    mask = torch.arange(40) < torch.tensor(lengths)[:, None]
    poisoned = [x.masked_fill(~mask[:, None, :, None], torch.nan).requires_grad_() for x in (q, k, v)]
    out = variant(*poisoned, key_mask=mask)
    for sample, length in enumerate(lengths):
        if length == 0:
            assert not out[sample].any()
            continue
        alone = variant(*(x[sample : sample + 1, :, :length] for x in (q, k, v)))
        torch.testing.assert_close(out[sample : sample + 1, :, :length], alone)
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in poisoned)


def test_one_sample_does_not_feel_the_others_in_its_batch():
    """The published initial value takes norms over the whole batch."""
    variant = build(iterations=2)
    q, k, v = draw(30)
    alone = variant(q[:1], k[:1], v[:1])
    q[1], k[1] = 30 * q[1], 30 * k[1]
    torch.testing.assert_close(variant(q, k, v)[:1], alone)


def test_the_iteration_converges_to_the_pseudo_inverse():
    a = torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(-1)
    everything = torch.eye(6, dtype=torch.float64).expand_as(a)
    torch.testing.assert_close(pseudo_inverse(a, 40, everything), torch.linalg.pinv(a))
    torch.testing.assert_close(pseudo_inverse(a, 40, everything[..., :2]), torch.linalg.pinv(a)[..., :2])
    singular = torch.ones(1, 1, 4, 4, dtype=torch.float64) / 4
    torch.testing.assert_close(
        pseudo_inverse(singular, 20, torch.eye(4, dtype=torch.float64)[None, None]), torch.linalg.pinv(singular)
    )


def test_it_approaches_full_attention_with_a_landmark_for_each_token():
    q, k, v = draw(12)
    exact = scaled_dot_product_attention(q, k, v)
    errors = [(build(landmarks=m, iterations=30)(q, k, v) - exact).norm() / exact.norm() for m in (2, 12)]
    assert errors[1] < 1e-5 < errors[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"landmarks": 0}, "landmarks must be a whole number of at least 1, received 0"),
        ({"iterations": 1.5}, "iterations must be a whole number of at least 1, received 1.5"),
        ({"residual_kernel": 4}, "residual_kernel must be an odd number or None, received 4"),
        ({"causal": True}, "nystrom has no causal form"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
