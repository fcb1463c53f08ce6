"""The window: exactly which keys are seen, at every width, length and end; and decoding from a cache no larger than it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.contract import Unsupported, state_bytes


def build(heads=2, **options):
    return attnbench.create_variant("local", heads=heads, head_dim=4, **options)


def draw(n, batch=1, heads=2, dtype=torch.float64, keys=None, spread=1.0):
    torch.manual_seed(0)
    return [spread * torch.randn(batch, heads, m, 4, dtype=dtype) for m in (n, keys or n, keys or n)]


def visible(variant, n, **call):
    """Which v_j an output depends on, found by differentiation alone."""
    q, k, v = draw(n, heads=variant.heads)
    rows = variant(q, k, v.requires_grad_(), **call).sum(dim=(0, 1, 3))
    gradients = [torch.autograd.grad(row, v, retain_graph=True)[0] for row in rows]
    return torch.stack(gradients).abs().sum(dim=(1, 2, 4)) > 0


@pytest.mark.parametrize("n", [1, 9, 70])
@pytest.mark.parametrize("causal", [False, True])
def test_sees_exactly_its_window(n, causal):
    position = torch.arange(n)
    distance = position[:, None] - position
    for window in (1, 2, 4, 5, n, n + 1):
        expected = (distance.abs() < window) & ((distance >= 0) | torch.tensor(not causal))
        seen = visible(build(1, window=window, causal=causal), n)
        assert (seen == expected).all(), (window, causal)
        if causal:
            assert seen.sum(dim=1).tolist() == [min(i + 1, window) for i in range(n)]


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_over_everything_is_full_attention(causal):
    q, k, v = draw(70)
    full = scaled_dot_product_attention(q, k, v, is_causal=causal)
    for window in (70, 71, 10_000):
        torch.testing.assert_close(build(window=window, causal=causal)(q, k, v), full)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 200), window=st.integers(1, 150), causal=st.booleans(), padded=st.booleans())
def test_equals_its_dense_definition(n, window, causal, padded):
    variant = build(window=window, causal=causal)
    q, k, v = draw(n, batch=2)
    key_mask = torch.rand(2, n) < 0.5 if padded else None
    torch.testing.assert_close(variant(q, k, v, key_mask=key_mask), variant.reference(q, k, v, key_mask=key_mask))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_beyond_the_real_tokens_are_zeros_with_finite_gradients(dtype):
    variant = build(window=8)
    inputs = [x.requires_grad_() for x in draw(64, batch=3, dtype=dtype)]
    key_mask = torch.zeros(3, 64, dtype=torch.bool)
    key_mask[0, :20], key_mask[1] = True, True
    out = variant(*inputs, key_mask=key_mask)
    out.float().pow(2).sum().backward()
    assert (out[0, :, 27:] == 0).all()
    assert (out[2] == 0).all()
    assert all(x.grad.isfinite().all() for x in inputs)
    torch.testing.assert_close(out[1:2], variant(*[x[1:2] for x in inputs]))


@pytest.mark.parametrize("poison", [1e4, torch.nan])
def test_padding_changes_no_real_position(poison):
    variant, lengths = build(window=8), (50, 31, 1)
    q, k, v = draw(50, batch=3, dtype=torch.float32)
    key_mask = torch.arange(50) < torch.tensor(lengths)[:, None]
    out = variant(*[x.masked_fill(~key_mask[:, None, :, None], poison) for x in (q, k, v)], key_mask=key_mask)
    for sample, length in enumerate(lengths):
        alone = variant(*[x[sample : sample + 1, :, :length] for x in (q, k, v)])
        torch.testing.assert_close(out[sample : sample + 1, :, :length], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [1, 7, 64, 65, 127])
@pytest.mark.parametrize("masked", [False, True])
def test_later_tokens_change_nothing_where_causal(n, masked):
    variant, cut = build(window=16, causal=True), n // 2
    q, k, v = draw(n)
    key_mask = torch.arange(n)[None] % 5 != 3 if masked else None
    later = torch.arange(n)[:, None] > cut
    changed = variant(*[torch.where(later, 100 * torch.randn_like(x), x) for x in (q, k, v)], key_mask=key_mask)
    same = variant(q, k, v, key_mask=key_mask)
    torch.testing.assert_close(changed[:, :, : cut + 1], same[:, :, : cut + 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n_q", "n_k"), [(1, 8), (3, 8), (5, 2)])
def test_fewer_queries_are_the_last_ones(n_q, n_k):
    variant = build(window=4, causal=True)
    q, k, v = draw(max(n_q, n_k))
    out = variant(q[:, :, -n_q:], k[:, :, -n_k:], v[:, :, -n_k:])
    whole = variant(q[:, :, -n_k:], k[:, :, -n_k:], v[:, :, -n_k:])
    rows = min(n_q, n_k)
    torch.testing.assert_close(out[:, :, -rows:], whole[:, :, -rows:])
    assert (out[:, :, : max(0, n_q - n_k)] == 0).all()
    with pytest.raises(Unsupported, match="self-attention alone"):
        build(window=4)(q[:, :, :1], k, v)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_long_sums_in_half_precision(dtype):
    variant = build(1, window=4096)
    q, k, v = draw(16384, heads=1, dtype=torch.float32, spread=3)
    low = variant(*[x.to(dtype) for x in (q, k, v)])
    high = variant(*[x.to(dtype).float() for x in (q, k, v)])
    assert low.isfinite().all()
    assert (low.float() - high).norm() / high.norm() < 5e-2


@pytest.mark.parametrize("prompt", [1, 3, 30])
def test_decodes_as_the_whole_sequence_from_a_cache_of_one_window(prompt):
    variant = build(window=4, causal=True, kv_heads=1)
    q, k, v = draw(40)
    k, v = k[:, :1], v[:, :1]
    whole = variant(q, k, v)
    out, state = variant.prefill(*[x[:, :, :prompt] for x in (q, k, v)])
    outs = [out]
    for t in range(prompt, 40):
        out, state = variant.step(*[x[:, :, t : t + 1] for x in (q, k, v)], state)
        outs.append(out)
        assert state_bytes(state) <= 2 * 4 * 4 * 8  # k and v, window, head_dim, bytes
    torch.testing.assert_close(torch.cat(outs, dim=2), whole)


@pytest.mark.parametrize("window", [0, -1, 2.5, True, "8"])
def test_refuses_what_is_no_window(window):
    with pytest.raises(ValueError, match="window must be a whole number of at least 1"):
        build(window=window)
