"""The convolutional baseline: its taps, its reach, and the last tokens as the state of decoding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbench
from attnbench.contract import state_bytes

KINDS = ("depthwise", "per-head", "full")


def build(**options):
    torch.manual_seed(0)
    return attnbench.create_variant("convolution", **({"heads": 2, "head_dim": 3, "kernel": 3} | options)).double()


def draw(n, batch=2, seed=1):
    return torch.randn(batch, 2, n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(
    kind=st.sampled_from(KINDS),
    causal=st.booleans(),
    kernel=st.integers(1, 6),
    dilation=st.integers(1, 4),
    n=st.integers(1, 14),
    masked=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_output_and_gradients_equal_the_sum_over_taps(kind, causal, kernel, dilation, n, masked):
    variant = build(kind=kind, causal=causal, kernel=kernel, dilation=dilation)
    v = draw(n).requires_grad_()
    key_mask = torch.rand(2, n) < 0.6 if masked else None
    fast, slow = variant(None, None, v, key_mask=key_mask), variant.reference(None, None, v, key_mask=key_mask)
    torch.testing.assert_close(fast, slow)
    for a, b in zip(
        torch.autograd.grad(fast.square().sum(), [v, variant.weight]),
        torch.autograd.grad(slow.square().sum(), [v, variant.weight]),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    if kind == "per-head":
        torch.testing.assert_close(variant.dense_weights(None, v, key_mask=key_mask) @ v, slow)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("causal", "kernel", "dilation", "seen"),
    [
        (False, 3, 1, [4, 5, 6]),
        (False, 4, 1, [4, 5, 6, 7]),
        (False, 3, 2, [3, 5, 7]),
        (True, 3, 1, [3, 4, 5]),
        (True, 3, 2, [1, 3, 5]),
        (True, 1, 1, [5]),
    ],
)
def test_position_5_sees_exactly_its_taps(kind, causal, kernel, dilation, seen):
    variant = build(kind=kind, causal=causal, kernel=kernel, dilation=dilation)
    v = draw(10, batch=1).requires_grad_()
    variant(None, None, v)[:, :, 5].sum().backward()
    assert v.grad.abs().sum(dim=(0, 1, 3)).nonzero().flatten().tolist() == seen


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_goes_on_from_each_samples_last_real_token(kind):
    variant = build(kind=kind, causal=True, kernel=3, dilation=2).eval()
    v = draw(12, batch=3)
    lengths = (7, 2, 5)
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    _, state = variant.prefill(None, None, v[:, :, :7], mask)
    assert state_bytes(state) == 3 * 6 * 4 * 8
    for t in range(7, 12):
        row, state = variant.step(None, None, v[:, :, t : t + 1], state)
        for sample, length in enumerate(lengths):
            seen = torch.cat([v[sample : sample + 1, :, :length], v[sample : sample + 1, :, 7 : t + 1]], dim=2)
            torch.testing.assert_close(row[sample : sample + 1], variant(None, None, seen)[:, :, -1:])


def test_a_sample_without_real_tokens_gives_zeros():
    mask = torch.tensor([[True] * 5, [False] * 5])
    for kind in KINDS:
        out = build(kind=kind)(None, None, draw(5).masked_fill(~mask[:, None, :, None], torch.nan), key_mask=mask)
        assert out.isfinite().all()
        assert not out[1].any()


def test_the_number_of_weights_follows_the_kind():
    shapes = {kind: tuple(build(kind=kind).weight.shape) for kind in KINDS}
    assert shapes == {"depthwise": (6, 1, 3), "per-head": (2, 1, 3), "full": (6, 6, 3)}
    assert [attnbench.variant_info("convolution", kind=kind).supports.linear_in_v for kind in KINDS] == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": 0}, "kernel must be a whole number of at least 1, received 0"),
        ({"dilation": 0}, "dilation must be a whole number of at least 1, received 0"),
        ({"kind": "ful"}, "kind must be one of depthwise, per-head, full, received 'ful' .did you mean 'full'"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
